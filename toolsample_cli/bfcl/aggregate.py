"""From verdicts to numbers: accuracy with its interval, and the official overall formulas, only when complete.

v4: 10 % non-live AST, 10 % live AST, 10 % irrelevance, 30 % multi-turn, 40 % agentic. Late v3 (April to August 2025):
mean of non-live, live and multi-turn. Live parts weigh categories by their size, all others equally.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolsample_cli.bfcl.categories import LIVE, LIVE_AST, MEMORY, MULTI_TURN, SIMPLE, WEB, in_order, kind_of

Z95 = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class CategoryTally:
    """Verdicts of one category: `right` of `n` judged; `errors` are failed inferences, in neither."""

    right: int = 0
    n: int = 0
    errors: int = 0

    @property
    def accuracy(self) -> float | None:
        """Share right among the judged, in [0, 1]; None when nothing was judged."""
        return self.right / self.n if self.n else None

    def officially(self, category: str) -> float | None:
        """The share as the official evaluator counts failed inference: a right refusal, else wrong."""
        n = self.n + self.errors
        refused = self.errors if kind_of(category) == "irrelevance" else 0
        return (self.right + refused) / n if n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval."""
        return wilson(self.right, self.n) if self.n else None


def tallies(rows: Iterable[tuple[str, bool | None]]) -> dict[str, CategoryTally]:
    """Category -> its tally from (category, verdict), in official order; a verdict of None is a failed inference."""
    counts: dict[str, list[int]] = {}
    for category, valid in rows:
        count = counts.setdefault(category, [0, 0, 0])
        if valid is None:
            count[2] += 1
        else:
            count[0] += bool(valid)
            count[1] += 1
    return {name: CategoryTally(*counts[name]) for name in in_order(counts)}


def formats(rows: Iterable[tuple[str, bool | None]]) -> dict[str, float]:
    """Spread over forms of prompt, in points: (entry id, verdict) of format_sensitivity to max_delta and std."""
    by_form: dict[str, list[bool]] = {}
    for entry_id, valid in rows:
        if valid is not None:
            by_form.setdefault(entry_id.split(":")[1], []).append(valid)
    shares = [sum(found) / len(found) for found in by_form.values()]
    if len(shares) < 2:
        return {}
    spread = (max(shares) - min(shares)) * 100
    return {"max_delta": round(spread, 2), "std": round(statistics.stdev(shares) * 100, 2), "forms": len(shares)}


def wilson(right: int, n: int) -> tuple[float, float]:
    """95 % interval of a share of `right` in n >= 1 trials (Wilson's score interval), within [0, 1]."""
    share, square = right / n, Z95 * Z95
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = Z95 / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _mean(values: Iterable[float | None]) -> float | None:
    given = list(values)
    known = [value for value in given if value is not None]
    return sum(known) / len(known) if len(known) == len(given) else None


def overall(counts: Mapping[str, CategoryTally], version: str) -> dict[str, float | None]:
    """The official parts and `overall`, each in [0, 1]; None where a category it needs is missing or has errors."""

    def one(name: str) -> float | None:
        tally = counts.get(name, CategoryTally())
        return None if tally.errors else tally.accuracy

    def weighted(names: tuple[str, ...]) -> float | None:
        if any(one(name) is None for name in names):
            return None
        return sum(counts[n].right for n in names) / sum(counts[n].n for n in names)

    simple = _mean(one(name) for name in SIMPLE[version])
    calls = [simple, one("multiple"), one("parallel"), one("parallel_multiple")]
    multi_turn = _mean(one(name) for name in MULTI_TURN)
    if version == "v3":
        parts = {
            "non_live": _mean([*calls, one("irrelevance")]),
            "live": weighted(LIVE),
            "multi_turn": multi_turn,
        }
        return {**parts, "overall": _mean(parts.values())}
    parts = {
        "non_live": _mean(calls),
        "live": weighted(LIVE_AST),
        "irrelevance": _mean([one("irrelevance"), one("live_irrelevance")]),
        "multi_turn": multi_turn,
        "agentic": _mean([_mean(one(name) for name in WEB), _mean(one(name) for name in MEMORY)]),
    }
    weights = {"non_live": 10, "live": 10, "irrelevance": 10, "multi_turn": 30, "agentic": 40}
    weighed = [value * weights[name] for name, value in parts.items() if value is not None]
    return {**parts, "overall": sum(weighed) / 100 if len(weighed) == len(parts) else None}
