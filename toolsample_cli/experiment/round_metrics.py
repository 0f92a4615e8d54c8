"""What a round did, read from its shards: the numbers of `round.json`, of run summaries and of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolsample_cli.errors import DataError
from toolsample_cli.json_types import Row
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.schema import BATCH, COMPONENTS, GROUPS, SCORES
from toolsample_cli.shards.sealed import read_json, read_sealed, unsealed


def score_metrics(folder: Path) -> dict[str, Any]:
    """Exact share, mean base reward and each component's share of its maximum, over a folder of scores."""
    columns = ["exact", "reward", *COMPONENTS, *(f"{name}_max" for name in COMPONENTS)]
    scores = open_folder(folder, SCORES).load(columns)
    metrics: dict[str, Any] = {
        "n": scores.height,
        "exact": scores["exact"].fill_null(False).mean(),
        "reward": scores["reward"].mean(),
    }
    for name in COMPONENTS:
        metrics[name] = (scores[name] / scores[f"{name}_max"]).mean()
    return metrics


def read_summary(path: Path) -> list[Row]:
    """The entries of a run's summary.json, one per arm and seed. DataError when it is damaged."""
    hint = "delete it and rerun: finished rounds are kept, and it is written anew"
    entries = read_json(path, hint=hint)
    if not isinstance(entries, list):
        raise DataError(f"{path}: not the summary of a run", hint=hint)
    return [unsealed(entry, path, hint=hint) for entry in entries]


def round_metrics(here: Path) -> dict[str, Any]:
    """Metrics of one trained round, from its shards."""
    metrics = score_metrics(here / "scores")
    groups = open_folder(here / "groups", GROUPS).load(["reward_var", "n_exact", "n", "last_round"])
    fresh = groups.filter(groups["last_round"] == groups["last_round"].max())
    metrics["rollouts"] = metrics.pop("n")
    metrics["dead"] = (fresh["reward_var"].fill_null(0.0) == 0.0).mean()
    metrics["all_wrong"] = (fresh["n_exact"] == 0).mean()
    metrics["trained_on"] = open_folder(here / "batch", BATCH).rows
    metrics["mastery"] = read_sealed(here / "state.json", hint="rerun curriculum").get("mastery")
    return metrics
