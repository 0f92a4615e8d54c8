"""What the shards of a run tell beyond its round records: the reasons behind the curves of docs/study/README.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

SEVERAL = "parallel_multiple"
"""Category of requests for several different calls."""
COLUMNS = (
    "several", "few_shot", "zero_shot_exact", "one_sided", "none_right", "none_right_live", "tokens", "nats", "bonus",
    "declined",
)  # fmt: skip


def shards(folder: Path, *columns: str) -> pl.DataFrame:
    """These columns of all shards of a folder."""
    return pl.concat([pl.read_parquet(file, columns=list(columns)) for file in sorted(folder.glob("*.parquet"))])


def counts(place: Path, held: str) -> dict[str, float | None]:
    """Of one round's folder, shares in [0, 1]; None where there was nothing to count.

    several: rollouts of requests for several different calls. few_shot: rollouts with demonstrations.
    zero_shot_exact: right answers among those without. one_sided: groups all right or all wrong; none_right: all wrong;
    none_right_live: those of them whose rewards differ. tokens, nats: length and surprise of a sampled answer.
    bonus: rollouts that earned it. declined: held-out requests that want no call and got none, in form.
    """
    found: dict[str, float | None] = dict.fromkeys(COLUMNS)
    held_out = place / "heldout" / held / "scores"
    if held_out.is_dir():
        found["declined"] = shards(held_out, "category", "exact").filter(category="irrelevance")["exact"].mean()
    if not (place / "scores").is_dir():
        return found
    scores = shards(place / "scores", "task_id", "category", "shots", "exact", "reward")
    group = scores.group_by("task_id").agg(pl.col("exact").mean(), live=pl.col("reward").std(ddof=0) > 1e-9)
    lost = group.filter(pl.col("exact") == 0)
    sampled = shards(place / "rollouts", "logprobs")["logprobs"]
    return found | {
        "several": (scores["category"] == SEVERAL).mean(),
        "few_shot": (scores["shots"] > 0).mean(),
        "zero_shot_exact": scores.filter(shots=0)["exact"].mean(),
        "one_sided": group["exact"].is_in([0.0, 1.0]).mean(),
        "none_right": lost.height / group.height,
        "none_right_live": lost["live"].mean(),
        "tokens": sampled.list.len().mean(),
        "nats": -(sampled.list.sum().mean() or 0.0),
        "bonus": (shards(place / "batch", "bonus")["bonus"] > 0).mean() if (place / "batch").is_dir() else None,
    }


def table(rows: pl.DataFrame) -> list[dict[str, str]]:
    """One row per arm; `rows` are those of one starting policy, one row per round."""
    made = []
    last = rows["round"].max()
    for arm in rows["arm"].unique(maintain_order=True):
        some = rows.filter(pl.col("arm") == arm)

        def mean(name: str, since: int = 1, until: int = last, some: pl.DataFrame = some) -> float:
            value = some.filter(pl.col("round").is_between(since, until))[name].mean()
            return float("nan") if value is None else float(value)

        lost = some.filter(pl.col("round") > 0)
        live = (lost["none_right_live"] * lost["none_right"]).sum() / lost["none_right"].sum()
        made.append(
            {
                "arm": arm,
                "several calls, from round 5": share(mean("several", 5)),
                "few-shot, from round 6": share(mean("few_shot", 6)),
                "zero-shot exact, last 3 rounds": share(mean("zero_shot_exact", last - 2)),
                "groups all right or all wrong": share(mean("one_sided")),
                "all wrong, rewards differ": share(live),
                "declined rightly": share(mean("declined", last)),
                "tokens": f"{mean('tokens', last):.0f}",
                "nats": f"{mean('nats', last):.1f}",
                "bonus, first and last round": "" if mean("bonus") == 0 else
                f"{share(mean('bonus', 1, 1))}, {share(mean('bonus', last))}",
            }
        )  # fmt: skip
    return made


def share(value: float) -> str:
    """In per cent."""
    return "–" if np.isnan(value) else f"{100 * value:.0f} %"
