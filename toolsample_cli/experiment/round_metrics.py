"""What a round did, read from its shards: the numbers of `round.json`, of run summaries and of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.schema import BATCH, COMPONENTS, GROUPS, SCORES


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


def round_metrics(here: Path) -> dict[str, Any]:
    """Metrics of one trained round, from its shards."""
    metrics = score_metrics(here / "scores")
    groups = open_folder(here / "groups", GROUPS).load(["reward_var", "n_exact", "n", "last_round"])
    fresh = groups.filter(groups["last_round"] == groups["last_round"].max())
    metrics["rollouts"] = metrics.pop("n")
    metrics["dead"] = (fresh["reward_var"].fill_null(0.0) == 0.0).mean()
    metrics["all_wrong"] = (fresh["n_exact"] == 0).mean()
    metrics["trained_on"] = open_folder(here / "batch", BATCH).rows
    metrics["mastery"] = json.loads((here / "state.json").read_text(encoding="utf-8")).get("mastery")
    return metrics
