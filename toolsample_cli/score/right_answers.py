"""The one rule for an answer worth imitating, and for the worse answer beside it in a pair.

Exact is not enough: of 279 exact answers of one round, 21 had a key twice. `exact` compares what was read with the
gold; imitation copies what was written.
"""

from __future__ import annotations

import polars as pl

CLEAN = ("ok", "no_call")
"""Statuses of an answer that was read without any repair."""


def right() -> pl.Expr:
    """Whether an answer is worth imitating: exact, cleanly read, fitting its schemas, known to have ended by itself.

    For rows with `exact`, `parse_status`, `schema_valid` of scores and `finish_reason` of rollouts; never null.
    """
    fits = pl.col("schema_valid").is_null() | pl.col("schema_valid")
    ended = pl.col("finish_reason") == "stop"
    return (pl.col("exact") & pl.col("parse_status").is_in(CLEAN) & fits & ended).fill_null(False)


def worse() -> pl.Expr:
    """Whether an answer may be the rejected one of a pair: scored, without error, and known to have ended by itself."""
    scored = pl.col("reward").is_not_null() & pl.col("error").is_null()
    return (scored & (pl.col("finish_reason") == "stop")).fill_null(False)
