"""The table of rewards: ranges, gold is maximal, what each variant changes, quirks one by one, own components."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolsample_cli.config import ScoreConfig
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.score.components import assign, components
from toolsample_cli.score.custom import load_components
from toolsample_cli.score.rewards import REWARDS
from toolsample_cli.score.scorer import QUIRKS, Gold, Rules, Scorer, score_text
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tools import Toolbox

TOOLS = Toolbox.of(
    [{"name": name, "parameters": {"type": "object", "properties": {"x": {}, "y": {}}}} for name in ("f", "g", "h")]
)
ALL = ScoreConfig(rewards="all")
GOLD = (Call("f", {"x": 1, "y": "q"}), Call("g", {"x": 2}))


def paid(calls: list[Call], gold: tuple = GOLD, thought: str = "t", **settings: object) -> dict[str, float]:
    text = PROTOCOLS["rlla"].render(calls, None if calls else "no", thought)
    return paid_text(text, gold, **settings)


def paid_text(text: str, gold: tuple = GOLD, tokens: int | None = 10, **settings: object) -> dict[str, float]:
    rules = Rules.of(ScoreConfig(rewards="all", **settings))
    scorer = Scorer(Gold(gold, "calls" if gold else "response"), "rlla", rules, TOOLS)
    return scorer.score(text, None, tokens).extra["rewards"]


VALUE = st.sampled_from([0, 1, 2, "q", "Q", True, None, [1], {"k": 1}])
CALL = st.builds(
    Call, st.sampled_from(["f", "g", "h"]), st.dictionaries(st.sampled_from(["x", "y"]), VALUE, max_size=2)
)
CALLS = st.lists(CALL, max_size=4)
STEP = st.sampled_from([0, 29, 30, 75, 150, 400])


@settings(max_examples=200, deadline=None)
@given(gold=CALLS, found=CALLS, step=STEP, words=st.integers(0, 700), tokens=st.integers(0, 3000))
def test_every_reward_stays_in_its_range(gold: list, found: list, step: int, words: int, tokens: int) -> None:
    """Whatever the gold, the answer, the step and the length."""
    text = PROTOCOLS["rlla"].render(found, None if found else "no", "w " * words)
    for name, value in paid_text(text, tuple(gold), tokens, step=step).items():
        assert REWARDS[name].low <= value <= REWARDS[name].high, name


@settings(max_examples=200, deadline=None)
@given(gold=CALLS.filter(bool), found=CALLS, step=STEP, match=st.sampled_from(["greedy", "optimal"]))
def test_gold_is_maximal(gold: list, found: list, step: int, match: str) -> None:
    """No answer of the same length earns more than the gold itself, by any reward."""
    best, other = (paid(calls, tuple(gold), step=step, match=match) for calls in (gold, found))
    assert all(best[name] >= other[name] for name in best)
    assert best["toolrl"] == 4.0 and best["tool_n1"] == best["bfcl"] == best["schema"] == best["irrelevance"] == 1.0


@settings(max_examples=200, deadline=None)
@given(gold=CALLS.filter(bool), found=CALLS, seed=st.randoms(use_true_random=False))
def test_order_matters_only_where_the_rule_says_so(gold: list, found: list, seed: object) -> None:
    """Optimal pairing and all rewards but the two with ordered lists are blind to the order of the calls."""
    shuffled = list(found)
    seed.shuffle(shuffled)
    one, two = (paid(calls, tuple(gold), match="optimal") for calls in (found, shuffled))
    for name in set(one) - {"toolrl_coarse", "toolrl_strict_lists"}:
        assert one[name] == pytest.approx(two[name], abs=1e-12), name


@settings(max_examples=200, deadline=None)
@given(gold=CALLS.filter(bool), found=CALLS.filter(bool), match=st.sampled_from(["greedy", "optimal"]))
def test_adding_a_wrong_call_never_helps(gold: list, found: list, match: str) -> None:
    """A call of a tool that the gold does not call earns nothing anywhere."""
    worse = [*found, Call("wrong", {"x": 1})]
    one, two = paid(found, tuple(gold), match=match), paid(worse, tuple(gold), match=match)
    assert all(two[name] <= one[name] for name in one)


@settings(max_examples=200, deadline=None)
@given(gold=CALLS.filter(bool), found=CALLS)
def test_optimal_pairing_is_no_worse_than_greedy(gold: list, found: list) -> None:
    """And equals the best over all pairings, tried one by one."""
    best = components(gold, found, match="optimal")
    assert best.total >= components(gold, found).total - 1e-12
    assert best.total == pytest.approx(best.name + brute(gold, found))


def brute(gold: list, found: list) -> float:
    from toolsample_cli.score.components import similarity

    if not gold:
        return 0.0
    tries = [brute(gold[1:], found)]
    for at, call in enumerate(found):
        if call.name == gold[0].name:
            tries.append(sum(similarity(gold[0], call)) + brute(gold[1:], found[:at] + found[at + 1 :]))
    return max(tries)


def test_assignment_on_a_rectangle() -> None:
    """More rows than columns and the other way round."""
    assert assign([[4, 1, 3], [2, 0, 5]]) == [(0, 1), (1, 0)]
    assert assign([[4, 2], [1, 0], [3, 5]]) == [(0, 1), (1, 0)]
    assert assign([]) == [] == assign([[], []])


def test_variants_by_hand() -> None:
    """One value of three wrong, second call missing its twin: each variant's number worked out from its formula."""
    got = paid([Call("f", {"x": 1, "y": "z"}), Call("g", {"x": 2})])
    most, earned = 6.0, 5.0
    assert got["toolrl"] == 1 + 6 * earned / most - 3
    assert got["toolrl_coarse"] == 1 - 3
    assert got["toolrl_intermediate"] == 1 + (6 * 2 / 3 - 3)  # names 1, one of two calls whole
    assert got["toolrl_strict_lists"] == got["toolrl"]
    assert got["toolrl_equal_max"] == 1 + (2 * earned / most - 1)
    assert got["dscl_literal"] == 1 + 7 * earned / most - 3
    assert (got["tool_n1"], got["bfcl"], got["schema"], got["irrelevance"]) == (0, 0, 1, 1)


def test_strict_lists_want_the_order_of_keys() -> None:
    """The `refined` flag is stricter, not finer (Q12)."""
    assert paid([Call("f", {"y": "q", "x": 1}), GOLD[1]])["toolrl_strict_lists"] == 4.0  # equal lists short-cut
    got = paid([Call("f", {"y": "q", "x": 2}), GOLD[1]])
    assert got["toolrl_strict_lists"] == 1 + 6 * 4 / 6 - 3  # the keys of f earn nothing
    assert got["toolrl"] == 1 + 6 * 5 / 6 - 3


def test_scales_that_move_with_the_step() -> None:
    """Two stages (Q13) and the smooth schedule (Q14), at their ends and in the middle."""
    right, wrong = list(GOLD), [Call("h")]
    stages = [(paid(right, step=s)["toolrl_two_stage"], paid(wrong, step=s)["toolrl_two_stage"]) for s in (29, 30)]
    assert stages == [(2.0, 0.0), (3.5, -2.5)]
    smooth = [(paid(right, step=s)["toolrl_smooth"], paid(wrong, step=s)["toolrl_smooth"]) for s in (0, 75, 150, 300)]
    assert smooth == [(4.0, 0.0), (4.0, -1.0), (4.0, -2.0), (4.0, -2.0)]
    assert paid_text("no form", step=0)["toolrl_smooth"] == -4.0
    assert paid_text("no form", step=300)["toolrl_smooth"] == -4.0


def test_length_and_overlong() -> None:
    """Words of the thought out of 512, or a moving number; the punishment of the last tokens."""
    assert paid(list(GOLD), thought="w " * 256)["toolrl_length"] == 4.5
    assert paid(list(GOLD), thought="w " * 600)["toolrl_length"] == 5.0
    assert paid(list(GOLD), thought="w " * 320, step=105)["toolrl_length_dynamic"] == 4.5
    lengths = [paid_text("x", tokens=n, overlong_max=100, overlong_buffer=20)["overlong"] for n in (80, 90, 100, 200)]
    assert lengths == [0.0, -0.5, -1.0, -1.0]


EXAMPLE = '<example> Book one: {"name": "g", "arguments": {"x": 5}} </example>'
TEN = "this is right because the tool takes only one number here"


@pytest.mark.parametrize(
    ("thought", "bonus"),
    [
        (f"{EXAMPLE} {TEN}", True),
        (f"{EXAMPLE} {EXAMPLE} {TEN}", True),
        (f"{EXAMPLE} too few words", False),
        (f'<example> {{"name": "unknown", "arguments": {{}}}} </example> {TEN}', False),
        (f'<example> {{"name": "f", "parameters": {{"x": 1}}}} </example> {TEN}', False),  # the final call, copied
        (f"<example> no call </example> {TEN}", False),
        (f'</example> {{"name": "g", "arguments": {{"x": 5}}}} {TEN}', False),
        (f'<example> {{"name": "g", "arguments": {{"x": 5}}}} {TEN}', False),  # never closed
        (TEN, False),
    ],
)
def test_self_example_pays_only_what_was_made(thought: str, bonus: bool) -> None:
    """A closed example, an offered tool, not the final call, ten words of analysis, and the right form."""
    final = Call("f", {"x": 1})
    text = PROTOCOLS["rlla"].render([final], None, thought)
    assert score_text(text, Gold((final,), "calls"), "rlla", ScoreConfig(), TOOLS).self_example is bonus
    broken = text.replace("</think>\n", "</think>\n\n")
    assert score_text(broken, Gold((final,), "calls"), "rlla", ScoreConfig(), TOOLS).self_example is False


THINK, PLAIN = (
    "<think> t </think>\n",
    '{"name": "f", "parameters": {"x": 1, "y": "q"}}\n{"name": "g", "parameters": {"x": 2}}',
)
LIFTED = {
    "first_tag": f"<think> a <tool_call> here </think>\n<tool_call>\n{PLAIN}\n</tool_call>",
    "one_line": THINK + "<tool_call>\n" + PLAIN.replace(', "parameters"', ',\n "parameters"') + "\n</tool_call>",
    "parameters_only": THINK + "<tool_call>\n" + PLAIN.replace("parameters", "arguments") + "\n</tool_call>",
    "all_or_nothing": THINK + f"<tool_call>\nnot JSON\n{PLAIN}\n</tool_call>",
}


@pytest.mark.parametrize("quirk", LIFTED)
def test_quirks_of_reading_are_lifted_one_by_one(quirk: str) -> None:
    """Lifting just that quirk makes the answer right; lifting any other changes nothing."""
    gold = Gold(GOLD, "calls")
    for lift in ("", *LIFTED):
        scored = score_text(LIFTED[quirk], gold, "rlla", ScoreConfig(lift=lift), TOOLS)
        assert (scored.reward - scored.format == 3.0) is (lift == quirk), lift
    assert score_text(LIFTED[quirk], gold, "rlla", ScoreConfig(lift="all"), TOOLS).key == 2.0 or quirk == "first_tag"


def test_quirks_of_paying() -> None:
    """A form that gates, and items without a gold call that judge calling (Q1, Q3, Q4)."""
    gold, bare = Gold(GOLD, "calls"), f"<tool_call>\n{PLAIN}\n</tool_call>"
    assert score_text(bare, gold, "rlla", ScoreConfig()).reward == 3.0
    assert score_text(bare, gold, "rlla", ScoreConfig(lift="ungated_format")).reward == -3.0
    decline = Gold((), "response")
    for text, plain, judged in ((THINK + "<response> no </response>", 1.0, 4.0), (THINK + bare, 0.0, -3.0)):
        assert score_text(text, decline, "rlla", ScoreConfig()).reward == plain
        scored = score_text(text, decline, "rlla", ScoreConfig(lift="free_response"))
        assert (scored.reward, scored.reward_min, scored.reward_max) == (judged, -3.0, 4.0)
    assert set(QUIRKS) == {*LIFTED, "ungated_format", "free_response"}


def test_own_component(tmp_path: Path) -> None:
    """A function in a file becomes a column of extra_json; its digest goes into the record."""
    file = tmp_path / "mine.py"
    file.write_text("def calls(answer):\n    return len(answer.parsed.calls)\ndef bad(answer):\n    return 1 / 0\n")
    found, digests = load_components(f"{file}:calls")
    scored = Scorer(Gold(GOLD, "calls"), "rlla", Rules.of(ScoreConfig(), found), TOOLS).score(
        PROTOCOLS["rlla"].render(GOLD, None, "t")
    )
    assert scored.extra == {"components": {"calls": 2.0}}
    assert list(digests) == [str(file)] and len(digests[str(file)]) == 16
    with pytest.raises(StageFailure, match="bad failed: ZeroDivisionError"):
        load_components(f"{file}:bad")[0]["bad"](None)
    for setting, message in ((str(file), "expected"), ("no.py:f", "no file"), (f"{file}:none", "no function none")):
        with pytest.raises(ConfigError, match=message):
            load_components(setting)
    (tmp_path / "torn.py").write_text("def (")
    with pytest.raises(ConfigError, match="cannot be imported: SyntaxError"):
        load_components(f"{tmp_path / 'torn.py'}:f")
