"""What changed between two scorings of the same rollouts, and through which component.

Only the narrow columns are read; memory is about 150 bytes per rollout. Further rewards are texts, and read only where
a scoring was asked for some.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from toolsample_cli.errors import ConfigError
from toolsample_cli.inspection.shard_folders import ShardFolder
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.made_from import lineage
from toolsample_cli.shards.reading import read_footer, read_frame

SHOWN = 20
"""Changed rollouts that are listed, largest change first."""
SAME = 1e-9
_NUMBERS = ("reward", *schema.COMPONENTS)
_COLUMNS = ["rollout_id", "task_id", "category", "parse_status", "exact", *_NUMBERS]


class Further(NamedTuple):
    """A further reward or own component: its mean in either scoring, and in how many rollouts it changed."""

    old: float | None
    new: float | None
    changed: int


@dataclass
class Changes:
    """Counts over all rollouts, and the largest changes. `why` counts what differs in the rollouts that changed.

    `settings` are those that differ between the two scorings, as [old, new]; `further` has every further reward
    and own component; a mean is null where it was not asked for.
    """

    compared: int = 0
    only_old: int = 0
    only_new: int = 0
    up: int = 0
    down: int = 0
    appeared: int = 0
    vanished: int = 0
    why: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    mean_old: float | None = None
    mean_new: float | None = None
    exact_old: float | None = None
    exact_new: float | None = None
    largest: list[Row] = field(default_factory=list)
    settings: dict[str, list[object]] = field(default_factory=dict)
    further: dict[str, Further] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        """Rollouts whose reward differs, also from or to null."""
        return self.up + self.down + self.appeared + self.vanished

    def record(self) -> Row:
        """For `--json`."""
        plain = {name: value for name, value in vars(self).items() if name not in ("why", "categories")}
        plain["further"] = {name: one._asdict() for name, one in self.further.items()}
        return {"changed": self.changed, **plain, "why": dict(self.why), "categories": dict(self.categories)}


def changes(old: ShardFolder, new: ShardFolder) -> Changes:
    """Compare two folders of scores by rollout_id. ConfigError when one holds something else."""
    for place in (old, new):
        if place.kind != "scores":
            raise ConfigError(f"{place.path}: --diff compares scores, this holds {place.kind or 'something else'}")
    asked = any(_record(place).get(key) for place in (old, new) for key in ("rewards", "component"))
    before, after = (_narrow(place, [*_COLUMNS, "extra_json"] if asked else _COLUMNS) for place in (old, new))
    both = before.join(after, on="rollout_id", how="inner", suffix="_new", maintain_order="left")
    found = Changes(compared=both.height, only_old=before.height - both.height, only_new=after.height - both.height)
    found.settings = _settings(old, new)
    found.further = _further(both) if asked else {}
    found.mean_old, found.mean_new = (_share(both[name]) for name in ("reward", "reward_new"))
    found.exact_old, found.exact_new = (_share(both[name]) for name in ("exact", "exact_new"))
    delta = pl.col("reward_new") - pl.col("reward")
    appeared = pl.col("reward").is_null() & pl.col("reward_new").is_not_null()
    vanished = pl.col("reward").is_not_null() & pl.col("reward_new").is_null()
    both = both.with_columns(delta=delta, appeared=appeared, vanished=vanished)
    moved = both.filter((pl.col("delta").abs() > SAME) | pl.col("appeared") | pl.col("vanished"))
    counts = moved.select(
        up=(pl.col("delta") > SAME).sum(), down=(pl.col("delta") < -SAME).sum(),
        appeared=pl.col("appeared").sum(), vanished=pl.col("vanished").sum(),
    ).row(0, named=True)  # fmt: skip
    found.up, found.down = counts["up"], counts["down"]
    found.appeared, found.vanished = counts["appeared"], counts["vanished"]
    for row in moved.iter_rows(named=True):
        found.why.update(_reasons(row))
        found.categories[row["category"]] += 1
    ranked = moved.sort(pl.col("delta").abs(), "rollout_id", descending=[True, False], nulls_last=True)
    for row in ranked.head(SHOWN).iter_rows(named=True):
        numbers = {name: [row[name], row[f"{name}_new"]] for name in _NUMBERS}
        found.largest.append({"rollout_id": row["rollout_id"], **numbers, "why": _reasons(row)})
    return found


def _settings(old: ShardFolder, new: ShardFolder) -> dict[str, list[object]]:
    before, after = (_record(place) for place in (old, new))
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return {key: [before.get(key), after.get(key)] for key in keys}


def _record(place: ShardFolder) -> Row:
    """What the shards were made with: settings, and the digests of tasks and rollouts."""
    if place.manifests:
        return lineage(place.manifests[0].config, place.manifests[0].inputs)
    footer = read_footer(place.files[0]) if place.files else {}
    return lineage(footer.get("config", {}), footer.get("inputs", {}))


def _narrow(place: ShardFolder, columns: list[str]) -> pl.DataFrame:
    for file in place.files:
        place.verify(file)
    return pl.concat([read_frame(file, schema.SCORES, columns) for file in place.files])


def _plain(extra: Row) -> Row:
    return {**extra.get("rewards", {}), **extra.get("components", {})}


def _further(both: pl.DataFrame) -> dict[str, Further]:
    values: dict[str, tuple[list[float], list[float]]] = {}
    changed: Counter[str] = Counter()
    for texts in both.select("extra_json", "extra_json_new").iter_rows():
        old, new = (_plain(json.loads(text)) for text in texts)
        for name in {*old, *new}:
            changed[name] += old.get(name) != new.get(name)
            for kept, value in zip(values.setdefault(name, ([], [])), (old.get(name), new.get(name)), strict=True):
                if isinstance(value, int | float):
                    kept.append(value)
    means = {name: [sum(kept) / len(kept) if kept else None for kept in values[name]] for name in sorted(values)}
    return {name: Further(old, new, changed[name]) for name, (old, new) in means.items()}


def _share(values: pl.Series) -> float | None:
    mean: float | None = values.cast(pl.Float64).mean()
    return mean


def _reasons(row: Row) -> list[str]:
    """What differs: a component up or down, another way of reading; and how it was read when that was not simple."""
    reasons = []
    if row["appeared"] or row["vanished"]:
        reasons.append("reward appeared" if row["appeared"] else "reward vanished")
    for name in schema.COMPONENTS:
        old, new = row[name], row[f"{name}_new"]
        if old is None or new is None:
            if old is not new:
                reasons.append(f"{name} {'appeared' if old is None else 'vanished'}")
        elif abs(new - old) > SAME:
            reasons.append(f"{name} {'up' if new > old else 'down'}")
    if row["parse_status"] != row["parse_status_new"]:
        reasons.append(f"read as {row['parse_status_new']}, was {row['parse_status']}")
    elif row["parse_status"] != "ok":
        return [*(reasons or ["maxima or mapping"]), f"read as {row['parse_status']}"]
    return reasons or ["maxima or mapping"]
