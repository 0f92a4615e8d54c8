"""Rollouts and batch (or gold answers) and a model to the next checkpoint, step metrics and a record per rollout.

The checkpoint appears whole or not at all; `<out>.steps` and `<out>.records` stand beside it. Rerunning a finished
round does nothing; an interrupted one goes on from its last saved step, to the bit.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from toolsample_cli import schema
from toolsample_cli.config import TrainConfig, as_record
from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.grpo import checkpoint
from toolsample_cli.grpo.checkpoint import Position, Writer
from toolsample_cli.grpo.data import TrainSet, demonstrations, scored_rollouts
from toolsample_cli.grpo.model import load_policy, make_optimizer, model_digest
from toolsample_cli.grpo.trainer import Run, train_round
from toolsample_cli.grpo.world import World
from toolsample_cli.output import Output
from toolsample_cli.shards import Folder, open_folder
from toolsample_cli.stages.common import Account, Options

DEAD_ROUNDS = 3
"""Successive rounds without a live group after which training stops: the loop looks alive but learns nothing."""


def run(
    source: Path,
    batch: Path | None,
    *,
    model: str,
    out: Path,
    config: TrainConfig,
    options: Options,
    tasks: Path | None = None,
) -> Account:
    """Train one round; see `toolsample train --help`. `source` is rollouts (grpo) or tasks (sft)."""
    out = Path(out)
    folders = _open(source, batch, tasks, config)
    refuse_test_data(folders.get("tasks"), config)
    account = Account("train", wrote=None if options.dry_run else out)
    record = {**as_record(config), **options.selection()}
    inputs = {name: folder.digest for name, folder in folders.items()} | {"model": model_digest(model)}
    if options.dry_run:
        account.rows_in = folders["batch" if config.objective == "grpo" else "tasks"].rows
        account.extra["would train on"] = f"{account.rows_in} rows in {config.steps * config.epochs} steps"
        return account
    if finished(out, record, inputs, overwrite=options.overwrite):
        account.extra["nothing to do"] = "this round is finished"
        return account
    world = World.start(config.device)
    try:
        return _round(model, out, folders, (record, inputs), config, options, account, world)
    finally:
        world.close()


def _open(source: Path, batch: Path | None, tasks: Path | None, config: TrainConfig) -> dict[str, Folder]:
    if config.objective == "sft":
        if batch is not None or tasks is not None:
            raise ConfigError("objective sft takes one folder of tasks and no batch")
        return {"tasks": open_folder(source, schema.TASKS)}
    if batch is None:
        raise ConfigError("a batch is missing", hint="toolsample train ROLLOUTS BATCH --model M -o OUT")
    folders = {"rollouts": open_folder(source, schema.ROLLOUTS), "batch": open_folder(batch, schema.BATCH)}
    return folders | ({"tasks": open_folder(tasks, schema.TASKS)} if tasks else {})


def refuse_test_data(tasks: Folder | None, config: TrainConfig) -> None:
    """Benchmark rows are refused: a score on data that was trained on says nothing."""
    if tasks is None or config.allow_test_data:
        return
    for shard, frame in tasks.frames(["task_id", "split"]):
        test = frame.with_row_index("line__").filter(pl.col("split") == "test")
        if test.height:
            first = test.row(0, named=True)
            raise DataError(
                f"{shard.path} row {first['line__'] + 1} (task {first['task_id']}): marked as benchmark test data",
                hint="train on another split, or say --allow-test-data",
            )


def finished(out: Path, record: dict[str, Any], inputs: dict[str, str], *, overwrite: bool) -> bool:
    """Whether this very round stands there. ConfigError when another one or something foreign does."""
    if not out.exists() or overwrite:
        if out.exists() and not (out / "config.json").exists():
            raise ConfigError(f"{out}: exists and is not a checkpoint", hint="choose another output folder")
        return False
    position = checkpoint.read_position(out)
    if position is None:
        raise ConfigError(f"{out}: exists and is not a checkpoint of train", hint="choose another output folder")
    refuse_changes(out, position, record, inputs)
    return True


def refuse_changes(place: Path, position: Position, record: dict[str, Any], inputs: dict[str, str]) -> None:
    """ConfigError with the keys that differ between a checkpoint and what is asked for."""
    old = {**position.config, **{f"input {key}": value for key, value in position.inputs.items()}}
    new = {**record, **{f"input {key}": value for key, value in inputs.items()}}
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if changed:
        changes = "; ".join(f"{key} was {old.get(key)!r}, now {new.get(key)!r}" for key in changed)
        raise ConfigError(
            f"{place}: was made with other settings or inputs: {changes}",
            hint="give --overwrite to train this round anew, or another output folder",
        )


def _round(
    model: str,
    out: Path,
    folders: dict[str, Folder],
    identity: tuple[dict[str, Any], dict[str, str]],
    config: TrainConfig,
    options: Options,
    account: Account,
    world: World,
) -> Account:
    torch.manual_seed(config.seed)
    partial = out.parent / f".{out.name}.partial"
    start, position = _where_to_start(model, partial, identity, options.overwrite)
    loaded = load_policy(start, config, world)
    data = _read(folders, loaded, config, options, model)
    policy, optimizer = make_optimizer(loaded, data.temperature, config, world)
    if Path(start).is_dir():
        checkpoint.load_optimizer(Path(start), policy, optimizer)
        checkpoint.load_rng(Path(start))
    position = replace(position, config=identity[0], inputs=identity[1])
    writer = Writer(world, model, loaded.saved_dtype)
    run = Run(policy, optimizer, data, config, world, position, packed=loaded.packed, tick=options.tick)
    run.constant = _constant(folders, data, config)
    run.save = lambda now: writer.write(partial, policy, optimizer, now)
    position = train_round(run)
    dead = _dead_share(position)
    if dead == 1.0:
        position.dead_rounds += 1
        if position.dead_rounds >= DEAD_ROUNDS:
            raise StageFailure(
                f"{position.dead_rounds} rounds in a row without a group of differing rewards: nothing is learnt",
                hint="easier or harder tasks, more samples a task, or a higher temperature",
            )
    else:
        position.dead_rounds = 0
    if world.first:
        _write_tables(out, position, data, identity)
    rows, last = len(position.records), summary(position)
    position = replace(position, rounds=position.rounds + 1, done=0, metrics=[], records=[])
    writer.write(out, policy, optimizer, position)
    if world.first:
        shutil.rmtree(partial, ignore_errors=True)
    account.rows_in, account.rows_out = data.facts.height, rows
    account.dropped = {name: count for name, count in data.counts.items() if count}
    account.extra |= last | ({"warnings": "; ".join(data.warnings)} if data.warnings else {})
    return account


def _where_to_start(
    model: str, partial: Path, identity: tuple[dict[str, Any], dict[str, str]], overwrite: bool
) -> tuple[str, Position]:
    found = checkpoint.read_position(partial) if partial.is_dir() else None
    if found is not None and not overwrite:
        refuse_changes(partial, found, *identity)
        return str(partial), found
    before = checkpoint.read_position(Path(model)) if Path(model).is_dir() else None
    return model, before or Position()


def _read(folders: dict[str, Folder], loaded: Any, config: TrainConfig, options: Options, model: str) -> TrainSet:
    wanted = options.wanted_ids()
    if config.objective == "sft":
        from toolsample_cli.chat import Chat

        tasks = folders["tasks"].load()
        tasks = tasks if wanted is None else tasks.filter(pl.col("task_id").is_in(sorted(wanted)))
        data = demonstrations(
            tasks.head(options.limit or tasks.height), Chat.load(model), folders["tasks"].path, loaded.vocabulary
        )
    else:
        batch = folders["batch"].load()
        batch = batch if wanted is None else batch.filter(pl.col("task_id").is_in(sorted(wanted)))
        if options.limit is not None:  # whole groups, or their advantages would be wrong
            batch = batch.filter(pl.col("task_id").is_in(batch.head(options.limit)["task_id"].unique().to_list()))
        data = scored_rollouts(folders["rollouts"], batch, config, loaded.vocabulary)
    if not data.groups:
        raise DataError(f"{next(iter(folders.values())).path}: no rows to train on")
    if loaded.longest and data.longest > loaded.longest:
        raise DataError(f"a sequence of {data.longest} tokens is longer than the model's limit of {loaded.longest}")
    return data


def _constant(folders: dict[str, Folder], data: TrainSet, config: TrainConfig) -> int:
    asked = config.loss_length or folders.get("rollouts", folders.get("tasks")).config.get("max_new_tokens", 0)
    return int(asked) or max(len(r.completion) for g in data.groups for r in g.rollouts)


def _dead_share(position: Position) -> float:
    totals = {name: sum(line[3] for line in position.metrics if line[2] == name) for name in ("groups", "dead_groups")}
    return totals["dead_groups"] / max(totals["groups"], 1.0)


def _write_tables(
    out: Path, position: Position, data: TrainSet, identity: tuple[dict[str, Any], dict[str, str]]
) -> None:
    names = data.facts["rollout_id"].to_list()
    steps = pl.DataFrame(position.metrics, schema=schema.STEPS.schema, orient="row")
    records = [[names[row], *rest] for row, *rest in position.records]
    frames = {
        "steps": (schema.STEPS, steps),
        "records": (schema.RECORDS, pl.DataFrame(records, schema=schema.RECORDS.schema, orient="row")),
    }
    for name, (kind, frame) in frames.items():
        place = out.parent / f"{out.name}.{name}"
        with Output(place, kind, identity[0], inputs=identity[1], overwrite=True) as output:
            output.write(0, frame)
            output.finish()


def summary(position: Position) -> dict[str, Any]:
    """The round in a few numbers for the closing line."""
    values: dict[str, list[float]] = {}
    for _, _, name, value in position.metrics:
        if value is not None:
            values.setdefault(name, []).append(value)
    facts: dict[str, Any] = {"steps": len(values.get("loss", []))}
    for label, name, show in (
        ("loss", "loss", "{:.4f}"),
        ("grad norm", "grad_norm", "{:.3f}"),
        ("lr", "lr", "{:.2e}"),
        ("entropy", "entropy", "{:.3f}"),
    ):
        if values.get(name):
            facts[label] = show.format(sum(values[name]) / len(values[name]) if name != "lr" else values[name][-1])
    if values.get("ratio_first") and "base_reward" in values:
        facts["first ratio"] = f"{values['ratio_first'][0]:.4f}"
    dead, groups = sum(values.get("dead_groups", [0])), sum(values.get("groups", [0]))
    facts["dead groups"] = f"{int(dead)} of {int(groups)}"
    if refused := int(sum(values.get("refused", [0]))):
        facts["refused steps"] = refused
    return facts
