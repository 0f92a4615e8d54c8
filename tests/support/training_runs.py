"""Runs of the train stage, and what they left, for comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from safetensors.numpy import load_file

from toolsample_cli.config import TrainConfig
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.train.stage import run

FAST = {"lr": 1e-3, "steps": 3}


def train(base, out: Path, options: Options = Options(), model: Path | None = None, **settings):
    path, rollouts, batch = base
    config = TrainConfig(**{**FAST, **settings})
    return run(rollouts, batch, model=str(model or path), out=out, config=config, options=options)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    """Bitwise the same parameters."""
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def metric(out: Path, name: str) -> list[float]:
    steps = open_folder(out.parent / f"{out.name}.steps", schema.STEPS).load()
    return steps.filter(pl.col("metric") == name).sort("step")["value"].to_list()


class Stop(Exception):
    pass
