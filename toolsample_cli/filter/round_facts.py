"""A round's groups -> the few numbers about the round as a whole that the moving numbers of the rivals go by."""

from __future__ import annotations

import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter.rivals import greso_sides
from toolsample_cli.filter.run_state import RoundFacts


def round_facts(groups: pl.DataFrame, config: FilterConfig) -> RoundFacts:
    """Facts of a round from its groups (n, n_exact, reward mean, variance and bounds)."""
    scored = groups.filter(pl.col("n") > 0)
    if not scored.height:
        return RoundFacts()
    scaled = (pl.col("reward_mean") - pl.col("reward_min")) / (pl.col("reward_max") - pl.col("reward_min"))
    easy, hard = greso_sides(config)
    facts = scored.select(scaled=scaled.mean(), easy=easy.mean(), hard=hard.mean()).row(0, named=True)
    return RoundFacts(facts["scaled"], facts["easy"], facts["hard"])
