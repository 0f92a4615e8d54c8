"""The table of published rewards: each one pure function of an answer, with its range and its source.

ToolRL's variants are those its repository switches by environment variables (methods Q11 to Q14); each says what it
changes against `toolrl`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolsample_cli.config import ScoreConfig
from toolsample_cli.score import bfcl_match
from toolsample_cli.score.components import Components, jaccard
from toolsample_cli.score.self_example import self_example
from toolsample_cli.toolcalls.call import Call, loads
from toolsample_cli.toolcalls.protocols import Parsed
from toolsample_cli.toolcalls.tools import Toolbox


@dataclass(frozen=True)
class Answer:
    """What a reward may look at. `tokens` is the length of the completion (None when unknown).

    `allowed` are BFCL's accepted values, one {tool: {parameter: [values]}} a gold call, when the task has them.
    `calls` are those of the reading that the config asks for, None where it failed; `components` are what they earn.
    `written` are the same calls before tuples became lists, which only Python's syntax tells apart.
    """

    text: str
    status: str
    parsed: Parsed
    calls: Sequence[Call] | None
    written: Sequence[Call] | None
    gold: Sequence[Call]
    gold_kind: str
    tools: Toolbox
    components: Components | None
    config: ScoreConfig
    tokens: int | None = None
    allowed: Sequence[Mapping[str, bfcl_match.Options]] | None = None
    category: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class Reward:
    """One published reward: what it is, where it comes from, its range."""

    meaning: str
    source: str
    low: float
    high: float
    function: Callable[[Answer], float]


def _scaled(answer: Answer, form: tuple[float, float], scale: float, earned: float, most: float) -> float:
    """Format (worst, best) plus `earned` of `most` points mapped to [-scale, scale]."""
    total = form[1] if answer.parsed.format_ok else form[0]
    return total + (2.0 * scale * earned / most - scale) if answer.gold else total


def _most(answer: Answer) -> float:
    return 1.0 + len(answer.gold) + sum(len(call.arguments) for call in answer.gold)


def _plain(answer: Answer, form: tuple[float, float], scale: float) -> float:
    return _scaled(answer, form, scale, answer.components.total if answer.components else 0.0, _most(answer))


def toolrl(answer: Answer) -> float:
    """Format in {0, 1}, correctness in [-3, 3]."""
    return _plain(answer, (0.0, 1.0), 3.0)


def toolrl_coarse(answer: Answer) -> float:
    """All or nothing: 3 for the gold's list of calls in its order, else -3."""
    return _scaled(answer, (0.0, 1.0), 3.0, float(_same_list(answer)), 1.0)


def _same_list(answer: Answer) -> bool:
    whole = not answer.parsed.broken and not answer.parsed.odd
    return whole and answer.calls is not None and list(answer.calls) == list(answer.gold)


def toolrl_intermediate(answer: Answer) -> float:
    """Names by Jaccard, and one point for each gold call that is exactly there."""
    if answer.calls is None:
        return _scaled(answer, (0.0, 1.0), 3.0, 0.0, 1.0)
    unfit = {*answer.parsed.broken, *answer.parsed.odd}
    left = [call for at, call in enumerate(answer.calls) if at not in unfit]
    earned = jaccard([call.name for call in answer.gold], [call.name for call in answer.calls])
    for wanted in answer.gold:
        if wanted in left:
            left.remove(wanted)
            earned += 1.0
    return _scaled(answer, (0.0, 1.0), 3.0, earned, 1.0 + len(answer.gold))


def toolrl_strict_lists(answer: Answer) -> float:
    """The `refined` flag: lists of names and of keys must be equal, order included, or earn nothing (Q12)."""
    if _same_list(answer):
        return _scaled(answer, (0.0, 1.0), 3.0, 1.0, 1.0)
    return _scaled(answer, (0.0, 1.0), 3.0, _strict_points(answer), _most(answer))


def _strict_points(answer: Answer) -> float:
    calls = answer.calls or ()
    earned = float(bool(calls) and [call.name for call in answer.gold] == [call.name for call in calls])
    used: set[int] = set()
    for wanted in answer.gold:
        best, best_at = 0.0, -1
        for at, call in enumerate(calls):
            if at in used or call.name != wanted.name:
                continue
            if at in answer.parsed.broken:
                return 0.0
            here = float(list(wanted.arguments) == list(call.arguments))
            here += sum(key in call.arguments and call.arguments[key] == v for key, v in wanted.arguments.items())
            if here > best:
                best, best_at = here, at
        if best_at >= 0:
            used.add(best_at)
            earned += best
    return earned


def toolrl_equal_max(answer: Answer) -> float:
    """Correctness in [-1, 1]: the same maximum as the format."""
    return _plain(answer, (0.0, 1.0), 1.0)


def toolrl_two_stage(answer: Answer) -> float:
    """Before step 30 format up to 1 and correctness in [-1, 1]; then format up to 0.5, correctness [-3, 3] (Q13)."""
    return _plain(answer, (0.0, 1.0), 1.0) if answer.config.step < 30 else _plain(answer, (0.0, 0.5), 3.0)


def toolrl_smooth(answer: Answer) -> float:
    """Format from [-2, 2] to [-1, 1] and correctness from 2 to 3, a 150th a step (Q14)."""
    share = answer.config.step / 150
    return _plain(answer, (min(-1.0, -2.0 + 2.0 * share), max(1.0, 2.0 - share)), min(3.0, 2.0 + share))


def toolrl_length(answer: Answer) -> float:
    """`toolrl` plus up to 1 for the words of the thought out of 512, rounded to hundredths."""
    return toolrl(answer) + _length(answer.text, 512.0)


def toolrl_length_dynamic(answer: Answer) -> float:
    """The same out of 384 words, growing to 640 at step 105."""
    return toolrl(answer) + _length(answer.text, 384.0 + 256.0 * answer.config.step / 105)


def _length(text: str, most: float) -> float:
    if "<think>" not in text or "</think>" not in text:
        return 0.0
    thought = text.rpartition("<think>")[2].partition("</think>")[0]
    return min(1.0, round(len(thought.split()) / most, 2))


def dscl_literal(answer: Answer) -> float:
    """Format plus the sum of the parts mapped to [-3, 4]: the digests of DSCL taken literally."""
    form = float(answer.parsed.format_ok)
    earned = answer.components.total if answer.components else 0.0
    return form + (7.0 * earned / _most(answer) - 3.0) if answer.gold else form


def tool_n1(answer: Answer) -> float:
    """1 when there is a thought and the calls equal the gold's as a multiset of texts with sorted keys, else 0.

    Tool-N1 has no items without a gold call; for these, declining after a thought earns 1 (our reading).
    """
    if not answer.gold:
        return irrelevance(answer) if answer.parsed.thought is not None else 0.0
    if answer.parsed.thought is None or answer.calls is None or answer.parsed.broken:
        return 0.0
    return float(_multiset(answer.calls) == _multiset(answer.gold))


def _multiset(calls: Sequence[Call]) -> Counter[tuple[str, str]]:
    return Counter((call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls)


def bfcl_ast(answer: Answer) -> float:
    """1 when BFCL's AST checker would accept the calls (no call where the gold has none), else 0."""
    if not answer.gold:
        return irrelevance(answer)
    if answer.written is None or answer.parsed.broken:
        return 0.0
    allowed = answer.allowed or [{call.name: bfcl_match.options_of(call)} for call in answer.gold]
    kind = "parallel" if len(answer.gold) > 1 or "parallel" in answer.category else "multiple"
    language = next((name for name in ("javascript", "java") if name in answer.category), "python")
    return float(bfcl_match.accepts(answer.tools.tools, answer.written, allowed, kind, language))


def api_bank(answer: Answer) -> float:
    """1 when any emitted call equals the gold's first one: the soft rule of ToolRL's API-Bank script (methods Q18).

    For ToolRL's own protocol calls are read as that script reads them: behind the last <tool_call>, each line by
    itself, and a line without name or parameters counts as the parameters. Without a gold call, abstaining earns 1.
    """
    if not answer.gold:
        return irrelevance(answer)
    wanted = answer.gold[0]
    if answer.protocol != "rlla":
        return float(any(call == wanted for call in answer.calls or ()))
    block = answer.text.split("<tool_call>")[-1].split("</tool_call>")[0]
    return float(any(_is_line_of(wanted, line) for line in block.strip().split("\n")[:1000]))


def _is_line_of(wanted: Call, line: str) -> bool:
    try:
        value = loads(line)
    except ValueError:
        return False
    if not isinstance(value, dict) or "name" not in value or "parameters" not in value:
        return bool(value == wanted.arguments)
    return bool(value["name"] == wanted.name and value["parameters"] == wanted.arguments)


def schema_valid(answer: Answer) -> float:
    """1 when every call names an offered tool and fits its schema, and none was wanted where none was made."""
    valid = answer.tools.valid(answer.parsed.calls)
    return float(bool(valid) if answer.gold else valid is not False)


def irrelevance(answer: Answer) -> float:
    """1 for calling something exactly where the gold calls; what could not be read is no declining."""
    declined = answer.status == "no_call" and not answer.parsed.calls
    return float(bool(answer.parsed.calls) if answer.gold else declined)


def overlong(answer: Answer) -> float:
    """DAPO's soft punishment in [-1, 0]: linear over the last `overlong_buffer` tokens before `overlong_max`."""
    if answer.tokens is None:
        return 0.0
    start = answer.config.overlong_max - answer.config.overlong_buffer
    return -min(1.0, max(0.0, (answer.tokens - start) / answer.config.overlong_buffer))


def self_example_bonus(answer: Answer) -> float:
    """1 when the condition of the self-exemplifying bonus is met (ToolExpander pays 0.01 for it)."""
    return float(self_example(answer.text, answer.parsed, answer.tools))


_TOOLRL, _DAPO = "ToolRL, arXiv 2504.13958", "DAPO, arXiv 2503.14476"
_EXPANDER = "ToolExpander, arXiv 2510.07737 (our reading)"
REWARDS: dict[str, Reward] = {
    "toolrl": Reward("format, names, keys and values", _TOOLRL, -3, 4, toolrl),
    "toolrl_coarse": Reward("all calls right in order, or nothing", _TOOLRL, -3, 4, toolrl_coarse),
    "toolrl_intermediate": Reward("names, then whole calls", _TOOLRL, -3, 4, toolrl_intermediate),
    "toolrl_strict_lists": Reward("lists of names and keys equal or nothing", _TOOLRL, -3, 4, toolrl_strict_lists),
    "toolrl_equal_max": Reward("correctness as large as format", _TOOLRL, -1, 2, toolrl_equal_max),
    "toolrl_two_stage": Reward("small scale first, full scale from step 30", _TOOLRL, -3, 3.5, toolrl_two_stage),
    "toolrl_smooth": Reward("scale moves with the step", _TOOLRL, -5, 4, toolrl_smooth),
    "toolrl_length": Reward("toolrl plus length of the thought", _TOOLRL, -3, 5, toolrl_length),
    "toolrl_length_dynamic": Reward("the same with a moving length", _TOOLRL, -3, 5, toolrl_length_dynamic),
    "dscl_literal": Reward("correctness mapped to [-3, 4]", "DSCL, arXiv 2509.14718 (digest)", -3, 5, dscl_literal),
    "tool_n1": Reward("binary: thought and exact calls", "Tool-N1, arXiv 2505.00024", 0, 1, tool_n1),
    "bfcl": Reward("binary: BFCL's AST checker", "bfcl-eval 2026.3.23", 0, 1, bfcl_ast),
    "api_bank": Reward("binary: any call is the gold's", _TOOLRL + ", API-Bank script", 0, 1, api_bank),
    "schema": Reward("binary: calls fit their schemas", "JSON Schema 2020-12", 0, 1, schema_valid),
    "irrelevance": Reward("binary: calls where a call is wanted, declines elsewhere", "BFCL", 0, 1, irrelevance),
    "overlong": Reward("punishment of long completions", _DAPO, -1, 0, overlong),
    "self_example": Reward("binary: a self-made example in the thought", _EXPANDER, 0, 1, self_example_bonus),
}
"""Reward name -> what it is."""
