"""What a round did, read from its shards: the numbers of `round.json`, of run summaries and of the report.

A share of nothing is null, never NaN: of no rows, of an empty maximum (a tool without parameters has no value to get
right), of rows that all errored.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.json_types import Row
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.schema import BATCH, COMPONENTS, GROUPS, SCORES
from toolsample_cli.shards.sealed import read_json, read_sealed, unsealed


def score_metrics(folder: Path) -> Row:
    """Exact share, mean base reward and each component's share of its maximum, over a folder of scores."""
    columns = ["exact", "reward", *COMPONENTS, *(f"{name}_max" for name in COMPONENTS)]
    return score_shares(open_folder(folder, SCORES).load(columns))


def score_shares(scores: pl.DataFrame) -> Row:
    """`n` rows; `exact`, where a row that errored is wrong; mean `reward` and each component's mean share of its
    maximum, both over the rows that have one, else null."""
    shares = {
        name: pl.when(pl.col(f"{name}_max") > 0).then(pl.col(name) / pl.col(f"{name}_max")).mean()
        for name in COMPONENTS
    }
    means = {"exact": pl.col("exact").fill_null(False).mean(), "reward": pl.col("reward").mean(), **shares}
    return {"n": scores.height, **scores.select(**means).row(0, named=True)}


def group_shares(groups: pl.DataFrame) -> Row:
    """Share of groups whose rewards do not spread (`dead`) and without a right completion (`all_wrong`); null of none.

    A group without a spread to speak of, of one sample or of errors alone, is dead: it has no advantage.
    """
    dead, wrong = pl.col("reward_var").fill_null(0.0) == 0.0, pl.col("n_exact") == 0
    return groups.select(dead=dead.mean(), all_wrong=wrong.mean()).row(0, named=True)


def read_summary(path: Path) -> list[Row]:
    """The entries of a run's summary.json, one per arm and seed. DataError when it is damaged."""
    hint = "delete it and rerun: finished rounds are kept, and it is written anew"
    entries = read_json(path, hint=hint)
    if not isinstance(entries, list):
        raise DataError(f"{path}: not the summary of a run", hint=hint)
    return [unsealed(entry, path, hint=hint) for entry in entries]


def round_metrics(here: Path) -> Row:
    """Metrics of one trained round, from its shards."""
    metrics = score_metrics(here / "scores")
    groups = open_folder(here / "groups", GROUPS).load(["reward_var", "n_exact", "n", "last_round"])
    metrics["rollouts"] = metrics.pop("n")
    metrics |= group_shares(groups.filter(pl.col("last_round") == pl.col("last_round").max()))
    metrics["trained_on"] = open_folder(here / "batch", BATCH).rows
    metrics["mastery"] = read_sealed(here / "state.json", hint="rerun curriculum").get("mastery")
    return metrics
