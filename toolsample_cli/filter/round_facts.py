"""A round's groups -> the few numbers about the round as a whole that the standing moves by."""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter.rivals import GRESO_EASY, GRESO_HARD
from toolsample_cli.filter.run_state import Round
from toolsample_cli.filter.verdict import pass_rate


def round_facts(groups: pl.DataFrame, config: FilterConfig) -> Round:
    """Facts of a round from its groups (n, n_exact, reward mean, variance and bounds), in batch order.

    With `activation_tasks` = k the groups are cut into batches of k; a rest smaller than k joins the last one.
    """
    scored = groups.filter(pl.col("n") > 0)
    if not scored.height:
        return Round([])
    size = min(config.activation_tasks or scored.height, scored.height)
    batches = scored.height // size
    batch = (pl.int_range(pl.len()) // size).clip(0, batches - 1)
    means = (
        scored.group_by(batch.alias("batch"), maintain_order=True)
        .agg((pl.col("reward_mean") * pl.col("n")).sum() / pl.col("n").sum())["reward_mean"]
        .to_list()
    )
    scaled = (pl.col("reward_mean") - pl.col("reward_min")) / (pl.col("reward_max") - pl.col("reward_min"))
    rate = pass_rate(config)
    facts = scored.select(scaled=scaled.mean(), easy=(rate >= GRESO_EASY).mean(), hard=(rate <= GRESO_HARD).mean()).row(
        0, named=True
    )
    return Round(means, facts["scaled"], facts["easy"], facts["hard"])
