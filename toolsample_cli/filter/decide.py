"""Applies one method to a frame of statistics; settles by one rule for all what no method can judge."""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter import rds, rivals, verdict
from toolsample_cli.filter.run_state import Standing
from toolsample_cli.filter.verdict import Method

METHODS: dict[str, Method] = {
    "none": Method(rivals.none, "epochs"),
    "rds": Method(rds.rds, "importance", floored=True, delayed=True),
    "rds-hard": Method(rds.rds_hard, "importance", delayed=True),
    "rds-mult": Method(rds.rds_mult, "importance", floored=True, delayed=True),
    "rds-cond": Method(rds.rds_cond, "importance", floored=True, delayed=True),
    "rds-sub": Method(rds.rds_sub, "importance", floored=True, delayed=True),
    "dapo": Method(rivals.dapo, "epochs"),
    "vcrl": Method(rivals.vcrl, "importance", floored=True),
    "greso": Method(rivals.greso, "importance"),
    "speed": Method(rivals.speed, "importance", floored=True),
    "adarft": Method(rivals.adarft, "rank"),
    "pcl": Method(rivals.pcl, "importance", floored=True),
    "pools": Method(rivals.pools, "importance"),
}
"""Method name -> rule, draw and traits."""


def unvisited_importance(config: FilterConfig) -> float:
    """Importance of a task without a visit: 1, plus the floor where the method has one."""
    return 1.0 + (config.floor if METHODS[config.method].floored else 0.0)


def decide(groups: pl.DataFrame, config: FilterConfig, standing: Standing, round: int) -> pl.DataFrame:
    """Statistics (with last_round, visits, misses, flat_visits) -> the same rows with the verdict on each.

    Adds state, potential, importance, keep and reason. Rules for all methods, in this order:
    `absent`   not visited in `round`: keeps its importance for the draw, has no rollouts to train on;
    `errored`  no scored rollout: as wanted as a task never visited;
    `single`   one scored rollout: no group, so no advantage;
    `flat`     all rewards equal, where the config drops those;
    `warmup`   the method is delayed and not active yet: every task equally wanted, every other group kept;
    otherwise the method's own reason.
    """
    method = METHODS[config.method]
    judged = method.rule(config, standing)
    waiting = method.delayed and not standing.active
    unvisited = unvisited_importance(config)
    wish = pl.lit(unvisited) if waiting else judged.importance + (config.floor if method.floored else 0.0)
    keep, reason = (pl.lit(True), pl.lit("warmup")) if waiting else (judged.keep, judged.reason)
    fixed = [
        (pl.col("last_round") != round, "absent"),
        (verdict.N == 0, "errored"),
        (verdict.N == 1, "single"),
        ((verdict.VAR == 0) & config.drop_flat, "flat"),
    ]
    for condition, word in reversed(fixed):
        keep = pl.when(condition).then(False).otherwise(keep)
        reason = pl.when(condition).then(pl.lit(word)).otherwise(reason)
    return groups.with_columns(
        state=verdict.state(),
        potential=judged.potential,
        importance=pl.when(verdict.N == 0).then(unvisited).otherwise(wish).cast(pl.Float64),
        keep=keep,
        reason=reason,
    )
