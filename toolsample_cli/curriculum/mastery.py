"""Task-based dynamic curriculum (TDCL of arXiv 2509.14718): mastery of each sub-task and the weights it gives.

The paper's formulas are not public to us; all here are our reading (docs/methods.md 1.5):
1. mastery m_k is a moving average of each sub-task's scaled score over the round, few-shot prompts included;
2. weights are w_k = 3 exp((1 - m_k) / tau) / sum_j exp((1 - m_j) / tau), clipped, for name, key and value;
3. a round is weighted by what was known before it, so that all rollouts of a group share their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum.state import EVEN, WEIGHTED, State
from toolsample_cli.errors import ConfigError
from toolsample_cli.shards.schema import COMPONENTS

STAGES = COMPONENTS
"""Order of `weighting = stage`: a sub-task is rewarded once its stage is reached."""

LAG_FLOOR = 0.05
"""Smallest factor of `weighting = sample`, so that no task starves."""


def refuse_contradictions(config: CurriculumConfig) -> None:
    """ConfigError for settings that contradict one another."""
    if config.weight_low > config.weight_high:
        raise ConfigError(f"weight_low = {config.weight_low:g} is above weight_high = {config.weight_high:g}")
    if config.weight_high == 0:
        raise ConfigError("weight_high = 0: the sub-task weights sum to nothing")


def measures() -> dict[str, pl.Expr]:
    """Mean scaled score of each sub-task over the rollouts of a frame of groups; null where no task has it."""
    found: dict[str, pl.Expr] = {}
    for name in COMPONENTS:
        mean, n = pl.col(f"{name}_mean"), pl.when(pl.col(f"{name}_mean").is_not_null()).then(pl.col("n"))
        found[name] = pl.when(n.sum() > 0).then((mean * n).sum() / n.sum())
    return found


def measure(groups: pl.DataFrame) -> dict[str, float]:
    """`measures` of a round's groups; a sub-task no task has is left out."""
    row = groups.select(**measures()).row(0, named=True)
    return {name: mean for name, mean in row.items() if mean is not None}


def measure_loss(records: pl.DataFrame) -> dict[str, float]:
    """1 - L_k / sum_j L_j for name, key and value: L_k is the absolute loss on a sub-task's tokens (`records`).

    One digest of the paper takes mastery from each sub-task's training loss; that a policy gradient's loss tells
    where the gradient goes rather than what is mastered is a reason to prefer the scores. Empty without a loss.
    """
    sizes = {
        name: float((records["loss"] * records[f"loss_{name}"]).abs().sum())
        for name in WEIGHTED
        if records[f"loss_{name}"].count()
    }
    total = sum(sizes.values())
    return {name: 1 - size / total for name, size in sizes.items()} if total > 0 else {}


def grow(mastery: Mapping[str, float], measured: Mapping[str, float], decay: float) -> dict[str, float]:
    """m_k <- decay * m_k + (1 - decay) * measured_k; the first measurement starts the average."""
    known = {**mastery, **measured}
    both = {name: decay * mastery[name] + (1 - decay) * measured[name] for name in measured if name in mastery}
    return {name: both.get(name, known[name]) for name in COMPONENTS if name in known}


def soft_weights(mastery: Mapping[str, float], config: CurriculumConfig) -> dict[str, float]:
    """Weights of name, key and value from their mastery; the mean is 1 before clipping, equal mastery gives 1.

    Rounded to 6 decimals, which keeps `state.json` readable and equal weights exactly 1. A sub-task without a
    measurement counts as the average of the others.
    """
    known = [mastery[name] for name in WEIGHTED if name in mastery]
    if not known:
        return dict(EVEN)
    filled = {name: mastery.get(name, sum(known) / len(known)) for name in WEIGHTED}
    top = max(1 - m for m in filled.values())  # keeps exp from overflowing at a tiny temperature
    raised = {name: math.exp((1 - m - top) / config.temperature) for name, m in filled.items()}
    total = sum(raised.values())
    return {
        name: round(min(config.weight_high, max(config.weight_low, len(WEIGHTED) * value / total)), 6)
        for name, value in raised.items()
    }


def staged_weights(stage: int) -> dict[str, float]:
    """1 for the sub-tasks up to `stage` (an index into `STAGES`), 0 for later ones; all 0 rewards format alone."""
    return {name: 1.0 if STAGES.index(name) <= stage else 0.0 for name in WEIGHTED}


def first_weights(config: CurriculumConfig) -> dict[str, float]:
    """The weights of the first round, before anything was measured."""
    return staged_weights(0) if config.weighting == "stage" else dict(EVEN)


def advance(state: State, measured: Mapping[str, float], config: CurriculumConfig) -> State:
    """Mastery, stage and weights after one round's measurement."""
    mastery = grow(state.mastery, measured, config.decay)
    if config.weighting == "weights":
        return replace(state, mastery=mastery, weights=soft_weights(mastery, config))
    if config.weighting != "stage":
        return replace(state, mastery=mastery, weights=dict(EVEN))
    mastered = mastery.get(STAGES[state.stage], 1.0) >= config.stage_at
    rounds, stage = (state.stage_rounds + 1 if mastered else 0), state.stage
    if rounds >= config.stage_rounds and stage < len(STAGES) - 1:
        stage, rounds = stage + 1, 0
    return replace(state, mastery=mastery, stage=stage, stage_rounds=rounds, weights=staged_weights(stage))


def lag(mastery: Mapping[str, float]) -> pl.Expr:
    """`weighting = sample`: sum_k (1 - m_k)(1 - s_ik) over sum_k (1 - m_k), in [0.05, 1], to multiply the importance.

    s_ik is the group's mean of sub-task k; a sub-task it lacks counts as mastered, a task without a scored
    rollout counts 1, as one never visited.
    """
    open_ = {name: 1 - m for name, m in mastery.items()}
    total = sum(open_.values())
    if total <= 0:
        return pl.lit(1.0)
    terms = [share * (1 - pl.col(f"{name}_mean")).fill_null(0.0) for name, share in open_.items()]
    share = (pl.sum_horizontal(terms) / total).clip(LAG_FLOOR)
    return pl.when(pl.col("n") > 0).then(share).otherwise(1.0)
