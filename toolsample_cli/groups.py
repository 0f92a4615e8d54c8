"""One task's rollouts -> one row of statistics, and how a row grows from visit to visit.

Variance is the population variance (ddof 0) everywhere, the same as in the advantage. An errored rollout
(null reward) counts in `n_error` and nowhere else. A group of one has no variance: null, not 0.
"""

from __future__ import annotations

import polars as pl

from toolsample_cli import schema
from toolsample_cli.errors import DataError

COLUMNS = [
    *("task_id", "slot_id", "shots", "source", "category", "round", "exact", "reward", "reward_min", "reward_max"),
    *(name for component in schema.COMPONENTS for name in (component, f"{component}_max")),
]
"""Columns of `scores` that the statistics need."""

PRIOR = ["slot_id", "shots", "visits", "misses", "flat_visits", "last_round"]
"""Columns of an earlier `groups` row that the next visit builds on."""

STATISTICS = [
    *("task_id", "slot_id", "shots", "source", "category", "n", "n_error", "n_exact"),
    *("reward_mean", "reward_var", "reward_min", "reward_max"),
    *(f"{component}_{kind}" for component in schema.COMPONENTS for kind in ("mean", "var")),
]
"""Columns that `statistics` makes, besides `round`."""


def statistics(scores: pl.DataFrame) -> pl.DataFrame:
    """Scores of whole groups (any order, `COLUMNS`) -> one row a task, in order of first appearance.

    Columns: `STATISTICS` and `round`. Component statistics are of component / component_max, in [0, 1], and
    null where the task has no such component (no gold call, or calls without parameters).
    Raises DataError when two forms of one task (zero-shot and few-shot) were rolled out in the same round.
    """
    components = [_ratio(name) for name in schema.COMPONENTS]
    constant = ("slot_id", "shots", "source", "category", "round", "reward_min", "reward_max")
    groups = (
        scores.lazy()
        .with_columns(components)
        .group_by("task_id", maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in constant),
            pl.col("reward").count().cast(pl.Int32).alias("n"),
            pl.col("reward").null_count().cast(pl.Int32).alias("n_error"),
            (pl.col("exact") & pl.col("reward").is_not_null()).sum().cast(pl.Int32).alias("n_exact"),
            *_moments("reward"),
            *(moment for name in schema.COMPONENTS for moment in _moments(name)),
        )
        .select(*STATISTICS, "round")
        .collect()
    )
    doubled = groups.filter(pl.col("slot_id").is_duplicated())
    if doubled.height:
        slot = doubled["slot_id"][0]
        forms = ", ".join(doubled.filter(pl.col("slot_id") == slot)["task_id"].to_list())
        raise DataError(
            f"task {slot}: two forms in one round: {forms}",
            hint="a few-shot form takes the place of its zero-shot task; roll out one of them",
        )
    return groups


def _ratio(name: str) -> pl.Expr:
    # errored rollouts may carry a zero component; only a scored one counts
    usable = (pl.col(f"{name}_max") > 0) & pl.col("reward").is_not_null()
    return pl.when(usable).then((pl.col(name) / pl.col(f"{name}_max")).clip(0.0, 1.0)).alias(name)


def _moments(name: str) -> tuple[pl.Expr, pl.Expr]:
    value = pl.col(name)
    # equal values can leave a variance of rounding errors, and "flat" must mean exactly 0
    spread = pl.when(value.max() == value.min()).then(0.0).otherwise(value.var(ddof=0))
    return value.mean().alias(f"{name}_mean"), pl.when(value.count() > 1).then(spread).alias(f"{name}_var")


def visited(groups: pl.DataFrame, prior: pl.DataFrame | None) -> pl.DataFrame:
    """Statistics of this round's visits, grown by `prior` (`PRIOR` columns, at most one row a slot).

    Adds last_round, visits, misses and flat_visits; drops `round`. A visit that errored throughout leaves
    both counters as they were. Raises DataError when the prior already saw this round or a later one.
    """
    if prior is None:
        prior = pl.DataFrame(schema={name: schema.GROUPS.schema[name] for name in PRIOR})
    old = prior.rename({name: f"{name}_before" for name in PRIOR if name != "slot_id"})
    joined = groups.join(old, on="slot_id", how="left", maintain_order="left")
    _refuse_same_round(joined)
    same_form = pl.col("shots_before") == pl.col("shots")
    before = pl.when(same_form).then(pl.col("misses_before")).fill_null(0)
    n, n_exact = pl.col("n"), pl.col("n_exact")
    flat = (n > 0) & ((n_exact == 0) | (n_exact == n))
    # all right after all wrong starts a new count: the earlier visit's side shows in its misses
    same_side = (n_exact == 0) == (pl.col("misses_before") > 0)
    flat_before = pl.when(same_form & same_side).then(pl.col("flat_visits_before")).fill_null(0)
    return joined.with_columns(
        last_round=pl.col("round"),
        visits=pl.col("visits_before").fill_null(0) + 1,
        misses=pl.when(n_exact > 0).then(0).otherwise(before + n).cast(pl.Int32),
        flat_visits=pl.when(n == 0)
        .then(pl.when(same_form).then(pl.col("flat_visits_before")).fill_null(0))
        .when(flat)
        .then(flat_before + 1)
        .otherwise(0)
        .cast(pl.Int32),
    ).select(*STATISTICS, "last_round", "visits", "misses", "flat_visits")


def _refuse_same_round(joined: pl.DataFrame) -> None:
    again = joined.filter(pl.col("last_round_before") >= pl.col("round"))
    if again.height:
        row = again.row(0, named=True)
        raise DataError(
            f"task {row['slot_id']}: these scores are of round {row['round']}, "
            f"but the history already holds its round {row['last_round_before']}",
            hint="--history takes the groups of the round before",
        )
