"""A verdict on each task for people who only want to know what their data is worth to this policy.

It goes by the latest visit alone and by no method, so that it means the same for all of them. The four words are ours.
"""

from __future__ import annotations

import polars as pl

from toolsample_cli.filter.judgement import N_EXACT, VAR, N

VERDICTS = {
    "train": "worth training on: the completions of one group differ in reward",
    "mastered": "every completion is exactly right",
    "hopeless": "no completion is right, and all earn the same",
    "doubtful": "look at it: fewer than two completions to go by, or they agree on a call that is not the gold one",
}
"""Verdict -> what it says."""

AGREED = 0.75
"""Share of completions with one and the same wrong call that casts doubt on the gold answer (our reading)."""


def verdict() -> pl.Expr:
    """One of `VERDICTS` from n, n_exact, reward_var, agreement and majority_right."""
    agreed = (pl.col("agreement") >= AGREED) & (N_EXACT == 0) & pl.col("majority_calls")
    return (
        pl.when(N < 2)
        .then(pl.lit("doubtful"))
        .when(N_EXACT == N)
        .then(pl.lit("mastered"))
        .when(agreed)
        .then(pl.lit("doubtful"))
        .when(VAR == 0)
        .then(pl.lit("hopeless"))
        .otherwise(pl.lit("train"))
    )
