"""Rollouts and batch (or gold answers) and a model to the next checkpoint, step metrics and a record per rollout.

The checkpoint appears whole or not at all; `<out>.steps` and `<out>.records` stand beside it. Rerunning a finished
round does nothing; an interrupted one goes on from its last saved step, to the bit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from toolsample_cli.config import TrainConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError, EmptyBatch, StageFailure
from toolsample_cli.json_types import Json
from toolsample_cli.models.chat import Chat, load_tokenizer
from toolsample_cli.models.digests import model_digest
from toolsample_cli.models.loading import set_threads
from toolsample_cli.models.prompting import prompting_of
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import check_room
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.shards.reading import Folder, open_folder, refuse_nested
from toolsample_cli.stage import Account, Options
from toolsample_cli.train import adapter, checkpoint, preconditions
from toolsample_cli.train.checkpoint import Position, Writer, no_records
from toolsample_cli.train.data import TrainSet, scored_rollouts
from toolsample_cli.train.distributed import World
from toolsample_cli.train.imitation import demonstrations, right_rollouts
from toolsample_cli.train.loss import rule_of
from toolsample_cli.train.plain_prompts import prompts_of
from toolsample_cli.train.policy import Policy
from toolsample_cli.train.schedule import Passes, outlook, passes_of
from toolsample_cli.train.setup import (
    Loaded,
    load_base,
    load_policy,
    make_optimizer,
    make_policy,
)
from toolsample_cli.train.step_tables import dead_share, summary, write_tables
from toolsample_cli.train.subtask_spans import TokenSpans
from toolsample_cli.train.tracking import TrackedRun, check_trackers, open_trackers
from toolsample_cli.train.trainer import Feed, Run, anchor_rollouts, off_policy_line, train_round

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
    tracked: TrackedRun | None = None,
) -> Account:
    """Train one round; see `toolsample train --help`. `source` is rollouts, or tasks (sft); `batch` scores (sft).

    `tracked`: the run of several rounds that trackers log to; by default a run of its own, named as `out`'s folder.
    """
    out = Path(out)
    options.refuse_slice("train", "torchrun spreads it over devices")
    refuse_nested(out, source, batch, tasks)
    folders = _open(source, batch, tasks, config)
    preconditions.refuse_test_data(folders.get("tasks"), config)
    if config.kl > 0 and not config.reference and not config.lora_rank:
        raise ConfigError("kl > 0 needs a reference policy", hint="add --reference MODEL")
    adapter.check_adapter(config)
    check_trackers(config.track)
    if config.keep and not config.save_every:
        raise ConfigError("keep > 0 keeps saved steps, but none are saved", hint="add --save-every N")
    account = Account("train", wrote=None if options.dry_run else out)
    record = {**as_record(config), **options.selection()}
    record["prompting"] = _prompting(folders)
    inputs = {name: folder.digest for name, folder in folders.items()} | {"model": model_digest(model)}
    before = (checkpoint.read_position(Path(model)) if Path(model).is_dir() else None) or Position()
    preconditions.refuse_other_base(model, before, config)
    if options.dry_run:
        account.rows_in = next(folders[name].rows for name in ("batch", "scores", "tasks") if name in folders)
        account.extra["would train on"] = f"{account.rows_in} rows in {config.steps * config.epochs} steps"
        account.extra |= _in_force(config, _passes(folders, before, config))
        return account
    with _lock(out, options):
        if preconditions.finished(out, record, inputs, overwrite=options.overwrite):
            shutil.rmtree(checkpoint.partial_of(out), ignore_errors=True)  # of a run killed right after it finished
            account.extra["nothing to do"] = "this round is finished"
            return account
        if "batch" in folders and not folders["batch"].rows:
            raise EmptyBatch(
                f"{batch}: no rows to train on", hint="skip this round's training, go on with the next draw"
            )
        check_room(out, preconditions.bytes_needed(model, config), what="a checkpoint and its optimizer")
        world = World.start(config.device)
        try:
            tracked = tracked or TrackedRun(out.parent, out.parent.resolve().name, resumed=False)
            return _Round(model, out, folders, record, inputs, config, options, world, before, tracked).go(account)
        finally:
            world.close()


@contextlib.contextmanager
def _lock(out: Path, options: Options) -> Iterator[None]:
    """The checkpoint for this process alone, under torchrun for the first; what a killed run left is swept first."""
    if int(os.environ.get("RANK", "0")):
        yield
        return
    with FolderLock(out, out.parent / f"{out.name}.tmp", enabled=options.lock):
        checkpoint.sweep(out)
        yield


def _prompting(folders: dict[str, Folder]) -> Json:
    """How the policy was asked, as its rollouts or the tasks of an SFT round tell."""
    if "rollouts" in folders:
        return folders["rollouts"].config.get("prompting")
    asked = prompting_of(folders["tasks"], self_examples=False)
    return asked.record() if asked else None


def _passes(folders: dict[str, Folder], before: Position, config: TrainConfig) -> Passes:
    counts = folders["batch"].counts if "batch" in folders else {}
    return passes_of(counts, before.rounds, config)


def _in_force(config: TrainConfig, passes: Passes) -> dict[str, str]:
    """The numbers that a user may have left open."""
    facts = {"learning rate": outlook(config, passes)}
    return facts if config.objective == "sft" else facts | {"loss form": rule_of(config).describe()}


def _open(source: Path, batch: Path | None, tasks: Path | None, config: TrainConfig) -> dict[str, Folder]:
    if config.objective == "sft":
        if batch is None and tasks is not None:
            raise ConfigError("objective sft takes tasks, or rollouts and their scores; --tasks is for these")
        if batch is None:
            return {"tasks": open_folder(source, schema.TASKS)}
        folders = {"rollouts": open_folder(source, schema.ROLLOUTS), "scores": open_folder(batch, schema.SCORES)}
        return folders | ({"tasks": open_folder(tasks, schema.TASKS)} if tasks else {})
    if batch is None:
        raise ConfigError("a batch is missing", hint="toolsample train ROLLOUTS BATCH --model M -o OUT")
    folders = {"rollouts": open_folder(source, schema.ROLLOUTS), "batch": open_folder(batch, schema.BATCH)}
    return folders | ({"tasks": open_folder(tasks, schema.TASKS)} if tasks else {})


@dataclass
class _Round:
    """One round from its opened inputs to the checkpoint on disk."""

    model: str
    out: Path
    folders: dict[str, Folder]
    record: dict[str, Any]
    inputs: dict[str, str]
    config: TrainConfig
    options: Options
    world: World
    before: Position
    tracked: TrackedRun

    @property
    def partial(self) -> Path:
        """Where an unfinished round's last saved step stands."""
        return checkpoint.partial_of(self.out)

    def go(self, account: Account) -> Account:
        """Train and write; fills the account."""
        torch.manual_seed(self.config.seed)
        # a step checkpoint is taken as a model: the rest of its own round is not this one's
        before = replace(self.before, done=0, metrics=[], records=no_records())
        base = before.base if self.config.lora_rank else None
        self.options.phase("loading the model")
        loaded = load_policy(self.model, self.config, self.world, base)
        set_threads(self.config.threads, loaded.parameters, self.world.device)
        tokenizer = load_tokenizer(self.model)
        self.options.phase("reading the batch")
        data = self._data(loaded, tokenizer)
        if before.base and not self.config.lora_rank:
            data.warnings.append(
                f"{self.model} was trained as an adapter; it is merged, and all weights are trained now"
            )
        run = self._prepare(loaded, data, before, base, tokenizer)
        writer = Writer(self.world, self.model, loaded.saved_dtype, self.config.merge)
        try:
            self.options.phase("training")
            position = train_round(run)
        finally:
            for tracker in run.trackers:
                tracker.close()
        self.options.phase("writing the checkpoint")
        self._count_dead(position, before)
        if self.world.first:
            write_tables(self.out, position, data.facts["rollout_id"], lock=self.options.lock)
        account.rows_in, account.rows_out = data.facts.height, position.records.height
        account.dropped = {name: count for name, count in data.counts.items() if count}
        account.extra |= summary(position, sft=self.config.objective == "sft")
        account.extra |= _in_force(self.config, run.passes)
        if data.off_policy:
            account.extra["under the plain prompt"] = off_policy_line(run)
        account.extra |= {"warnings": "; ".join(data.warnings)} if data.warnings else {}
        position = replace(position, rounds=position.rounds + 1, done=0, metrics=[], records=no_records())
        writer.write(self.out, run.policy, run.optimizer, position)
        if self.world.first:
            shutil.rmtree(self.partial, ignore_errors=True)
        return account

    def _data(self, loaded: Loaded, tokenizer: Any) -> TrainSet:
        wanted, limit = self.options.wanted_ids(), self.options.limit
        if self.config.objective == "sft" and "scores" in self.folders:
            rollouts, scores = self.folders["rollouts"], self.folders["scores"]
            warnings = preconditions.refuse_other_tokenizer(rollouts, self.model, tokenizer)
            most = self.config.right_per_task
            data = right_rollouts(rollouts, scores, most, loaded.vocabulary, wanted, limit)
            data.warnings += warnings
        elif self.config.objective == "sft":
            folder = self.folders["tasks"]
            tasks = folder.load()
            tasks = tasks if wanted is None else tasks.filter(pl.col("task_id").is_in(sorted(wanted)))
            tasks = tasks if limit is None else tasks.head(limit)
            data = demonstrations(tasks, Chat(tokenizer), folder.path, loaded.vocabulary)
        else:
            rollouts = self.folders["rollouts"]
            warnings = preconditions.refuse_other_tokenizer(rollouts, self.model, tokenizer)
            batch = self.folders["batch"].load()
            batch = batch if wanted is None else batch.filter(pl.col("task_id").is_in(sorted(wanted)))
            if limit is not None:  # whole groups, or their advantages would be wrong
                batch = batch.filter(pl.col("task_id").is_in(batch.head(limit)["task_id"].unique().to_list()))
            plain = self.folders.get("tasks")
            prompts = None if plain is None else partial(prompts_of, plain, Chat(tokenizer))
            data = scored_rollouts(rollouts, batch, self.config, loaded.vocabulary, prompts)
            data.warnings = warnings + data.warnings
            by_pass = self.config.lr_schedule != "constant" and self.config.lr_decay_unit == "pass"
            if by_pass and "passes" not in self.folders["batch"].counts:
                data.warnings.append(
                    "the batch does not say how far the corpus was gone through: a round counts as a pass"
                )
        if not data.groups:
            raise DataError(f"{next(iter(self.folders.values())).path}: no rows to train on")
        if loaded.longest and data.longest > loaded.longest:
            raise DataError(f"a sequence of {data.longest} tokens is longer than the model's limit of {loaded.longest}")
        return data

    def _prepare(self, loaded: Loaded, data: TrainSet, before: Position, base: str | None, tokenizer: Any) -> Run:
        config, world, start = self.config, self.world, self.model
        policy = make_policy(loaded, self.model, data.temperature, world)
        found = self._resumable()
        if config.keep:
            self._own_steps(found)
        anchored = config.objective == "grpo" and (config.old_policy == "recompute" or bool(data.off_policy))
        if anchored:
            feed = Feed(data, config, world, loaded.packed)
            anchor_rollouts(feed, policy, every=config.old_policy == "recompute")
        if found is not None:  # anchors belong to the start of the round, weights to where it stopped
            start = str(self.partial)
            where = (base or self.model) if config.lora_rank else None
            policy = make_policy(load_policy(start, config, world, where), start, data.temperature, world)
        optimizer = make_optimizer(policy, config)
        if Path(start).is_dir() and (found is not None or bool(before.base) == bool(config.lora_rank)):
            checkpoint.load_optimizer(Path(start), policy, optimizer)
            checkpoint.load_rng(Path(start))
        adapted = (base or self.model) if config.lora_rank else None
        writer = Writer(world, self.model, loaded.saved_dtype, config.merge)
        return Run(
            data,
            config,
            world,
            loaded.packed,
            policy=policy,
            optimizer=optimizer,
            position=replace(found or before, config=self.record, inputs=self.inputs, base=adapted),
            passes=_passes(self.folders, before, config),
            constant=self._constant(data),
            save=lambda now: self._save(writer, policy, optimizer, now),
            tick=self.options.tick,
            expect=self.options.expect,
            reference=self._reference(data),
            anchored=anchored,
            spans=TokenSpans(tokenizer).of if config.subtasks and config.objective == "grpo" else None,
            trackers=open_trackers(config.track, self.tracked, self.record) if world.first else (),
        )

    def _reference(self, data: TrainSet) -> Policy | None:
        config = self.config
        if not config.kl or not config.reference:
            return None
        plain = replace(config, lora_rank=0, lora_4bit=False)
        loaded = load_base(config.reference, plain, self.world)
        return make_policy(loaded, config.reference, data.temperature, self.world).eval()

    def _save(self, writer: Writer, policy: Policy, optimizer: torch.optim.Optimizer, now: Position) -> None:
        writer.write(self.partial, policy, optimizer, now)
        if self.config.keep and self.world.first:
            checkpoint.keep_step(self.partial, self.out, now.step, self.config.keep)

    def _own_steps(self, found: Position | None) -> None:
        """Step checkpoints beside the output are this round's, or the user says that they may go."""
        strange = [] if found is not None else checkpoint.kept_steps(self.out)
        if strange and not self.options.overwrite:
            raise ConfigError(
                f"{strange[0]}: there is a step checkpoint of another round",
                hint="move or delete it, give --overwrite, or choose another output folder",
            )
        if not self.world.first:
            return
        for place in strange:
            checkpoint.remove(place)
        if found is not None and self.config.keep:  # killed between saving and keeping
            checkpoint.keep_step(self.partial, self.out, found.step, self.config.keep)

    def _resumable(self) -> Position | None:
        found = checkpoint.read_position(self.partial) if self.partial.is_dir() else None
        if found is None or self.options.overwrite:
            return None
        preconditions.refuse_another_round(self.partial, found, self.record, self.inputs)
        return found

    def _constant(self, data: TrainSet) -> int:
        made_with = next(iter(self.folders.values())).config
        asked = self.config.loss_length or int(made_with.get("max_new_tokens", 0) or 0)
        return asked or int(data.groups.tokens_R.max())

    def _count_dead(self, position: Position, before: Position) -> None:
        position.dead_rounds = before.dead_rounds + 1 if dead_share(position) == 1.0 else 0
        if position.dead_rounds >= DEAD_ROUNDS:
            raise StageFailure(
                f"{position.dead_rounds} consecutive rounds without a group of differing rewards: nothing is learnt",
                hint="easier or harder tasks, more samples per task, or a higher temperature",
            )
