"""What a completion earns: ToolRL's reward (arXiv 2504.13958) split in the four sub-tasks of DSCL (methods 1.2).

Correctness is mapped to [-3, 3], so that call items lie in [-3, 4] and items without a gold call in [0, 1]
(our reading; the digests of DSCL print other bounds). With all weights 1 it is ToolRL's reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolsample_cli.config import ScoreConfig
from toolsample_cli.protocols import PROTOCOLS
from toolsample_cli.toolbox import Toolbox
from toolsample_cli.toolcall import Call, calls_json, canonical, read_calls


@dataclass(frozen=True)
class Gold:
    """The right answer: its calls, its kind (calls, response, both, none) and the maxima of its components."""

    calls: tuple[Call, ...]
    kind: str

    @classmethod
    def of(cls, gold_json: str, gold_kind: str) -> Gold:
        """From the columns of a task; ValueError, KeyError or TypeError when they hold something else."""
        return cls(read_calls(gold_json), gold_kind)

    @property
    def maxima(self) -> tuple[float, float, float]:
        """Largest name, key and value component: (1, calls, arguments); zeros without a gold call."""
        if not self.calls:
            return 0.0, 0.0, 0.0
        return 1.0, float(len(self.calls)), float(sum(len(call.arguments) for call in self.calls))


@dataclass(frozen=True)
class Scored:
    """Everything `score` writes about one completion, under the names of the columns of `schema.SCORES`."""

    parse_status: str
    calls: tuple[Call, ...]
    format: float | None
    name: float | None
    key: float | None
    value: float | None
    format_max: float | None
    name_max: float | None
    key_max: float | None
    value_max: float | None
    exact: bool | None
    schema_valid: bool | None
    self_example: bool | None
    reward: float | None
    reward_min: float
    reward_max: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """The row's columns, without those copied from rollout and task."""
        skip = ("calls", "extra")
        row = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skip}
        return {**row, "calls_json": calls_json(self.calls), "extra_json": canonical(dict(self.extra))}


def score_text(
    text: str,
    gold: Gold,
    protocol: str,
    config: ScoreConfig,
    tools: Toolbox | Sequence[Mapping[str, Any]] = (),
    finish_reason: str | None = None,
) -> Scored:
    """Score one completion. Never raises on any text; KeyError for an unknown protocol."""
    parsed = PROTOCOLS[protocol].parse(text, gold.kind)
    status = "truncated" if parsed.status != "ok" and finish_reason == "length" else parsed.status
    box = tools if isinstance(tools, Toolbox) else Toolbox.of(tools)
    well_formed = 1.0 if parsed.format_ok else 0.0
    valid = all(box.problem(call) is None for call in parsed.calls) if parsed.calls else None
    if not gold.calls:
        right = parsed.format_ok and not parsed.calls
        return Scored(
            status, parsed.calls, well_formed, None, None, None, 1.0, None, None, None, right, valid, False,
            well_formed, 0.0, 1.0,
        )  # fmt: skip
    name, key, value, total = components(gold.calls, parsed.strict_calls, parsed.broken)
    name_max, key_max, value_max = gold.maxima
    full = name_max + key_max + value_max
    reward = well_formed + (6.0 * total / full - 3.0)
    right = parsed.format_ok and (name, key, value) == gold.maxima
    return Scored(
        status, parsed.calls, well_formed, name, key, value, 1.0, name_max, key_max, value_max, right, valid, False,
        reward, -3.0, 4.0,
    )  # fmt: skip


def errored(gold: Gold) -> Scored:
    """The row of a rollout that has no completion: status `error`, everything earned is null."""
    low, high = (-3.0, 4.0) if gold.calls else (0.0, 1.0)
    maxima = gold.maxima if gold.calls else (None, None, None)
    return Scored(
        "error", (), None, None, None, None, 1.0, *maxima, None, None, None, None, low, high
    )  # fmt: skip


NOTHING = (0.0, 0.0, 0.0, 0.0)


def components(
    gold: Sequence[Call], calls: Sequence[Call] | None, broken: Sequence[int] = ()
) -> tuple[float, float, float, float]:
    """(name, key, value, their sum) of predicted calls by ToolRL's greedy matching; `calls` None: nothing was read.

    The sum is added up in ToolRL's order, so that its last bit is ToolRL's too. A call in `broken` (no arguments
    object) that comes up for matching voids everything, as it does there.
    """
    if calls is None:
        return NOTHING
    name = jaccard([call.name for call in gold], [call.name for call in calls])
    key, value, total = 0.0, 0.0, name
    used: set[int] = set()
    for wanted in gold:
        best, best_at = (0.0, 0.0, 0.0), -1
        for at, call in enumerate(calls):
            if at in used or call.name != wanted.name:
                continue
            if at in broken:
                return NOTHING
            keys = jaccard(list(wanted.arguments), list(call.arguments))
            values = float(sum(k in call.arguments and call.arguments[k] == v for k, v in wanted.arguments.items()))
            if keys + values > best[0]:
                best, best_at = (keys + values, keys, values), at
        if best_at >= 0:
            used.add(best_at)
            total, key, value = total + best[0], key + best[1], value + best[2]
    return name, key, value, total


def jaccard(wanted: Sequence[str], found: Sequence[str]) -> float:
    """Multiset Jaccard index; 1 for equal lists, also empty ones."""
    if wanted == found:
        return 1.0
    if not wanted or not found:
        return 0.0
    rest = list(found)
    common = 0
    for item in wanted:
        if item in rest:
            rest.remove(item)
            common += 1
    return common / (len(wanted) + len(found) - common)


def combine(
    format: float,
    name: float | None,
    key: float | None,
    value: float | None,
    maxima: tuple[float | None, float | None, float | None],
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> float:
    """Reward from components: format + (-3 + 6 * sum w_k R_k / sum w_k R_k^max), or format without gold calls.

    `maxima` and `weights` are in the order name, key, value. Range: [-3, 4] with gold calls, [0, 1] without.
    """
    if name is None or maxima[0] is None:
        return format
    earned = weights[0] * name + weights[1] * key + weights[2] * value
    possible = weights[0] * maxima[0] + weights[1] * maxima[1] + weights[2] * maxima[2]
    return format + (6.0 * earned / possible - 3.0)
