"""What a completion earns: ToolRL's reward (arXiv 2504.13958) split in the four sub-tasks of DSCL (methods 1.2).

Correctness is mapped to [-3, 3], so that call items lie in [-3, 4] and items without a gold call in [0, 1]
(our reading; the digests of DSCL print other bounds). With all weights 1 it is ToolRL's reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from toolsample_cli.config import ScoreConfig
from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError
from toolsample_cli.json_types import Json, Row
from toolsample_cli.score.components import NOTHING, Components, components
from toolsample_cli.score.rewards import REWARDS, Answer
from toolsample_cli.score.self_example import self_example
from toolsample_cli.score.values import equality
from toolsample_cli.toolcalls.call import MAX_CHARS, Call, calls_json, canonical, read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS, Parsed, protocol_of, rlla
from toolsample_cli.toolcalls.protocols.foreign import calls_elsewhere
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
    allowed: tuple[Row, ...] | None = None

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


class Limits(NamedTuple):
    """What the task alone decides, under the names of the columns of `schema.SCORES`."""

    format_max: float
    name_max: float | None
    key_max: float | None
    value_max: float | None
    reward_min: float
    reward_max: float


class Cells(NamedTuple):
    """What the answer decides, as it is stored, under the names of the columns of `schema.SCORES`."""

    parse_status: str
    format: float | None = None
    name: float | None = None
    key: float | None = None
    value: float | None = None
    exact: bool | None = None
    schema_valid: bool | None = None
    self_example: bool | None = None
    reward: float | None = None
    calls_json: str = "[]"
    extra_json: str = "{}"


ERRORED = Cells("error")
"""The cells of a rollout that has no completion: everything earned is null."""


class Scored(NamedTuple):
    """Everything `score` finds about one completion."""

    parse_status: str
    calls: tuple[Call, ...]
    format: float
    name: float | None
    key: float | None
    value: float | None
    exact: bool
    schema_valid: bool | None
    self_example: bool
    reward: float
    extra: Row
    limits: Limits

    @property
    def reward_min(self) -> float:
        """The least that an answer to this task can earn."""
        return self.limits.reward_min

    @property
    def reward_max(self) -> float:
        """The most that an answer to this task can earn."""
        return self.limits.reward_max

    @property
    def cells(self) -> Cells:
        """The answer's columns as they are stored."""
        return Cells(
            self.parse_status, self.format, self.name, self.key, self.value, self.exact, self.schema_valid,
            self.self_example, self.reward, calls_json(self.calls), canonical(self.extra) if self.extra else "{}",
        )  # fmt: skip

    @property
    def columns(self) -> Row:
        """The row's values by column, without those copied from rollout and task."""
        return {**self.cells._asdict(), **self.limits._asdict()}


@dataclass(frozen=True)
class Rules:
    """A ScoreConfig made ready: the comparison, the lifted quirks, the further rewards and components by name."""

    config: ScoreConfig
    equal: Callable[[Json, Json], bool]
    lifted: frozenset[str]
    extras: Mapping[str, Component]
    components: Mapping[str, Component]

    @classmethod
    def of(cls, config: ScoreConfig, components: Mapping[str, Component] | None = None) -> Rules:
        """ConfigError for an unknown quirk, reward, preset or setting."""
        lifted = _chosen("lift", config.lift, QUIRKS)
        extras = {name: REWARDS[name].function for name in _chosen("rewards", config.rewards, REWARDS)}
        return cls(config, equality(config.values), frozenset(lifted), extras, components or {})


def _chosen(knob: str, text: str, table: Mapping[str, object]) -> list[str]:
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
        low, high = (-3.0, 4.0) if gold.calls or self._judges else (0.0, 1.0)
        most = gold.maxima
        self.maxima: tuple[float | None, float | None, float | None] = most if gold.calls else (None, None, None)
        if self._judges and not gold.calls:
            self.maxima = (1.0, 0.0, 0.0)
        name_max, key_max, value_max = self.maxima
        self.limits = Limits(1.0, name_max, key_max, value_max, low, high)
        self._most = sum(most)
        self._kept: dict[tuple[str, bool], Cells] = {}
        self._keeps = not rules.extras and not rules.components
        self._opens = rules.config.thought_in_prompt

    def row(self, text: str, finish_reason: str | None = None, tokens: int | None = None) -> Cells:
        """The answer's columns; equal answers are judged once.

        A thought without any tag decides nothing but further rewards, so what is read and remembered leaves it out.
        """
        cut = finish_reason == "length"
        if self._opens:
            text = _opened(text)
        if not self._keeps:
            return self._judge(text, cut, tokens).cells
        if text.startswith("<think>") and len(text) <= MAX_CHARS:
            end = text.find("<", 7)
            if text.startswith("</think>", end):
                text = "<think>" + text[end:]
        cells = self._kept.get((text, cut))
        if cells is None:
            cells = self._judge(text, cut, tokens).cells
            if len(self._kept) < self.CACHE and len(text) < 20_000:
                self._kept[text, cut] = cells
        return cells

    def score(self, text: str, finish_reason: str | None = None, tokens: int | None = None) -> Scored:
        """One completion. Never raises on any text (a user's own component may)."""
        return self._judge(_opened(text) if self._opens else text, finish_reason == "length", tokens)

    def _judge(self, text: str, cut: bool, tokens: int | None) -> Scored:
        protocol = self._protocol or PROTOCOLS[protocol_of(text)]
        if protocol.typed:
            parsed = protocol.parse(text, self.gold.kind, types=self.tools.parameter)
        else:
            parsed = protocol.parse(text, self.gold.kind, lifted=self.rules.lifted)
        if parsed.status == "no_call" and not parsed.calls:
            body = parsed.response or "" if protocol.name == "openai" else text
            body = body.rpartition("</think>")[2]
            if calls_elsewhere(body, self.tools.names, self.tools.parameter):
                parsed.status, parsed.format_ok = "foreign_call", False
        calls, broken = parsed.strict_calls, parsed.broken
        if self._lenient:
            calls, broken = (parsed.calls if parsed.calls or not parsed.slip else None), ()
        if self._gated and not parsed.format_ok:
            calls = None
        written = calls
        if calls is not None and protocol.name == "pythonic":
            calls = tuple(Call(call.name, {k: _listed(v) for k, v in call.arguments.items()}) for call in calls)
        part = NOTHING
        if self.gold.calls:
            part = components(self.gold.calls, calls, broken, self.rules.equal, self.rules.config.match)
        scored = self._put_together(text, parsed, part, cut)
        if self._keeps:
            return scored
        answer = Answer(
            text=text, status=scored.parse_status, parsed=parsed, calls=calls, written=written, gold=self.gold.calls,
            gold_kind=self.gold.kind, tools=self.tools, components=part, config=self.rules.config, tokens=tokens,
            allowed=self.gold.allowed, category=self.category, protocol=protocol.name,
        )  # fmt: skip
        return scored._replace(extra={**scored.extra, **_further(answer, self.rules)})

    def _put_together(self, text: str, parsed: Parsed, part: Components, cut: bool) -> Scored:
        well_formed = 1.0 if parsed.format_ok else 0.0
        valid = self.tools.valid(parsed.calls)
        status = _status(text, parsed, valid, cut, self.tools)
        name: float | None = None
        key: float | None = None
        value: float | None = None
        reward, right = well_formed, parsed.format_ok and parsed.status == "no_call" and not parsed.calls
        if self.gold.calls:
            name, key, value = part.name, part.key, part.value
            reward += 6.0 * part.total / self._most - 3.0
            right = parsed.format_ok and (name, key, value) == self.maxima
        elif self._judges:
            called = parsed.calls or parsed.strict_calls or parsed.status == "foreign_call"
            name, key, value = (0.0 if called else 1.0), 0.0, 0.0
            reward += 6.0 * name - 3.0
        extra: Row = {"slip": parsed.slip} if parsed.slip and parsed.slip != status else {}
        example = self_example(text, parsed, self.tools)
        return Scored(
            status, parsed.calls, well_formed, name, key, value, right, valid, example, reward, extra, self.limits
        )


def _opened(text: str) -> str:
    """The reply with the opening tag that stood at the end of its prompt."""
    return text if text.lstrip().startswith("<think>") else "<think>" + text


def _listed(value: Json) -> Json:
    """The value with tuples, which JSON has not, as lists."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value


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


def _further(answer: Answer, rules: Rules) -> Row:
    found: Row = {}
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
    tools: Toolbox | Sequence[Row] = (),
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
    maxima: Sequence[float | None],
    weights: tuple[float, float, float] = EVEN,
    base: float | None = None,
) -> float:
    """Reward from components: format + (-3 + 6 * sum w_k R_k / sum w_k R_k^max), or format without gold calls.

    `maxima` and `weights` are in the order name, key, value. Range: [-3, 4] with gold calls, [0, 1] without; format
    alone where the weights leave nothing to earn. The gold earns exactly 4 under any positive weights. `base` is the
    `reward` column: it is added up in ToolRL's order, which the components alone give only up to the last bit, and
    is the result under even weights.
    """
    name_max, key_max, value_max = maxima
    if name is None or key is None or value is None or name_max is None or key_max is None or value_max is None:
        return format
    earned = weights[0] * name + weights[1] * key + weights[2] * value
    possible = weights[0] * name_max + weights[1] * key_max + weights[2] * value_max
    if not possible:
        return format
    if tuple(weights) == EVEN:
        return format + (6.0 * earned / possible - 3.0) if base is None else base
    return format + (6.0 * (earned / possible) - 3.0)  # the share first: it is exactly 1 where all is earned
