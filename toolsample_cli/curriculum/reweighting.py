"""A round's scores -> the rewards to train on: sub-task weights, bonus and what the update conditions on."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum.state import WEIGHTED
from toolsample_cli.errors import DataError
from toolsample_cli.shards.reading import Folder
from toolsample_cli.shards.schema import BATCH, COMPONENTS
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options

COLUMNS = ["rollout_id", "task_id", "slot_id", "shots", "exact", "self_example", "reward"]
COLUMNS += [name for component in COMPONENTS for name in (component, f"{component}_max")]
"""Columns of `scores` that a batch is made from."""


def write_batch(
    scores: Folder,
    kept: pl.Series,
    weights: Mapping[str, float],
    config: CurriculumConfig,
    output: Output,
    options: Options,
) -> int:
    """Shards of `batch` from the rollouts of the kept tasks, one per score shard; returns the rows."""
    rows = 0
    options.expect(scores.rows)
    for shard, frame in scores.frames([*COLUMNS, *(["extra_json"] if config.reward else [])]):
        options.tick(frame.height)
        frame = frame.filter(pl.col("reward").is_not_null(), pl.col("task_id").is_in(kept.implode()))
        rows += frame.height
        if config.reward:
            frame = frame.with_columns(trained_on=_further(frame, config.reward, scores.path))
        if frame.height and not output.done(shard.number):
            output.write(shard.number, batch(frame, weights, config.bonus, config.update_on))
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


def batch(
    scores: pl.DataFrame, weights: Mapping[str, float | pl.Expr], bonus: float, update_on: str = "shown"
) -> pl.DataFrame:
    """Scored rollouts of kept groups -> rows of `batch`, in the order given; weights may be columns of `scores`.

    reward = format + (-3 + 6 sum_k w_k R_k / sum_k w_k R_k^max) + bonus * self_example. With all weights 1 the
    first part is the base reward to its last bit. Where the weights leave nothing of a task's maxima, its reward
    is the format alone. A column `trained_on` takes the place of all but the bonus. With `update_on` plain, rollouts
    of few-shot and hint prompts are marked to be trained on under the plain prompt of their slot.
    """
    extra = pl.when(pl.col("self_example").fill_null(False)).then(bonus).otherwise(0.0)
    even = all(not isinstance(weights[name], pl.Expr) and weights[name] == 1 for name in WEIGHTED)
    chosen = {name: w if isinstance(w, pl.Expr) else pl.lit(float(w)) for name, w in weights.items()}
    earned = pl.col("reward") if even else _weighted(chosen)
    if "trained_on" in scores.columns:
        earned = pl.col("trained_on")
    return scores.with_columns(
        reward=earned + extra,
        base_reward=pl.col("reward"),
        bonus=extra,
        exact=pl.col("exact").fill_null(False),
        prompt=pl.when(pl.lit(update_on == "plain") & (pl.col("shots") > 0))
        .then(pl.lit("plain"))
        .otherwise(pl.lit("shown")),
        plain_task_id=pl.col("slot_id"),
        **{name: _scaled(name) for name in COMPONENTS},
        **{f"weight_{name}": chosen[name] for name in WEIGHTED},
    ).select(list(BATCH.schema))


def _weighted(weights: Mapping[str, pl.Expr]) -> pl.Expr:
    """`combine` of score for a whole frame; where the weights leave nothing to earn, the format alone."""
    earned, possible = (
        functools.reduce(operator.add, (weights[name] * pl.col(f"{name}{ending}") for name in WEIGHTED))
        for ending in ("", "_max")
    )
    share = earned / possible  # first, so that it is exactly 1 where all is earned
    return pl.when(possible > 0).then(pl.col("format") + (6.0 * share - 3.0)).otherwise(pl.col("format"))


def _scaled(name: str) -> pl.Expr:
    share = (pl.col(name) / pl.col(f"{name}_max")).clip(0.0, 1.0)
    return pl.when(pl.col(f"{name}_max") > 0).then(share)
