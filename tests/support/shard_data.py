"""Frames of a small kind for tests of reading and writing."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from toolsample_cli.shards import schema
from toolsample_cli.shards.slice import Slice
from toolsample_cli.shards.writing import Output


def rejects(number: int, rows: int = 3, **values) -> pl.DataFrame:
    """Rows of the smallest kind, different for every shard number."""
    made = [
        {"file": f"f{number}", "row": row + 1, "reason": "r", "detail": f"d{number}", "raw_json": "{}", **values}
        for row in range(rows)
    ]
    return schema.frame(schema.REJECTS, made)


def fill(
    path: Path, numbers, config: dict | None = None, slice: Slice = Slice(), finish: bool = True, **more
) -> Output:
    """Write the shards of `numbers` that the slice owns, as a stage does; returns the Output."""
    with Output(path, schema.REJECTS, config or {"knob": 1}, {"raw": "abc"}, slice=slice, **more) as output:
        for number in numbers:
            if slice.owns(number) and not output.done(number):
                output.write(number, rejects(number))
                output.counts["written"] += 1
        if finish:
            output.finish()
    return output
