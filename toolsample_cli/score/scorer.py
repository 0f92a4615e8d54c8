"""What a completion earns: ToolRL's reward (arXiv 2504.13958) split in the four sub-tasks of DSCL (methods 1.2).

Correctness is mapped to [-3, 3], so that call items lie in [-3, 4] and items without a gold call in [0, 1]
(our reading; the digests of DSCL print other bounds). With all weights 1 it is ToolRL's reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolsample_cli.config import ScoreConfig
from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError
from toolsample_cli.score.components import NOTHING, components
from toolsample_cli.score.rewards import REWARDS, Answer
from toolsample_cli.score.self_example import self_example
from toolsample_cli.score.values import equality
from toolsample_cli.toolcalls.call import MAX_CHARS, Call, calls_json, canonical, read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS, Parsed, detect, rlla
from toolsample_cli.toolcalls.protocols.lenient import repeats_key
from toolsample_cli.toolcalls.tools import Toolbox

QUIRKS = {
    **rlla.QUIRKS,
    "ungated_format": "right calls in a wrong form still earn (Q1)",
    "free_response": "where the gold has no call, calling costs the format point only, and 1 is the most (Q3, Q4)",
}
"""ToolRL's quirks that `lift` switches off one by one. Two more are settings: `match` (Q8) and `values` (Q9)."""

Component = Callable[[Answer], float]


@dataclass(frozen=True)
class Gold:
    """The right answer: its calls, its kind (calls, response, both, none) and BFCL's allowed values if it has some."""

    calls: tuple[Call, ...]
    kind: str
    allowed: tuple[Mapping[str, Any], ...] | None = None

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


class Scored(NamedTuple):
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
    extra: Mapping[str, Any]

    @property
    def columns(self) -> dict[str, Any]:
        """The row's values by column, without those copied from rollout and task."""
        record = self._asdict()
        return record | {"calls_json": calls_json(record.pop("calls")), "extra_json": _extra_json(record.pop("extra"))}


ANSWER_COLUMNS = (
    "parse_status", "format", "name", "key", "value", "exact", "schema_valid", "self_example", "reward", "calls_json",
    "extra_json",
)  # fmt: skip
"""The columns of `schema.SCORES` that the answer decides, in the order of `Scorer.row`."""
TASK_COLUMNS = ("format_max", "name_max", "key_max", "value_max", "reward_min", "reward_max")
"""Those that the task decides, in the order of `Scorer.limits`."""
ERRORED = ("error", *(None,) * 8, "[]", "{}")
"""The row of a rollout that has no completion: everything earned is null."""


def _extra_json(extra: Mapping[str, Any]) -> str:
    return canonical(dict(extra)) if extra else "{}"


@dataclass(frozen=True)
class Rules:
    """A ScoreConfig made ready: the comparison, the lifted quirks, the further rewards and components by name."""

    config: ScoreConfig
    equal: Callable[[Any, Any], bool]
    lifted: frozenset[str]
    extras: Mapping[str, Component]
    components: Mapping[str, Component]

    @classmethod
    def of(cls, config: ScoreConfig, components: Mapping[str, Component] | None = None) -> Rules:
        """ConfigError for an unknown quirk, reward, preset or setting."""
        lifted = _chosen("lift", config.lift, QUIRKS)
        extras = {name: REWARDS[name].function for name in _chosen("rewards", config.rewards, REWARDS)}
        return cls(config, equality(config.values), frozenset(lifted), extras, components or {})


def _chosen(knob: str, text: str, table: Mapping[str, Any]) -> list[str]:
    names = list(table) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in table:
            raise ConfigError(f"{knob} = {name!r}: not one of {', '.join(table)}", hint=nearest(name, table))
    return names


class Scorer:
    """Scores completions of one task. Answers that differ only in a plain thought are judged once."""

    CACHE = 4096
    """Answers kept for one task."""

    def __init__(self, gold: Gold, protocol: str, rules: Rules, tools: Toolbox, category: str = "") -> None:
        self.gold, self.rules, self.tools, self.category = gold, rules, tools, category
        self._protocol = None if protocol == "auto" else PROTOCOLS[protocol]
        self._lenient = rules.config.reading == "lenient"
        self._gated = "ungated_format" in rules.lifted
        self._judges = "free_response" in rules.lifted
        self.bounds = (-3.0, 4.0) if gold.calls or self._judges else (0.0, 1.0)
        most = gold.maxima
        self.maxima = most if gold.calls else ((1.0, 0.0, 0.0) if self._judges else (None, None, None))
        self._most = sum(most)
        self._kept: dict[tuple[str, bool], tuple] = {}
        self._keeps = not rules.extras and not rules.components

    @property
    def limits(self) -> tuple[float | None, ...]:
        """What the task alone decides, in the order of TASK_COLUMNS."""
        return 1.0, *self.maxima, *self.bounds

    def row(self, text: str, finish_reason: str | None = None, tokens: int | None = None) -> tuple:
        """The answer's columns, in the order of ANSWER_COLUMNS; equal answers are judged once.

        A thought without any tag decides nothing but further rewards, so what is read and remembered leaves it out.
        """
        cut = finish_reason == "length"
        if not self._keeps:
            return _cells(self._judge(text, cut, tokens))
        if text.startswith("<think>") and len(text) <= MAX_CHARS:
            end = text.find("<", 7)
            if text.startswith("</think>", end):
                text = "<think>" + text[end:]
        cells = self._kept.get((text, cut))
        if cells is None:
            cells = _cells(self._judge(text, cut, tokens))
            if len(self._kept) < self.CACHE and len(text) < 20_000:
                self._kept[text, cut] = cells
        return cells

    def score(self, text: str, finish_reason: str | None = None, tokens: int | None = None) -> Scored:
        """One completion. Never raises on any text (a user's own component may)."""
        status, form, name, key, value, right, valid, example, reward, calls, extra = self._judge(
            text, finish_reason == "length", tokens
        )
        return Scored(
            status, calls, form, name, key, value, 1.0, *self.maxima, right, valid, example, reward, *self.bounds, extra
        )

    def _judge(self, text: str, cut: bool, tokens: int | None) -> tuple:
        protocol = self._protocol or PROTOCOLS[detect(text)]
        if protocol.typed:
            parsed = protocol.parse(text, self.gold.kind, types=self.tools.parameter)
        else:
            parsed = protocol.parse(text, self.gold.kind, lifted=self.rules.lifted)
        calls, broken = parsed.strict_calls, parsed.broken
        if self._lenient:
            calls, broken = (parsed.calls if parsed.calls or not parsed.slip else None), ()
        if self._gated and not parsed.format_ok:
            calls = None
        part = NOTHING
        if self.gold.calls:
            part = components(self.gold.calls, calls, broken, self.rules.equal, self.rules.config.match)
        return self._put_together(text, parsed, calls, part, cut, tokens)

    def _put_together(
        self, text: str, parsed: Parsed, calls: Sequence[Call] | None, part: Any, cut: bool, tokens: int | None
    ) -> tuple:
        """ANSWER_COLUMNS with calls and extra still as objects."""
        well_formed = 1.0 if parsed.format_ok else 0.0
        valid = self.tools.valid(parsed.calls)
        status = _status(text, parsed, valid, cut, self.tools)
        name: float | None = None
        key: float | None = None
        value: float | None = None
        reward, right = well_formed, parsed.format_ok and not parsed.calls
        if self.gold.calls:
            name, key, value = part.name, part.key, part.value
            reward += 6.0 * part.total / self._most - 3.0
            right = parsed.format_ok and (name, key, value) == self.maxima
        elif self._judges:
            name, key, value = (0.0 if parsed.calls or parsed.strict_calls else 1.0), 0.0, 0.0
            reward += 6.0 * name - 3.0
        extra: dict[str, Any] = {"slip": parsed.slip} if parsed.slip and parsed.slip != status else {}
        if not self._keeps:
            answer = Answer(
                text, status, parsed, calls, self.gold.calls, self.gold.kind, self.tools, part, self.rules.config,
                tokens, self.gold.allowed, self.category,
            )  # fmt: skip
            extra |= _further(answer, self.rules)
        example = self_example(text, parsed, self.tools)
        return status, well_formed, name, key, value, right, valid, example, reward, parsed.calls, extra


def _cells(judged: tuple) -> tuple:
    *plain, calls, extra = judged
    return *plain, calls_json(calls), _extra_json(extra)


def _status(text: str, parsed: Parsed, valid: bool | None, cut: bool, tools: Toolbox) -> str:
    if cut and not (parsed.format_ok and parsed.calls):
        return "truncated"
    if parsed.status != "ok":
        return parsed.status
    if valid is False:
        for call in parsed.calls:
            if call.name not in tools.names:
                return "unknown_tool"
    return "duplicate_key" if repeats_key(text, parsed.calls) else "ok"


def _further(answer: Answer, rules: Rules) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rules.extras:
        found["rewards"] = {name: float(function(answer)) for name, function in rules.extras.items()}
    if rules.components:
        found["components"] = {name: float(function(answer)) for name, function in rules.components.items()}
    return found


def score_text(
    text: str,
    gold: Gold,
    protocol: str,
    config: ScoreConfig,
    tools: Toolbox | Sequence[Mapping[str, Any]] = (),
    finish_reason: str | None = None,
) -> Scored:
    """Score one completion. Never raises on any text; KeyError for an unknown protocol."""
    box = tools if isinstance(tools, Toolbox) else Toolbox.of(tools)
    return Scorer(gold, protocol, Rules.of(config), box).score(text, finish_reason)


EVEN = (1.0, 1.0, 1.0)
"""Weights of name, key and value under which the reward is ToolRL's."""


def combine(
    format: float,
    name: float | None,
    key: float | None,
    value: float | None,
    maxima: tuple[float | None, float | None, float | None],
    weights: tuple[float, float, float] = EVEN,
    base: float | None = None,
) -> float:
    """Reward from components: format + (-3 + 6 * sum w_k R_k / sum w_k R_k^max), or format without gold calls.

    `maxima` and `weights` are in the order name, key, value. Range: [-3, 4] with gold calls, [0, 1] without; format
    alone where the weights leave nothing to earn. The gold earns exactly 4 under any positive weights. `base` is the
    `reward` column: it is added up in ToolRL's order, which the components alone give only up to the last bit, and
    is the result under even weights.
    """
    if name is None or maxima[0] is None:
        return format
    earned = weights[0] * name + weights[1] * key + weights[2] * value
    possible = weights[0] * maxima[0] + weights[1] * maxima[1] + weights[2] * maxima[2]
    if not possible:
        return format
    if tuple(weights) == EVEN:
        return format + (6.0 * earned / possible - 3.0) if base is None else base
    return format + (6.0 * (earned / possible) - 3.0)  # the share first: it is exactly 1 where all is earned
