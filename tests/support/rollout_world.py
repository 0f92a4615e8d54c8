"""Task folders and a tiny model for tests of the rollout stage."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from toolsample_cli.config import RolloutConfig
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output

CONFIG = RolloutConfig(n=3, max_new_tokens=32, tasks_per_shard=8, batch_tokens=2048)


def write_tasks(path: Path, rows: list[dict], shard: int = 13) -> Path:
    with Output(path, schema.TASKS, {}) as output:
        for number, at in enumerate(range(0, len(rows), shard)):
            output.write(number, schema.frame(schema.TASKS, rows[at : at + shard]))
        output.finish()
    return path


def loaded(path: Path) -> pl.DataFrame:
    return open_folder(path, schema.ROLLOUTS).load()


def content(path: Path) -> dict[str, bytes]:
    """Every byte of the shards and the manifest."""
    files = [*path.glob("*"), path.parent / f"{path.name}.manifest.json"]
    return {file.name: file.read_bytes() for file in files}
