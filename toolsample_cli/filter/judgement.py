"""What the selection methods share: the form of a judgement and the statistics they are all written in.

Every statistic uses the task's own bounds [a, b], so that items without a gold call ([0, 1]) and call items
([-3, 4]) can be compared. All are polars expressions over the columns of `groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter.run_state import RunState

MEAN, VAR = pl.col("reward_mean"), pl.col("reward_var")
LOW, HIGH = pl.col("reward_min"), pl.col("reward_max")
N, N_EXACT = pl.col("n"), pl.col("n_exact")


@dataclass(frozen=True)
class Judgement:
    """One method's answer for every group, as expressions.

    `importance` >= 0 is the relative wish to draw the task again, `keep` whether its rollouts are trained on,
    `reason` one word; `potential` is stored beside them. Groups without a scored rollout are decided by `decide`.
    """

    importance: pl.Expr
    keep: pl.Expr
    reason: pl.Expr
    potential: pl.Expr


@dataclass(frozen=True)
class Method:
    """A row of the table: the rule, how its tasks are drawn (`epochs`, `skips`, `importance`, `rank`) and its traits.

    `floored`: the config's epsilon is added to its importance. `delayed`: the activation rule of the curriculum holds
    for it. `whole`: groups without spread stay in its batch.
    """

    rule: Callable[[FilterConfig, RunState], Judgement]
    draw: str
    floored: bool = False
    delayed: bool = False
    whole: bool = False


def state() -> pl.Expr:
    """(b - mean) / (b - a) in [0, 1]: 1 unlearned, 0 mastered; null without a scored rollout."""
    return ((HIGH - MEAN) / (HIGH - LOW)).clip(0.0, 1.0)


def potential() -> pl.Expr:
    """Variance over Popoviciu's bound (b - a)^2 / 4, in [0, 1]; null for fewer than two scored rollouts."""
    return (VAR / ((HIGH - LOW) ** 2 / 4)).clip(0.0, 1.0)


def potential_at_mean() -> pl.Expr:
    """Variance over Bhatia and Davis' bound (b - mean)(mean - a), the largest at that mean; in [0, 1].

    1 for every binary reward that takes both its values; 0 where the mean is a bound (denominator at least 1e-6).
    """
    return (VAR / ((HIGH - MEAN) * (MEAN - LOW)).clip(1e-6)).clip(0.0, 1.0)


def pass_rate(config: FilterConfig) -> pl.Expr:
    """Share of exactly right rollouts, or the mean reward scaled to [0, 1] (`metric = reward`)."""
    return N_EXACT / N if config.metric == "exact" else 1 - state()


def known(value: pl.Expr) -> pl.Expr:
    """A spread that one rollout cannot show counts in full, as for a task never visited (our reading)."""
    return value.fill_null(1.0)


def flat(config: FilterConfig) -> pl.Expr:
    """No spread in the metric: all or none exactly right, or all rewards equal."""
    return ((N_EXACT == 0) | (N_EXACT == N)) if config.metric == "exact" else VAR == 0


def flat_reason(config: FilterConfig) -> pl.Expr:
    """`solved` or `unsolved` for a group without spread, by the half its pass rate lies in; else `mixed`."""
    side = pl.when(pass_rate(config) >= 0.5).then(pl.lit("solved")).otherwise(pl.lit("unsolved"))
    return pl.when(flat(config)).then(side).otherwise(pl.lit("mixed"))


CELL_STATE = 0.15
CELL_POTENTIAL = 0.04  # a standard deviation of a tenth of the range


def cell() -> pl.Expr:
    """The cell of docs/methods.md 1.4: mastered, unstable, learnable or stuck. A name for people; no rule reads it."""
    spread = known(potential()) >= CELL_POTENTIAL
    high = state() <= CELL_STATE
    return (
        pl.when(high & spread)
        .then(pl.lit("unstable"))
        .when(high)
        .then(pl.lit("mastered"))
        .when(spread)
        .then(pl.lit("learnable"))
        .otherwise(pl.lit("stuck"))
    )
