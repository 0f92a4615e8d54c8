"""Value rules: each setting decides one thing, presets are what they say, unknown words are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolsample_cli.config import ScoreConfig
from toolsample_cli.errors import ConfigError
from toolsample_cli.score.scorer import Gold, Rules, score_text
from toolsample_cli.score.values import RULES, equality, value_rule
from toolsample_cli.toolcalls.call import Call

PAIRS = [  # wanted, found, the presets that call them the same
    (1, 1.0, {"toolrl", "bfcl", "lenient"}),
    (1, True, {"toolrl"}),
    (True, True, {"toolrl", "json", "bfcl", "lenient"}),
    (0, False, {"toolrl"}),
    (1, "1", {"lenient"}),
    ("1", "1.0", {"lenient"}),
    ("15", "1.5", {"bfcl"}),
    ("Paris", "paris", {"bfcl", "lenient"}),
    ("New York", "New  York ", {"bfcl", "lenient"}),
    ("New York", "NewYork", {"bfcl"}),
    ("it's", 'it"s', {"bfcl"}),
    ("ﬁne", "fine", {"lenient"}),
    ("Zürich", "Zu\u0308rich", {"lenient"}),
    ("a", "b", set()),
    (0.1 + 0.2, 0.3, {"lenient"}),
    (1000000.0, 1000000.5, {"lenient"}),
    (1.0, 1.1, set()),
    (10**400, 10**400 + 1, set()),
    ([1, 2], [2, 1], {"lenient"}),
    ([1, 2], [1, 2, 2], set()),
    (["a", "B"], ["A", "b"], {"bfcl", "lenient"}),
    ({"k": 1}, {"k": 1.0}, {"toolrl", "bfcl", "lenient"}),
    ({"k": 1}, {"k": 1, "z": 2}, set()),
    ({"k": [1, {"a": True}]}, {"k": [1, {"a": 1}]}, {"toolrl"}),
    (None, None, {"toolrl", "json", "bfcl", "lenient"}),
    (None, "", set()),
    ([], {}, set()),
    (float("nan"), float("nan"), set()),
]


@pytest.mark.parametrize(("wanted", "found", "same"), PAIRS, ids=[f"{p[0]!r:.30} {p[1]!r:.30}" for p in PAIRS])
def test_presets(wanted: object, found: object, same: set) -> None:
    """Which presets call two values the same, in either direction."""
    assert {name for name in RULES if equality(name)(wanted, found)} == same
    assert {name for name in RULES if equality(name)(found, wanted)} == same


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(value=VALUE)
@pytest.mark.parametrize("name", RULES)
def test_every_value_equals_itself(name: str, value: object) -> None:
    """Gold is gold under every rule; toolrl is Python's equality and json keeps all types apart."""
    assert equality(name)(value, value)


@settings(max_examples=200, deadline=None)
@given(wanted=VALUE, found=VALUE)
def test_rules_nest(wanted: object, found: object) -> None:
    """What json calls the same, toolrl and lenient do; toolrl's rule object is Python's equality."""
    if RULES["json"].equal(wanted, found):
        assert wanted == found and RULES["lenient"].equal(wanted, found)
    assert RULES["toolrl"].equal(wanted, found) == (wanted == found)


def test_one_setting_changes_one_thing() -> None:
    """`preset:key=value,...` builds a rule of one's own."""
    rule = value_rule("json:case=ignore,numbers=together")
    assert rule.equal("A", "a") and rule.equal(1, 1.0) and not rule.equal("a ", "a")
    assert value_rule("json:tolerance=0.1").equal(1.0, 1.05)
    assert value_rule("json:drop= -,").equal("a-b, c", "abc")
    gold, text = Gold((Call("f", {"x": "A", "y": [1, 2]}),), "calls"), '{"name":"f","arguments":{"x":"a","y":[2,1]}}'
    rewards = [
        score_text(text, gold, "json", ScoreConfig(values=values)).value for values in ("toolrl", "lenient", "bfcl")
    ]
    assert rewards == [0.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tolrl", "not one of toolrl"), ("json:cases=ignore", "no setting 'cases'"), 
        ("json:case=low", "case is one of"),
        ("json:tolerance=-1", "tolerance must be"), ("json:tolerance=x", "tolerance must be"),
    ],
)  # fmt: skip
def test_wrong_settings_are_usage_errors(setting: str, message: str) -> None:
    """An unknown word is refused before anything is scored, with the nearest one."""
    with pytest.raises(ConfigError, match=message):
        Rules.of(ScoreConfig(values=setting))


@pytest.mark.parametrize("changed", [{"lift": "first_tags"}, {"rewards": "toolrl,tool_n2"}])
def test_unknown_quirks_and_rewards_are_refused(changed: dict) -> None:
    """With the nearest valid name."""
    with pytest.raises(ConfigError, match="not one of") as caught:
        Rules.of(ScoreConfig(**changed))
    assert "did you mean" in caught.value.hint
