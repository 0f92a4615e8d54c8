"""Takes one round in: its groups -> the next state, a line for its log, and the tasks that are trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum import activation, hard_tasks, mastery
from toolsample_cli.curriculum.corpus import Corpus
from toolsample_cli.curriculum.state import WEIGHTED, State
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder
from toolsample_cli.shards.repeats import Repeats
from toolsample_cli.shards.sealed import read_sealed
from toolsample_cli.stage import Account

DEAD_ROUNDS = 3
"""From so many rounds in a row without a kept group on, the error says what to change."""

ROUND = [
    *("task_id", "slot_id", "shots", "n", "n_exact", "reward_mean", "reward_var", "keep", "reason", "misses"),
    *("last_round", *(f"{name}_mean" for name in schema.COMPONENTS)),
]


@dataclass(frozen=True)
class RoundData:
    """Groups and scores of one round, and the records of the latest training where they are given."""

    groups: Folder
    scores: Folder
    records: Folder | None = None


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


def take_in(state: State, round: RoundData, config: CurriculumConfig, account: Account) -> tuple[State, pl.Series]:
    """The state after this round, and the tasks whose rollouts are trained on."""
    number, found = _groups_of_round(round.groups, round.scores, state)
    kept = found.filter(pl.col("keep"))
    account.rows_in = int(found["n"].sum())
    account.dropped = dict(found.filter(~pl.col("keep"))["reason"].value_counts().iter_rows())
    entry = _summary(found, kept, number)
    by_score = mastery.measure(found)
    by_loss = mastery.measure_loss(round.records.load()) if round.records else {}
    if config.mastery == "loss" and state.round >= 0 and not state.dead_rounds and round.records is None:
        raise ConfigError("mastery = loss needs --records, the records of the latest training")
    measured = by_score
    if config.mastery == "loss":
        measured = {name: value for name, value in by_score.items() if name not in WEIGHTED} | by_loss
    entry |= {"weights": state.weights, "measured": measured, "mastery by score": by_score}
    entry |= {"mastery by loss": by_loss} if by_loss else {}
    account.extra.update(
        {name: _short(entry[name]) for name in ("mastery by score", "mastery by loss") if name in entry}
    )
    after = replace(
        state,
        round=number,
        task_visits=state.task_visits + found.height,
        visited=round.groups.rows,
        dead_rounds=0 if kept.height else state.dead_rounds + 1,
    )
    after = activation.after_round(after, entry["reward_mean"], found.height, config)
    after = mastery.advance(after, measured, config)
    after, moves = hard_tasks.update(after, found, config)
    after = hard_tasks.end_of_pass(state, after, config)
    return replace(after, log=(*after.log, {**entry, "passes": after.passes, **moves})), kept["task_id"]


def _short(values: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in values.items())


def _groups_of_round(groups: Folder, scores: Folder, state: State) -> tuple[int, pl.DataFrame]:
    rounds: set[int] = set()
    rollouts = Repeats(scores.path, "rollout")
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


def _summary(found: pl.DataFrame, kept: pl.DataFrame, round: int) -> Row:
    scored = found.filter(pl.col("n") > 0)
    total = int(scored["n"].sum())
    hints = pl.col("task_id").str.ends_with("@hint")
    return {
        "round": round,
        "groups": found.height,
        "kept": kept.height,
        "flat": scored.filter(pl.col("reward_var") == 0).height,
        "few_shot": found.filter(pl.col("shots") > 0, ~hints).height,
        "hint": found.filter(hints).height,
        "reward_mean": _rounded(scored.select((pl.col("reward_mean") * pl.col("n")).sum()).item(), total),
        "exact": _rounded(scored.select(pl.col("n_exact").sum()).item(), total),
        "unsolved": scored.filter(pl.col("n_exact") == 0).height,
    }


def _rounded(value: float, total: int) -> float | None:
    """A share with six decimals, enough for a log that people read; None of nothing."""
    return round(float(value) / total, 6) if total else None


def dead_advice(state: State) -> str:
    """What to do about a round without a kept group; from the third in a row on, what to change."""
    last = state.log[-1]
    if state.dead_rounds < DEAD_ROUNDS:
        return "next tasks and state are written: skip `train` and go on with the next round"
    easy = (last["exact"] or 0) > 0.5
    change = (
        "the tasks are solved: draw harder ones" if easy else "the tasks are too hard: --hard fewshot, easier tasks"
    )
    return f"{state.dead_rounds} rounds without a kept group; {change}, more rollouts per task, or another --method"
