"""Applies one method to a frame of statistics; one rule for all decides what no method can judge."""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter import judgement, rds, rivals
from toolsample_cli.filter.judgement import Method
from toolsample_cli.filter.run_state import RunState

METHODS: dict[str, Method] = {
    "none": Method(rivals.none, "epochs", whole=True),
    "rds": Method(rds.rds, "importance", floored=True, delayed=True),
    "rds-hard": Method(rds.rds_hard, "importance", delayed=True),
    "rds-mult": Method(rds.rds_mult, "importance", floored=True, delayed=True),
    "rds-cond": Method(rds.rds_cond, "importance", floored=True, delayed=True),
    "rds-sub": Method(rds.rds_sub, "importance", floored=True, delayed=True),
    "dapo": Method(rivals.dapo, "epochs"),
    "vcrl": Method(rivals.vcrl, "importance", floored=True),
    "greso": Method(rivals.greso, "skips"),
    "speed": Method(rivals.speed, "importance", floored=True),
    "adarft": Method(rivals.adarft, "rank"),
    "pcl": Method(rivals.pcl, "importance", floored=True),
    "pools": Method(rivals.pools, "importance"),
}
"""Method name -> rule, draw and traits, in the order of docs/methods.md."""


def unvisited_importance(config: FilterConfig) -> float:
    """Importance of a task without a visit: 1, plus the floor where the method has one."""
    return 1.0 + (config.floor if METHODS[config.method].floored else 0.0)


def decide(groups: pl.DataFrame, config: FilterConfig, at: RunState, round: int) -> pl.DataFrame:
    """Statistics (with last_round, visits, misses, flat_visits) -> the same rows with what is decided about each.

    Adds state, potential, importance, keep and reason. Rules for all methods, in this order:
    `absent`   not visited in `round`: keeps its importance for the draw, has no rollouts to train on;
    `errored`  no scored rollout: as wanted as a task never visited;
    `single`   one scored rollout: no group, so no advantage;
    `flat`     all rewards equal, where the config drops those (method `none` keeps them);
    otherwise the method's own reason.
    """
    method = METHODS[config.method]
    judged = method.rule(config, at)
    keep, reason = judged.keep, judged.reason
    drop_flat = config.drop_flat and not method.whole
    fixed = [
        (pl.col("last_round") != round, "absent"),
        (judgement.N == 0, "errored"),
        (judgement.N == 1, "single"),
        ((judgement.VAR == 0) & drop_flat, "flat"),
    ]
    for condition, word in reversed(fixed):
        keep = pl.when(condition).then(False).otherwise(keep)
        reason = pl.when(condition).then(pl.lit(word)).otherwise(reason)
    importance = judged.importance + (config.floor if method.floored else 0.0)
    fresh = unvisited_importance(config)
    return groups.with_columns(
        state=judgement.state(),
        potential=judged.potential,
        importance=pl.when(judgement.N == 0).then(fresh).otherwise(importance).cast(pl.Float64),
        keep=keep,
        reason=reason,
    )
