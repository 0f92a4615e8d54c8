"""Settings: precedence, types, ranges, and a recipe whose every mistake is named."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolsample_cli.config import STAGES, CurriculumConfig, ImportConfig, RolloutConfig, read_recipe
from toolsample_cli.config.settings import as_record, resolve
from toolsample_cli.errors import ConfigError
from toolsample_cli.hashing import digest


def recipe(tmp_path, text: str):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return read_recipe(path)


@pytest.mark.parametrize("cls", STAGES.values(), ids=STAGES)
def test_defaults_are_valid_and_explained(cls):
    assert resolve(cls, {}) == cls()
    assert resolve(cls, as_record(cls())) == cls()
    assert all(item.metadata["help"] for item in dataclasses.fields(cls))
    json.dumps(as_record(cls()))


def test_flags_win_over_the_recipe_over_defaults(tmp_path):
    table = recipe(tmp_path, "[rollout]\nn = 4\ntemperature = 1\n")["rollout"]
    config = resolve(RolloutConfig, {"n": 2, "top_p": None}, table)
    assert (config.n, config.temperature, config.top_p) == (2, 1.0, 1.0)
    assert isinstance(config.temperature, float)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"n": 0}, "n = 0: must be at least 1"),
        ({"n": 1.5}, "n = 1.5: expected int, got float"),
        ({"n": True}, "n = True: expected int, got bool"),
        ({"n": "8"}, "n = '8': expected int, got str"),
        ({"top_p": 1.01}, "top_p = 1.01: must be at most 1"),
        ({"temperature": float("nan")}, "temperature = nan: expected a finite number"),
        ({"temperature": float("inf")}, "temperature = inf: expected a finite number"),
        ({"backend": "vlm"}, "backend = 'vlm': not one of"),
    ],
)
def test_wrong_values_are_named(flags, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve(RolloutConfig, flags)
    assert error.value.exit_code == 2
    if "backend" in flags:
        assert error.value.hint == "did you mean 'vllm'?"


def test_nan_is_refused_where_no_range_is_given():
    with pytest.raises(ConfigError, match="finite"):
        resolve(CurriculumConfig, {"activation_mean": float("nan")})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[rolout]\nn = 1\n", r"recipe.toml: unknown table: 'rolout'", "did you mean 'rollout'"),
        ("[rollout]\ntemprature = 1\n", r"unknown key in \[rollout\]: 'temprature'", "did you mean 'temperature'"),
        ("[rollout]\nzzzz = 1\n", r"unknown key in \[rollout\]: 'zzzz'", "valid: "),
        ("[train]\nlr = 'fast'\n", r"recipe.toml: \[train\] lr = 'fast': expected float, got str", None),
        ("[arms.a.train]\nlr = -1.0\n", r"recipe.toml: arm a: \[train\] lr = -1.0: must be at least", None),
        ("rollout = 3\n", r"rollout must be a table", None),
        ("[rollout\n", r"not valid TOML", None),
        ("[rollout]\nn = 1\n[rollout]\n", r"not valid TOML", None),
    ],
)
def test_mistakes_in_a_recipe(tmp_path, text, message, hint):
    with pytest.raises(ConfigError, match=message) as error:
        recipe(tmp_path, text)
    assert hint is None or hint in error.value.hint


def test_recipes_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such recipe"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe4'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_recipe(tmp_path / "latin.toml")


def test_arms_are_checked_like_stages(tmp_path):
    found = recipe(tmp_path, "[import]\nsource = 'x'\n[arms.wide.rollout]\nn = 3\n")
    assert resolve(ImportConfig, {}, found["import"]).source == "x"
    assert found["arms"]["wide"]["rollout"] == {"n": 3}
    with pytest.raises(ConfigError, match="'m'"):
        recipe(tmp_path, "[arms.wide.rollout]\nm = 3\n")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=3), JSON, min_size=2, max_size=4))
def test_digest_ignores_the_order_of_keys_only(value):
    assert digest(value) == digest(dict(reversed(value.items()))) and len(digest(value)) == 16
    assert digest(value) != digest({**value, "another key": 1})
