"""Benchmark rows are refused where data is trained on: a score on data that was trained on says nothing."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from toolsample_cli.errors import DataError, location
from toolsample_cli.shards.reading import Folder


def refuse_test_rows(path: Path, frame: pl.DataFrame, *, hint: str) -> None:
    """DataError naming the first row of a shard of tasks (columns task_id, split) that is marked as test data."""
    test = frame.with_row_index("row__").filter(pl.col("split") == "test")
    if test.height:
        where = location(path, row=test["row__"][0] + 1, task=test["task_id"][0])
        raise DataError(f"{where}: benchmark test data is not trained on", hint=hint)


def refuse_test_folder(tasks: Folder, *, hint: str) -> None:
    """The same for all shards of a folder."""
    for shard, frame in tasks.frames(["task_id", "split"]):
        refuse_test_rows(shard.path, frame, hint=hint)
