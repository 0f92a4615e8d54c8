"""Rows that occur more than once: a doubled rollout would count twice in every statistic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from toolsample_cli.errors import DataError, location

HINT = "rerun the stage that wrote it with --overwrite"


def refuse_repeats(path: Path, frame: pl.DataFrame, key: Sequence[str]) -> None:
    """DataError naming the first row of one shard whose key came before."""
    repeated = (
        frame.select(pl.struct(key).is_duplicated()).to_series() if len(key) > 1 else frame[key[0]].is_duplicated()
    )
    if not repeated.any():
        return
    rows = frame.select(key).with_row_index("row__").filter(~pl.struct(key).is_first_distinct())
    row = rows.row(0, named=True)
    names = ", ".join(str(row[name]) for name in key)
    raise DataError(f"{location(path, row=row['row__'] + 1)}: {names} occurs more than once", hint=HINT)


class Repeats:
    """Tells whether a value occurs twice in all shards of a folder together; 8 bytes per row."""

    def __init__(self, path: Path, what: str, hint: str = HINT) -> None:
        self._path, self._what, self._hint = path, what, hint
        self._hashes: list[pl.Series] = []

    def add(self, shard: Path, values: pl.Series) -> None:
        """Take in one shard's values. DataError when one occurs twice in it."""
        hashes = values.hash()
        if hashes.n_unique() < len(hashes):
            repeated = values.filter(values.is_duplicated())
            raise DataError(f"{shard}: {self._what} {repeated[0]} occurs more than once", hint=self._hint)
        self._hashes.append(hashes)

    def refuse(self) -> None:
        """DataError when two shards hold the same value (or, once in 10^19 pairs, two values of one hash)."""
        if len(self._hashes) > 1 and pl.concat(self._hashes).n_unique() < sum(map(len, self._hashes)):
            raise DataError(f"{self._path}: a {self._what} occurs in more than one shard", hint=self._hint)
