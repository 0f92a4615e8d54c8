"""What a folder of shards holds: lineage, and statistics of every column, in memory bounded by one row group.

Statistics are added up file by file from narrow scans; text columns give lengths, words of a small vocabulary give
their shares.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from toolsample_cli.inspection.shard_folders import ShardFolder
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.manifest import summed
from toolsample_cli.shards.reading import read_footer

WORDS = frozenset(
    {"source", "split", "category", "protocol", "gold_kind", "license", "policy", "backend", "finish_reason", "error"}
    | {"parse_status", "reason", "metric", "error_type", "shots", "round", "n", "visits", "last_round"}
)
"""Columns whose values are few and tell a story of their own."""
HISTOGRAMS = ("reward", "base_reward", "reward_mean", "importance", "advantage")
TOP = 12
BINS = 14


@dataclass
class Summary:
    """One column: counts, and moments of the value, or of the length in characters or elements."""

    name: str
    dtype: str
    measures: str  # value, characters, elements, true
    rows: int = 0
    nulls: int = 0
    low: float | None = None
    high: float | None = None
    total: float = 0.0
    squares: float = 0.0
    words: Counter[str] = field(default_factory=Counter)
    histogram: list[tuple[float, float, int]] = field(default_factory=list)

    def add(self, part: Row) -> None:
        """Add what one file gave."""
        self.rows += part["rows"]
        self.nulls += part["nulls"]
        for name, pick in (("low", min), ("high", max)):
            if part[name] is not None:
                mine = getattr(self, name)
                setattr(self, name, part[name] if mine is None else pick(mine, part[name]))
        self.total += part["total"] or 0.0
        self.squares += part["squares"] or 0.0

    @property
    def mean(self) -> float | None:
        """Mean over the rows that are not null."""
        count = self.rows - self.nulls
        return self.total / count if count else None

    @property
    def std(self) -> float | None:
        """Population standard deviation."""
        count = self.rows - self.nulls
        if not count:
            return None
        return math.sqrt(max(0.0, self.squares / count - (self.total / count) ** 2))

    def record(self) -> Row:
        """For `--json`."""
        found = {"column": self.name, "dtype": self.dtype, "measures": self.measures, "rows": self.rows}
        found |= {"nulls": self.nulls, "min": self.low, "max": self.high, "mean": self.mean, "std": self.std}
        if self.words:
            found["values"] = dict(sorted(self.words.items(), key=lambda item: (-item[1], item[0]))[:TOP])
        if self.histogram:
            found["histogram"] = [{"from": a, "to": b, "rows": n} for a, b, n in self.histogram]
        return found


@dataclass(frozen=True)
class Facts:
    """What a folder holds: kind, size, lineage, and a summary of every column; `metrics` only of steps."""

    path: str
    kind: str | None
    meaning: str | None
    rows: int
    shards: int
    bytes: int
    complete: bool | None
    version: str | None
    schema_version: int | None
    config: Row
    inputs: Row
    counts: dict[str, float]
    columns: list[Summary]
    metrics: list[Row] | None

    def record(self) -> Row:
        """For `--json`."""
        plain = {**vars(self), "columns": [summary.record() for summary in self.columns]}
        return plain if self.metrics is not None else {key: plain[key] for key in plain if key != "metrics"}


def facts(place: ShardFolder) -> Facts:
    """All that can be said of a folder of shards without joining others."""
    for file in place.files:
        place.verify(file)
    footer = read_footer(place.files[0]) if place.files else {}
    source = place.manifests[0] if place.manifests else None
    return Facts(
        path=str(place.path),
        kind=place.kind,
        meaning=schema.KINDS[place.kind].meaning if place.kind else None,
        rows=place.rows(),
        shards=len(place.files),
        bytes=sum(file.stat().st_size for file in place.files),
        complete=place.complete,
        version=source.version if source else footer.get("version"),
        schema_version=source.schema_version if source else footer.get("schema_version"),
        config=source.config if source else footer.get("config", {}),
        inputs=source.inputs if source else footer.get("inputs", {}),
        counts=dict(sorted(summed(place.manifests).items())),
        columns=summaries(place),
        metrics=metrics(place) if place.kind == "steps" else None,
    )


def metrics(place: ShardFolder) -> list[Row]:
    """Of every metric in `steps`: steps with it, first, last, smallest, mean and largest value, in order of name."""
    frames = [place.scan(file) for file in place.files]
    if not frames:
        return []
    value, step = pl.col("value"), pl.col("step")
    wanted = {"first": value.sort_by(step).first(), "last": value.sort_by(step).last(), "min": value.min()}
    wanted |= {"mean": value.mean(), "max": value.max()}
    grouped = pl.concat(frames).group_by("metric").agg(pl.len().alias("steps"), **wanted)
    return grouped.sort("metric").collect(engine="streaming").to_dicts()


def summaries(place: ShardFolder) -> list[Summary]:
    """A summary of every column, in the order on disk."""
    if not place.files:
        return []
    dtypes = pl.read_parquet_schema(place.files[0])
    found = {name: Summary(name, str(dtype), _measure(dtype)) for name, dtype in dtypes.items()}
    for file in place.files:
        scan = place.scan(file)
        for summary in found.values():
            summary.add(_part(scan, summary))
            if summary.name in WORDS or summary.measures == "true":
                summary.words.update(_words(scan, summary.name))
    for summary in found.values():
        if summary.name in HISTOGRAMS and summary.low is not None and summary.high is not None:
            summary.histogram = _histogram(place, summary.name, summary.low, summary.high)
    return list(found.values())


def _measure(dtype: pl.DataType) -> str:
    if dtype == pl.Boolean:
        return "true"
    if dtype.is_numeric():
        return "value"
    if dtype == pl.String:
        return "characters"
    return "elements" if isinstance(dtype, pl.List) else "nothing"


def _part(scan: pl.LazyFrame, summary: Summary) -> Row:
    value = pl.col(summary.name)
    number = {
        "value": value,
        "true": value.cast(pl.Float64),
        "characters": value.str.len_chars(),
        "elements": value.list.len(),
        "nothing": pl.lit(None),
    }[summary.measures].cast(pl.Float64)
    wanted = {
        "rows": pl.len(),
        "nulls": value.null_count(),
        "low": number.min(),
        "high": number.max(),
        "total": number.sum(),
        "squares": (number * number).sum(),
    }
    frame = scan.select(expr.alias(name) for name, expr in wanted.items())
    return frame.collect(engine="streaming").row(0, named=True)


def _words(scan: pl.LazyFrame, name: str) -> dict[str, int]:
    counted = scan.select(pl.col(name).cast(pl.String).fill_null("(null)").str.head(60)).group_by(name).len()
    frame = counted.sort("len", descending=True).head(200).collect(engine="streaming")
    return dict(frame.iter_rows())


def _histogram(place: ShardFolder, name: str, low: float, high: float) -> list[tuple[float, float, int]]:
    if high <= low:
        return []
    width = (high - low) / BINS
    counts: Counter[int] = Counter()
    for file in place.files:
        scan = place.scan(file)
        bins = ((pl.col(name) - low) / width).floor().clip(0, BINS - 1).cast(pl.Int32)
        frame = scan.select(bins.alias("bin")).drop_nulls().group_by("bin").len().collect(engine="streaming")
        counts.update(dict(frame.iter_rows()))
    return [(low + k * width, low + (k + 1) * width, counts[k]) for k in range(BINS)]
