"""Arguments against schemas: jsonschema's verdict, in bounded time whatever schema and answer say."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from toolsample_cli.config import ImportConfig
from toolsample_cli.importing.stage import run
from toolsample_cli.shards import schema as kinds
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.schema_check import SchemaCheck, affordable
from toolsample_cli.toolcalls.tools import Toolbox

BUDGET = 0.1
"""Seconds of CPU that the check of one answer may take."""
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), unique=True, min_size=1, max_size=3),
        "enum": st.lists(st.sampled_from(["q", 1, True, None, 1.5, [1]]), min_size=1),
        "const": st.sampled_from(["q", 0, False, 1.0]),
        "minimum": st.sampled_from([0, 1.5]),
        "multipleOf": st.sampled_from([2, 0.5]),
        "minLength": st.integers(0, 2),
        "pattern": st.sampled_from(["^q", "z$", "[a-c]+", "^(a|q)*$"]),
        "uniqueItems": st.booleans(),
        "maxItems": st.integers(0, 2),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
        "not": st.sampled_from([{"type": "string"}, {"const": 1}]),
    },
)
NAMES = st.sampled_from(["x", "y", "k", "pattern"])
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(NAMES, inner, max_size=3),
                "required": st.lists(NAMES, unique=True, max_size=2),
                "additionalProperties": st.booleans() | inner,
                "patternProperties": st.dictionaries(st.sampled_from(["^x", "k|y"]), inner, max_size=1),
                "propertyNames": inner,
                "unevaluatedProperties": st.booleans(),
            },
        )
        | st.fixed_dictionaries({}, optional={"items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2)})
        | st.dictionaries(st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=3))
        | st.dictionaries(st.sampled_from(["if", "then", "else", "contains"]), inner)
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.sampled_from([0, 1, 2, 1.0, 1.5, True, False, None, "q", "z", "abc", 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
DEFINED = {"$defs": {"a": {"type": ["integer", "object"]}, "b": {"items": {"$ref": "#/$defs/a"}}}}


@settings(max_examples=1000, deadline=None)
@given(schema=SCHEMAS, value=VALUES)
def test_verdicts_are_those_of_jsonschema(schema: dict[str, Any], value: object) -> None:
    """On every keyword that tools use; and the words of errors are there exactly where the verdict is no."""
    whole = {**schema, **DEFINED}
    check = SchemaCheck(json.dumps(whole))
    right = Draft202012Validator(whole).is_valid(value)
    assert check.fits(value) is right
    assert (not list(check.faults(value))) is right


@pytest.mark.parametrize("name", ["rlla_4k/test.parquet", "rlla_4k/rlla_sft.json", "hammer_eval/apibank_l1.json",
    "llamafactory_demo/glaive_toolcall_en_demo.json", "when2call/when2call_test_llm_judge.jsonl",
    "api_bank_toolrl/level-3-api_processed.json"])  # fmt: skip
def test_public_tools_get_the_same_verdict(name: str, shared_data: Path, tmp_path: Path) -> None:
    """Every gold call and damaged forms of it against its own tool."""
    run([str(shared_data / name)], tmp_path / "t", ImportConfig(), Options())
    checked = refused = 0
    for task in open_folder(tmp_path / "t", kinds.TASKS).load().to_dicts():
        tools = {tool["name"]: tool["parameters"] for tool in json.loads(task["tools_json"])}
        for call in json.loads(task["gold_json"]):
            schema = tools.get(call["name"], {"type": "object"})
            check, oracle = SchemaCheck(json.dumps(schema)), Draft202012Validator(schema)
            for arguments in damaged(call["arguments"]):
                right = oracle.is_valid(arguments)
                assert check.fits(arguments) is right, (schema, arguments)
                checked, refused = checked + 1, refused + (not right)
    assert checked > 100 and refused > 10


def damaged(arguments: dict[str, Any]) -> list[object]:
    found: list[object] = [arguments, {}, None, {**arguments, "extra": 1}]
    for key in arguments:
        for value in ("text", 7, 7.0, None, [], {}, True, [[1]]):
            found.append({**arguments, key: value})
    return found


def fan(levels: int, leaf: object, keyword: str = "anyOf") -> dict[str, Any]:
    """Definitions each of which asks for the next one twice."""
    refs = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    return {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**refs, f"d{levels}": leaf}}


def within(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    for _ in range(levels):
        schema = {"unevaluatedProperties": False, keyword: [schema]}
    return {"properties": {"x": schema}}


TREE = {
    "properties": {"x": {"$ref": "#/$defs/n"}},
    "$defs": {"n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}] * 2 + [{"type": "string"}]}},
}
DEEP: Any = 1
for _ in range(60):
    DEEP = [DEEP]
BOMBS: dict[str, tuple[dict[str, Any], object]] = {
    "unique objects": ({"properties": {"x": {"uniqueItems": True}}}, [{"k": i} for i in range(4000)]),
    "unique lists": ({"properties": {"x": {"uniqueItems": True}}}, [[i] for i in range(20000)]),
    "unique mixed": ({"properties": {"x": {"uniqueItems": True}}}, [i if i % 2 else float(i) for i in range(20000)]),
    "unique in items": (
        {"properties": {"x": {"items": {"uniqueItems": True}}}}, [[{"k": i} for i in range(200)]] * 50,
    ),
    "optional a": ({"properties": {"x": {"pattern": "^" + "a?" * 28 + "a" * 28 + "$"}}}, "a" * 27 + "b"),
    "counted a": ({"properties": {"x": {"pattern": "(?:a{0,40}){7}b$"}}}, "a" * 5000),
    "nested stars": ({"properties": {"x": {"pattern": "^(a+)+$"}}}, "a" * 100_000 + "!"),
    "look-ahead": ({"properties": {"x": {"pattern": "^(?=a)(a|aa)+\\1(?!b)c$"}}}, "a" * 2000),
    "look-ahead often": (
        {"properties": {"x": {"items": {"pattern": "(?=a)(a|aa)+(?!b)c$"}}}}, ["a" * 500] * 3000,
    ),
    "large repeat": ({"properties": {"x": {"pattern": "[ab]*a[ab]{3000}$"}}}, "ab" * 50_000),
    "in names": ({"patternProperties": {"^(a?){30}a{30}$": {}}, "additionalProperties": False}, "x"),
    "many names": (
        {"properties": {"x": {"patternProperties": {f"(?=a)(a|aa)+{i}$": {} for i in range(50)}}}},
        {"a" * 50 + str(i): i for i in range(1000)},
    ),
    "anyOf": (fan(25, {"type": "integer"}), "no integer"),
    "oneOf": (fan(25, {"type": "integer"}, "oneOf"), 1),
    "allOf": (fan(30, True, "allOf"), 1),
    "recursion": (TREE, DEEP),
    "itself": ({"properties": {"x": {"$ref": "#/properties/x"}}}, 1),
    "long chain": (fan(3000, True, "not") | {"$defs": {}}, 1),
    "unevaluated": (within(25, "allOf"), {"a": 1}),
    "unevaluated anyOf": (within(20, "anyOf"), {"a": 1}),
    "wide choice": (
        {"properties": {"x": {"items": {"anyOf": [{"const": i} for i in range(1000)]}}}}, [999] * 50_000,
    ),
    "long enum": ({"properties": {"x": {"items": {"enum": [[i] for i in range(5000)]}}}}, [[0.5]] * 20_000),
    "by name": (
        {"properties": {"x": {"$ref": "#d0"}}, "$defs": {
            **{f"d{i}": {"$anchor": f"d{i}", "anyOf": [{"$ref": f"#d{i + 1}"}] * 2} for i in range(25)},
            "d25": {"$anchor": "d25", "type": "integer"}}}, "no integer",
    ),
    "5,000 digits": ({"properties": {"x": {"type": "integer", "multipleOf": 7, "maximum": 10**30}}}, 10**5000),
    "digits in enum": ({"properties": {"x": {"enum": [10**4000, "a"]}}}, 10**5000),
    "fetched": ({"properties": {"x": {"$ref": "http://127.0.0.1:9/x.json"}}}, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_no_schema_takes_long(name: str) -> None:
    """The verdict and the words of errors, each within a tenth of a second, for every kind of bomb."""
    schema, value = BOMBS[name]
    box = Toolbox.of([{"name": "f", "parameters": {"type": "object", **schema}}])
    call = Call("f", {"x": value})
    for ask in (lambda: box.valid([call]), lambda: box.problem(call)):
        start = time.process_time()
        ask()
        assert time.process_time() - start < BUDGET


def test_what_is_bounded_is_still_checked() -> None:
    """Bounds leave ordinary use of the same keywords alone."""
    tree = SchemaCheck(json.dumps({"type": "object", **TREE}))
    assert tree.fits({"x": [["a"], []]}) and not tree.fits({"x": [["a"], [1]]})
    unique = SchemaCheck(json.dumps({"uniqueItems": True}))
    assert unique.fits([{"k": i} for i in range(2000)]) and not unique.fits(
        [{"k": i} for i in range(2000)] + [{"k": 3}]
    )
    bomb = SchemaCheck(json.dumps(BOMBS["optional a"][0]))
    assert bomb.fits({"x": "a" * 28}) and not bomb.fits({"x": "a" * 27 + "b"})
    choice = SchemaCheck(json.dumps(fan(8, {"type": "integer"})))
    assert choice.fits({"x": 1}) and not choice.fits({"x": "1"})
    assert not affordable(fan(25, {}), {"x": 1}, 20_000)


def test_values_that_json_does_not_know() -> None:
    """NaN and infinities fit no type; an unpaired surrogate is text."""
    number, text = SchemaCheck('{"type": "number"}'), SchemaCheck('{"type": "string", "minLength": 2}')
    assert not number.fits(math.inf) and not number.fits(math.nan) and number.fits(1e300)
    assert text.fits("a\ud800") and not text.fits("\ud800")


def test_words_say_what_is_wrong() -> None:
    """`problem` names keyword and place; a schema that cannot be used says so; `\\Z` does not count."""
    box = Toolbox.of(
        [
            {"name": "a", "parameters": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}}},
            {"name": "b", "parameters": {"type": "object", "properties": {"x": {"type": "date"}}}},
            {"name": "c", "parameters": {"type": "object", "properties": {"x": {"pattern": "a\\Z", "minLength": 2}}}},
            {"name": "d", "parameters": {"type": "object", "properties": {"x": {"pattern": "^[a-c]+$"}}}},
            {"name": "e", "parameters": {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}}},
        ]
    )
    said = {
        "a": box.problem(Call("a", {"x": 2})), "b": box.problem(Call("b", {"x": 1})),
        "c": box.problem(Call("c", {"x": "b"})), "d": box.problem(Call("d", {"x": "abz"})),
        "e": box.problem(Call("e", {"x": 1})), "zzz": box.problem(Call("zzz")),
    }  # fmt: skip
    assert said == {
        "a": "minimum at $.x: 2 is less than the minimum of 3", "b": "the schema itself cannot be used: UnknownType",
        "c": "minLength at $.x: 'b' is too short", "d": "pattern at $.x: 'abz' does not match '^[a-c]+$'",
        "e": "the schema itself cannot be used: _WrappedReferencingError", "zzz": "unknown_tool",
    }  # fmt: skip
    assert box.problem(Call("a", {"x": 3})) is None and box.problem(Call("c", {"x": "bb"})) is None
    for torn in ('[{"name": 3}]', '[{"name": "f", "parameters": "x"}]', "{}", '["f"]', "[" * 5000 + "]" * 5000):
        with pytest.raises(ValueError, match="tools_json is n"):
            Toolbox(torn)
    assert Toolbox('[{"name": "f", "parameters": {"properties": []}}]').parameter("f", "x") is None
    assert box.valid([]) is None and box.valid([Call("a", {"x": 3})] * 101) is False
