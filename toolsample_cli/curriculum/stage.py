"""The curriculum stage: groups and scores of a round, the corpus and the state -> batch, next tasks, next state.

`OUT/batch` has one shard per score shard, `OUT/tasks` the drawn tasks in order of their slot, `OUT/state.json` is
written last. The corpus and the groups are streamed; what stays in memory is 8 bytes per task and the draw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.curriculum import hard_tasks, mastery
from toolsample_cli.curriculum.corpus import LEAVE_OUT, Corpus
from toolsample_cli.curriculum.demonstrations import Sources
from toolsample_cli.curriculum.mastery import State
from toolsample_cli.curriculum.next_tasks import next_tasks
from toolsample_cli.curriculum.sampling import Mix
from toolsample_cli.errors import ConfigError, DataError, EmptyBatch
from toolsample_cli.hashing import digest
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, open_folder, refuse_nested
from toolsample_cli.shards.repeats import Repeats
from toolsample_cli.shards.sealed import read_sealed, write_sealed
from toolsample_cli.shards.test_rows import refuse_test_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options

DEAD_ROUNDS = 3
"""From so many rounds in a row without a kept group on, the error says what to change."""

ROUND = [
    *("task_id", "slot_id", "shots", "n", "n_exact", "reward_mean", "reward_var", "keep", "reason", "misses"),
    *("last_round", *(f"{name}_mean" for name in schema.COMPONENTS)),
]


@dataclass(frozen=True)
class Paths:
    """What the stage reads: the corpus; groups and scores of the round (neither for the first draw); the state.

    `tasks` are the round's tasks, looked through for test data; `rollouts` give own demonstrations their thoughts,
    `records` of the latest training the losses for `mastery = loss`.
    """

    corpus: Path
    groups: Path | None = None
    scores: Path | None = None
    tasks: Path | None = None
    state: Path | None = None
    rollouts: Path | None = None
    records: Path | None = None


@dataclass(frozen=True)
class Inputs:
    """The paths, opened."""

    corpus: Corpus
    groups: Folder | None
    scores: Folder | None
    rollouts: Folder | None
    records: Folder | None

    @classmethod
    def open(cls, paths: Paths, options: Options) -> Inputs:
        """Open what is given; the errors are those of `open_folder` and `Corpus.open`."""
        corpus = Corpus.open(paths.corpus, options)
        kinds = (schema.GROUPS, schema.SCORES, schema.ROLLOUTS, schema.RECORDS)
        given = (paths.groups, paths.scores, paths.rollouts, paths.records)
        return cls(
            corpus, *(open_folder(path, kind) if path else None for path, kind in zip(given, kinds, strict=True))
        )

    def digests(self) -> dict[str, str]:
        """Name -> digest of everything given."""
        folders = {name: getattr(self, name) for name in ("groups", "scores", "rollouts", "records")}
        return {"corpus": self.corpus.folder.digest} | {name: f.digest for name, f in folders.items() if f}


def run(paths: Paths, out: Path, config: CurriculumConfig, options: Options) -> Account:
    """Take in one round and draw the next. Exit code 5, with everything written, when no group was kept."""
    account = Account("curriculum")
    mastery.check(config)
    refuse_nested(out)
    mix = Mix.parse(config.mix)
    _refuse_flags(paths, options)
    inputs = Inputs.open(paths, options)
    corpus = inputs.corpus
    if paths.tasks:
        refuse_test_folder(open_folder(paths.tasks, schema.TASKS), hint=LEAVE_OUT)
    fresh = replace(State(corpus.identity), weights=mastery.first_weights(config))
    state = read_state(paths.state, corpus, config) if paths.state else fresh
    if options.dry_run:
        account.rows_in = corpus.rows
        account.extra["would draw"] = min(config.tasks_per_round, corpus.rows)
        return account
    made_from = {**inputs.digests(), "state": digest(state.record())}
    record = {**as_record(config), **options.selection()}
    weights, kept = state.weights, None
    if inputs.groups and inputs.scores:
        state, kept = _take_in(state, inputs, config, account)
    sources = Sources(corpus.folder, inputs.groups, inputs.scores, inputs.rollouts)
    drawn = next_tasks(corpus, sources, state, config, mix)  # before anything is written: it refuses what is foreign
    if kept is not None:
        output = Output(out / "batch", schema.BATCH, record, made_from, options.overwrite, lock=options.lock)
        account.rows_out = _write_batch(inputs.scores, kept, weights, config, output, options)
    with Output(out / "tasks", schema.TASKS, record, made_from, options.overwrite, lock=options.lock) as output:
        for number, frame in enumerate(drawn.shards()):
            if not output.done(number):
                output.write(number, frame)
        output.counts.update(drawn.counts)
        output.finish()
    write_sealed(out / "state.json", state.record())
    account.wrote = out
    account.extra.update(drawn=drawn.rows.height, **drawn.counts, weights=state.weights)
    _refuse_dead(state, inputs.groups)
    return account


def _refuse_flags(paths: Paths, options: Options) -> None:
    if (paths.groups is None) != (paths.scores is None):
        raise ConfigError("--groups and --scores belong together: the batch is made from both")
    if paths.scores is None and (paths.rollouts or paths.records):
        raise ConfigError("--rollouts and --records belong to a round: give its --groups and --scores, too")
    options.refuse_slice("curriculum", "it draws once over the whole corpus; filter and score take it")


def read_state(path: Path, corpus: Corpus, config: CurriculumConfig) -> State:
    """The state in a file. DataError when it is none, belongs to another corpus or weighs nothing."""
    record = read_sealed(path, hint="--state takes the state.json of the round before, as it was written")
    try:
        state = State.read(record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: not a curriculum state: {error!r}", hint="take one as curriculum wrote it") from None
    if state.corpus != corpus.identity:
        raise DataError(
            f"{path}: belongs to another corpus ({state.corpus}); {corpus.folder.path} is {corpus.identity}",
            hint="give the corpus the run was started with, or start again without --state",
        )
    if config.weighting != "stage" and not any(state.weights.values()):
        raise DataError(
            f"{path}: its weights sum to nothing, so that only the format would be rewarded",
            hint="only weighting = stage begins like this; keep it, or start again without --state",
        )
    return state


def _take_in(state: State, inputs: Inputs, config: CurriculumConfig, account: Account) -> tuple[State, pl.Series]:
    """The state after this round, and the tasks whose rollouts are trained on."""
    round, found = _round_groups(inputs.groups, inputs.scores, state)
    kept = found.filter(pl.col("keep"))
    account.rows_in = int(found["n"].sum())
    account.dropped = dict(found.filter(~pl.col("keep"))["reason"].value_counts().iter_rows())
    measured = mastery.measure(found)
    if config.mastery == "loss":
        trained = state.round >= 0 and not state.dead_rounds
        if trained and inputs.records is None:
            raise ConfigError("mastery = loss needs --records, the records of the latest training")
        by_loss = mastery.measure_loss(inputs.records.load()) if inputs.records else {}
        measured = {name: measured[name] for name in measured if name not in mastery.WEIGHTED} | by_loss
    entry = {**_summary(found, kept, round), "weights": state.weights, "measured": measured}
    state = replace(state, round=round, dead_rounds=0 if kept.height else state.dead_rounds + 1)
    state = mastery.advance(state, measured, config)
    state, moves = hard_tasks.update(state, found, config)
    return replace(state, log=(*state.log, {**entry, **moves})), kept["task_id"]


def _round_groups(groups: Folder, scores: Folder, state: State) -> tuple[int, pl.DataFrame]:
    rounds, rollouts = set(), Repeats(scores.path, "rollout")
    for shard, frame in scores.frames(["round", "rollout_id"]):
        rounds |= set(frame["round"].unique().to_list())
        rollouts.add(shard.path, frame["rollout_id"])
    rollouts.refuse()
    if len(rounds) != 1:
        raise DataError(f"{scores.path}: scores of one round expected, found {sorted(rounds) or 'no rows'}")
    round = rounds.pop()
    if round <= state.round:
        raise DataError(
            f"{scores.path}: scores of round {round}, but the state already took in round {state.round}",
            hint="--state takes the state.json of the round before",
        )
    found = pl.concat(
        [frame.filter(pl.col("last_round") == round) for _, frame in groups.frames(ROUND)]
        or [pl.DataFrame(schema={name: schema.GROUPS.schema[name] for name in ROUND})]
    )
    if not found.height:
        raise DataError(
            f"{groups.path}: no group of round {round}, which {scores.path} is of",
            hint="give the groups of these scores",
        )
    return round, found


def _write_batch(
    scores: Folder,
    kept: pl.Series,
    weights: Mapping[str, float],
    config: CurriculumConfig,
    output: Output,
    options: Options,
) -> int:
    columns = ["rollout_id", "task_id", "exact", "self_example", "reward"]
    columns += [name for component in schema.COMPONENTS for name in (component, f"{component}_max")]
    columns += ["extra_json"] if config.reward else []
    rows = 0
    options.expect(scores.rows)
    with output:
        for shard, frame in scores.frames(columns):
            options.tick(frame.height)
            frame = frame.filter(pl.col("reward").is_not_null(), pl.col("task_id").is_in(kept.implode()))
            rows += frame.height
            if config.reward:
                frame = frame.with_columns(trained_on=_further(frame, config.reward, scores.path))
            if frame.height and not output.done(shard.number):
                output.write(shard.number, mastery.batch(frame, weights, config.bonus))
        output.finish()
    return rows


def _further(scores: pl.DataFrame, name: str, path: Path) -> pl.Series:
    """One further reward of every row; DataError where it was not scored."""
    further = [json.loads(text) for text in scores["extra_json"]]
    values = [{**found.get("rewards", {}), **found.get("components", {})}.get(name) for found in further]
    if None in values:
        raise DataError(
            f"{path}: {scores['rollout_id'][values.index(None)]} has no reward {name!r} in extra_json",
            hint=f"score again with --rewards {name}, or with --component FILE.py:{name}",
        )
    return pl.Series(values, dtype=pl.Float64)


def _summary(found: pl.DataFrame, kept: pl.DataFrame, round: int) -> dict[str, Any]:
    scored = found.filter(pl.col("n") > 0)
    total = int(scored["n"].sum())

    def share(column: str) -> float | None:
        return round_(float((scored[column] * scored["n"]).sum()) / total) if total else None

    return {
        "round": round,
        "groups": found.height,
        "kept": kept.height,
        "flat": scored.filter(pl.col("reward_var") == 0).height,
        "few_shot": found.filter(pl.col("shots") > 0).height,
        "reward_mean": share("reward_mean"),
        "exact": round_(int(scored["n_exact"].sum()) / total) if total else None,
        "unsolved": scored.filter(pl.col("n_exact") == 0).height,
    }


def round_(value: float) -> float:
    """Six decimals: enough for a log that people read."""
    return round(value, 6)


def _refuse_dead(state: State, groups: Folder | None) -> None:
    if groups is None or not state.dead_rounds:
        return
    raise EmptyBatch(
        f"{groups.path}: no group of round {state.round} was kept, the batch is empty", hint=_advice(state)
    )


def _advice(state: State) -> str:
    last: Mapping[str, Any] = state.log[-1]
    if state.dead_rounds < DEAD_ROUNDS:
        return "next tasks and state are written: skip `train` and go on with the next round"
    easy = (last["exact"] or 0) > 0.5
    change = (
        "the tasks are solved: draw harder ones" if easy else "the tasks are too hard: --hard fewshot, easier tasks"
    )
    return f"{state.dead_rounds} rounds without a kept group; {change}, more rollouts per task, or another --method"
