"""ToolRL's reward: every published test vector, its quirks, and bit equality with a slow twin."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toolrl_twin
from support.curation_data import RIGHT as RIGHT_ROW
from support.curation_data import score_frame

from toolsample_cli.config import ScoreConfig
from toolsample_cli.curriculum import reweighting
from toolsample_cli.score.components import components
from toolsample_cli.score.scorer import Gold, combine, score_text
from toolsample_cli.toolcalls.call import Call

PLAIN = ScoreConfig()
ONE = (Call("a", {"x": 1, "y": "q"}),)
RIGHT = '{"name": "a", "parameters": {"x": 1, "y": "q"}}'


def block(*lines: str) -> str:
    return "<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


def reply(*lines: str, thought: str = "<think> t </think>\n") -> str:
    return thought + block(*lines)


def line(name: str, /, **parameters: object) -> str:
    return json.dumps({"name": name, "parameters": parameters})


TWO = (Call("a", {"x": 1}), Call("b", {"y": 2}))
VECTORS = [  # what, gold calls, reply, total, format, correctness
    ("exact", ONE, reply(RIGHT), 4.0, 1, 3),
    ("one of two values wrong", ONE, reply(line("a", x=1, y="z")), 2.5, 1, 1.5),
    ("text instead of a number", ONE, reply(line("a", x="1", y="q")), 2.5, 1, 1.5),
    ("1.0 instead of 1", ONE, reply(line("a", x=1.0, y="q")), 4.0, 1, 3),
    ("true instead of 1", ONE, reply(line("a", x=True, y="q")), 4.0, 1, 3),
    ("wrong tool name", ONE, reply(line("b", x=1, y="q")), -2.0, 1, -3),
    ("both keys wrong", ONE, reply(line("a", u=1, v="q")), -0.5, 1, -1.5),
    ("one key missing", ONE, reply(line("a", x=1)), 1.75, 1, 0.75),
    ("one extra key", ONE, reply(line("a", x=1, y="q", z=0)), 3.5, 1, 2.5),
    ("call emitted twice", ONE, reply(RIGHT, RIGHT), 3.25, 1, 2.25),
    ("gold without parameters", (Call("a"),), reply(line("a", z=1)), 1.0, 1, 0),
    ("order swapped", TWO, reply(line("b", y=2), line("a", x=1)), 4.0, 1, 3),
    ("a() and b(y=2)", (Call("a"), Call("b", {"y": 2})), reply(line("a"), line("b", y=3)), 2.5, 1, 1.5),
    ("no think block", ONE, block(RIGHT), 3.0, 0, 3),
    ("unneeded response", ONE, reply(RIGHT) + "\n<response> r </response>", 3.0, 0, 3),
    ("two newlines before the block", ONE, reply(RIGHT, thought="<think> t </think>\n\n"), 3.0, 0, 3),
    ("two think blocks", ONE, reply(RIGHT, thought="<think> t </think> junk <think> u </think>\n"), 4.0, 1, 3),
    ("unknown field", ONE, reply('{"name": "a", "id": 7, "parameters": {"x": 1, "y": "q"}}'), 4.0, 1, 3),
    ("arguments instead of parameters", ONE, reply('{"name": "a", "arguments": {"x": 1, "y": "q"}}'), -2.0, 1, -3),
    ("pretty-printed", ONE, reply(json.dumps(json.loads(RIGHT), indent=2)), -2.0, 1, -3),
    ("empty block", ONE, reply(""), -2.0, 1, -3),
    ("no parameters field", ONE, reply('{"name": "a"}'), -2.0, 1, -3),
    ("JSON list line", ONE, reply(f"[{RIGHT}]"), -2.0, 1, -3),
    ("literal tag while thinking", ONE, reply(RIGHT, thought="<think> use <tool_call> </think>\n"), -3.0, 0, -3),
]


@pytest.mark.parametrize(("what", "gold", "text", "total", "form", "correct"), VECTORS, ids=[v[0] for v in VECTORS])
def test_vectors(what: str, gold: tuple, text: str, total: float, form: float, correct: float) -> None:
    """Each vector gives ToolRL's number exactly, and the components give it again by `combine`."""
    scored = score_text(text, Gold(gold, "calls"), "rlla", PLAIN)
    assert (scored.reward, scored.format) == (total, form), what
    assert scored.reward - scored.format == correct
    again = combine(scored.format, scored.name, scored.key, scored.value, Gold(gold, "calls").maxima)
    assert again == total
    truth = reply(*(line(call.name, **call.arguments) for call in gold))
    assert toolrl_twin.total(text, truth) == total


@pytest.mark.parametrize(
    ("text", "total"),
    [(reply(RIGHT), 0.0), ("<think> t </think>\n<response> anything </response>", 1.0), ("plain text", 0.0)],
)
def test_response_only_gold(text: str, total: float) -> None:
    """Where the gold only responds, nothing but the form counts (quirks Q3, Q4)."""
    scored = score_text(text, Gold((), "response"), "rlla", PLAIN)
    assert (scored.reward, scored.reward_min, scored.reward_max) == (total, 0.0, 1.0)
    assert (scored.name, scored.limits.key_max) == (None, None)
    assert scored.exact is (total == 1.0)


def test_greedy_matching_follows_gold_order() -> None:
    """The first gold call takes the best candidate even where an assignment would give more (quirk Q8)."""
    gold = (Call("f", {"a": 1, "b": 2}), Call("f", {"a": 1, "b": 3}))
    found = (Call("f", {"a": 1, "b": 3}), Call("f", {"a": 1, "b": 9}))
    greedy = components(gold, found)
    assert (greedy.name, greedy.key, greedy.value, greedy.total) == (1.0, 2.0, 2.0, 5.0)
    best = components(gold, found, match="optimal")
    assert (best.value, best.total, best.pairs) == (3.0, 6.0, ((0, 1), (1, 0)))


def test_a_broken_call_voids_everything_only_when_it_comes_up() -> None:
    """Missing parameters raise in ToolRL only when the name is compared (quirk Q7)."""
    gold = Gold(ONE, "calls")
    assert score_text(reply(RIGHT, '{"name": "other"}'), gold, "rlla", PLAIN).reward == 1 + 6 * 3.5 / 4 - 3
    assert score_text(reply('{"name": "a"}', RIGHT), gold, "rlla", PLAIN).reward == -2.0


NAMES = st.sampled_from(["a", "b", "find it"])
VALUES = st.sampled_from([0, 1, 1.0, True, None, "1", "q", "Q", [1, 2], [2, 1], {"k": 1}, {}, ""])
CALLS = st.lists(
    st.builds(Call, NAMES, st.dictionaries(st.sampled_from(["x", "y", "z", "name"]), VALUES, max_size=4)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(gold=CALLS, found=CALLS, seed=st.integers(0, 2**20))
def test_equals_the_slow_twin_to_the_last_bit(gold: list, found: list, seed: int) -> None:
    """Also when the text is damaged anywhere."""
    pick = random.Random(seed)
    text = reply(*(line(call.name, **call.arguments) for call in found))
    if seed % 2:
        at = pick.randrange(len(text))
        bits = ["", "<tool_call>", "</tool_call>", "\n", '"', "}", "<think>", '{"name": "a"}', "null", "[", "</think>"]
        text = text[:at] + pick.choice(bits) + text[at + pick.randrange(3) :]
    truth = reply(*(line(call.name, **call.arguments) for call in gold))
    scored = score_text(text, Gold(tuple(gold), "calls"), "rlla", PLAIN)
    assert scored.reward == toolrl_twin.total(text, truth)
    parts = scored.format, scored.name, scored.key, scored.value, Gold(tuple(gold), "calls").maxima
    assert combine(*parts) == pytest.approx(scored.reward, abs=1e-12)
    assert combine(*parts, base=scored.reward) == scored.reward


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["response", "both", "none", "calls"]),
    parts=st.lists(
        st.sampled_from(
            [
                "<think>",
                "t",
                "</think>",
                "\n",
                block(RIGHT),
                "<response>",
                "r",
                "</response>",
                "<tool_call>",
                "</tool_call>",
            ]
        ),
        max_size=12,
    ),
)
def test_form_equals_the_slow_twin(kind: str, parts: list) -> None:
    """The four forms of methods 3.3, on any mixture of their pieces."""
    truth = {"response": "<response>", "both": "<tool_call><response>", "none": "", "calls": "<tool_call>"}[kind]
    gold = Gold(ONE if kind in ("calls", "both") else (), kind)
    text = "".join(parts)
    assert score_text(text, gold, "rlla", PLAIN).format == toolrl_twin.form(text.strip(), truth)


WEIGHT = st.floats(1e-9, 1e9)


@settings(max_examples=400, deadline=None)
@given(gold=CALLS, found=CALLS, weights=st.tuples(WEIGHT, WEIGHT, WEIGHT))
def test_weights_keep_the_ends(gold: list, found: list, weights: tuple) -> None:
    """Whatever the positive weights, the gold earns exactly 4, nothing earns more, and nothing right is -3."""
    maxima = Gold(tuple(gold), "calls").maxima
    part = components(gold, found)
    assert combine(1.0, *maxima, maxima, weights) == 4.0
    assert -3.0 <= combine(0.0, part.name, part.key, part.value, maxima, weights) <= 3.0
    assert combine(0.0, 0.0, 0.0, 0.0, maxima, weights) == -3.0
    assert combine(1.0, None, None, None, (None, None, None), weights) == 1.0


def test_a_batch_pays_the_gold_exactly_under_any_weights() -> None:
    """The same form for a whole frame."""
    frame, draw = score_frame({"a": [RIGHT_ROW] * 2}), random.Random(3)
    for _ in range(100):
        weights = {name: draw.uniform(0.5, 2) for name in ("name", "key", "value")}
        assert reweighting.batch(frame, weights, 0.0)["reward"].to_list() == [4.0, 4.0]


def test_weights_that_leave_nothing_to_earn_leave_the_format() -> None:
    """A task without arguments has no value component to weigh."""
    assert combine(1.0, 1.0, 1.0, 0.0, (1.0, 1.0, 0.0), (0.0, 0.0, 1.0)) == 1.0
