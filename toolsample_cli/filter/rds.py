"""Reward-based dynamic sampling of ToolSample / DSCL (arXiv 2509.14718, section on RDS).

The paper's importance formula is not public to us: that it joins reward mean (state) and variance (remaining
potential) over the whole corpus and starts late is stated; every formula here is our reading (docs/methods.md 1.4).
They prioritise: they steer the next draw, and none of them judges a group unfit for the batch. What leaves the batch
is what no method can learn from, groups whose rewards are all equal (`drop_flat`).
"""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter import judgement
from toolsample_cli.filter.judgement import Judgement
from toolsample_cli.filter.run_state import RunState
from toolsample_cli.shards.schema import COMPONENTS

MASTERED_MEAN = 0.1
"""rds-hard: reward units below the best possible mean (our reading)."""
MASTERED_VAR = 0.01
"""rds-hard: largest variance of a mastered group (our reading)."""
REVISIT = 0.05
"""rds-hard: how likely a dropped task is drawn, against one that is not (our reading)."""


def rds(config: FilterConfig, at: RunState) -> Judgement:
    """w = lambda * state + (1 - lambda) * potential, potential by Popoviciu's bound. RDS-v1, our reading."""
    return _weighted(config, judgement.potential())


def rds_cond(config: FilterConfig, at: RunState) -> Judgement:
    """As rds, with potential = variance over the largest variance possible at that mean (Bhatia-Davis).

    Our reading; the plainest form of the paper's remark that with many-valued rewards the mean no longer fixes
    the variance: for a binary reward this potential is 1 in every mixed group.
    """
    return _weighted(config, judgement.potential_at_mean())


def _weighted(config: FilterConfig, potential: pl.Expr) -> Judgement:
    share = config.state_weight
    importance = share * judgement.state() + (1 - share) * judgement.known(potential)
    return Judgement(importance, pl.lit(True), judgement.cell(), potential)


def rds_mult(config: FilterConfig, at: RunState) -> Judgement:
    """w = state * (epsilon + potential): only what is both unlearned and undecided. Our reading."""
    importance = judgement.state() * (config.floor + judgement.known(judgement.potential()))
    return Judgement(importance, pl.lit(True), judgement.cell(), judgement.potential())


def rds_hard(config: FilterConfig, at: RunState) -> Judgement:
    """Mastered tasks (mean >= b - 0.1 and variance <= 0.01) leave the draw but for 5 %; the rest is uniform.

    The easy filter of binary rewards, made many-valued; our reading. A single rollout masters nothing.
    """
    mastered = ((judgement.MEAN >= judgement.HIGH - MASTERED_MEAN) & (judgement.VAR <= MASTERED_VAR)).fill_null(False)
    importance = pl.when(mastered).then(REVISIT).otherwise(1.0)
    reason = pl.when(mastered).then(pl.lit("mastered")).otherwise(pl.lit("open"))
    return Judgement(importance, pl.lit(True), reason, judgement.potential())


def rds_sub(config: FilterConfig, at: RunState) -> Judgement:
    """The formula of rds for each sub-task the task has, then their mean.

    "Multi-dimensional reward statistics" of the abstract read as per-sub-task statistics; our reading. The
    sub-tasks are scaled to [0, 1], so their largest variance is 1/4.
    """
    share = config.state_weight
    states = [(1 - pl.col(f"{name}_mean")) for name in COMPONENTS]
    potentials = [(pl.col(f"{name}_var") * 4).clip(0.0, 1.0) for name in COMPONENTS]
    each = [
        # a sub-task the task lacks has a null mean and stays out of the average
        share * state + (1 - share) * pl.when(state.is_not_null()).then(judgement.known(potential))
        for state, potential in zip(states, potentials, strict=True)
    ]
    return Judgement(pl.mean_horizontal(each), pl.lit(True), judgement.cell(), pl.mean_horizontal(potentials))
