"""Schemas in the wild become JSON Schema: the table of names, the odd envelopes, and that no input breaks it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from toolsample_cli.toolcalls.schema_check import is_schema
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_literal, read_parameters, read_tool, read_tools
from toolsample_cli.toolcalls.type_names import read_type


@pytest.mark.parametrize(
    ("text", "fragment", "optional"),
    [
        ("str", {"type": "string"}, False),
        ("String", {"type": "string"}, False),
        ("varchar", {"type": "string"}, False),
        ("int", {"type": "integer"}, False),
        ("long", {"type": "integer"}, False),
        ("float", {"type": "number"}, False),
        ("double", {"type": "number"}, False),
        ("bool", {"type": "boolean"}, False),
        ("Boolean", {"type": "boolean"}, False),
        ("dict", {"type": "object"}, False),
        ("HashMap", {"type": "object"}, False),
        ("ArrayList", {"type": "array"}, False),
        ("Array", {"type": "array"}, False),
        ("tuple", {"type": "array"}, False),
        ("list(str)", {"type": "array", "items": {"type": "string"}}, False),
        ("List[int]", {"type": "array", "items": {"type": "integer"}}, False),
        ("typing.List[List[float]]", {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, False),
        ("list of strings", {"type": "array", "items": {"type": "string"}}, False),
        ("string[]", {"type": "array", "items": {"type": "string"}}, False),
        ("Dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ("Dict[str, Any]", {"type": "object"}, False),
        ("Tuple[int, str]", {"type": "array"}, False),
        ("Tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}, False),
        ("str, optional", {"type": "string"}, True),
        ("int, optional, default 5", {"type": "integer"}, True),
        ("str (optional)", {"type": "string"}, True),
        ("Optional[List[int]]", {"type": "array", "items": {"type": "integer"}}, True),
        ("Union[str, int]", {"type": ["string", "integer"]}, False),
        ("str | None", {"type": ["string", "null"]}, False),
        ("Union[str, List[Widget]]", {"type": ["string", "array"]}, False),
        ("Union[str, Widget]", {}, False),
        ("Literal['a', 'b']", {"enum": ["a", "b"]}, False),
        ("any", {}, False),
        ("Callable[[float], float]", {}, False),
        ("unknown", {}, False),
        ("", {}, False),
        ("List[" * 50 + "int" + "]" * 50, None, False),
    ],
)  # fmt: skip
def test_words(text, fragment, optional):
    found, said = read_type(text)
    assert said is optional
    if fragment is not None:
        assert found == fragment
    Draft202012Validator.check_schema(found)


def test_json_schema_comes_out_unchanged():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"], "default": None, "enum": ["x", None]},
            "b": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/c"}]}},
            "optional": {"type": "boolean", "optional": True},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"c": {"type": "string", "pattern": "^x"}},
    }
    if schema.get("properties"):
        assert read_parameters(schema) == schema


STR, INT, NUM = ({"type": name} for name in ("string", "integer", "number"))


def obj(properties: dict, *required: str) -> dict:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


SHAPES = [
    (None, obj({})),
    ("", obj({})),
    ({}, obj({})),
    ({"type": "dict"}, obj({})),
    ('{"a": {"type": "int"}}', obj({"a": INT}, "a")),
    ("{'a': {'type': 'int'}}", obj({"a": INT}, "a")),
    ({"a": {"type": "str", "default": ""}}, obj({"a": {**STR, "default": ""}})),
    ({"a": "int", "b": "how many"}, obj({"a": INT, "b": {"description": "how many"}}, "a", "b")),
    ({"a": None, "b": {"type": "int"}}, obj({"b": INT}, "b")),
    # parameters that are called like keywords of JSON Schema
    ({"type": {"type": "str"}, "title": {"type": "str"}}, obj({"type": STR, "title": STR}, "type", "title")),
    (
        {"properties": {"type": "dict", "description": "which"}},
        obj({"properties": {"type": "object", "description": "which"}}, "properties"),
    ),
    (
        [{"name": "a", "type": "int", "required": True}, {"name": "b", "type": "str", "required": False}],
        obj({"a": INT, "b": STR}, "a"),
    ),
    (obj({"a": {"type": "tuple", "items": {"type": "float"}}}), obj({"a": {"type": "array", "items": NUM}})),
    ({"type": "object", "properties": {"a": {"type": "any"}}, "required": "a"}, obj({"a": {}}, "a")),
    (obj({"a": {"minimum": "3", "type": "int"}}), obj({"a": INT})),
    (obj({"a": {"pattern": "(", "type": "str"}}), obj({"a": STR})),
    (obj({"a": {"type": "array", "items": [{"type": "int"}]}}), obj({"a": {"type": "array", "prefixItems": [INT]}})),
    (obj({"a": {"$ref": "http://elsewhere/x.json"}}), obj({"a": {}})),
    (obj({"a": {"type": "str", "required": True}}), obj({"a": STR}, "a")),
]


@pytest.mark.parametrize(("raw", "expected"), SHAPES)
def test_shapes(raw, expected):
    found = read_parameters(raw)
    assert found == expected
    Draft202012Validator.check_schema(found)


def test_envelopes():
    bare = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    wrapped = {"type": "function", "function": bare}
    for raw in (bare, wrapped, json.dumps(wrapped), {"name": "f", "description": "d", "input_schema": {}}):
        assert read_tool(raw) == bare
    for raw in ([bare], json.dumps([wrapped]), [json.dumps(bare)], bare, repr([bare])):
        assert read_tools(raw) == [bare]
    assert read_tools(None) == read_tools("  ") == []
    beside = {"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "str"}}}, "required": ["a", "b"]}
    assert read_tool(beside)["parameters"]["required"] == ["a"]


@pytest.mark.parametrize(
    "raw", [7, "{torn", "[1]", [{"description": "nameless"}], [{"name": "f", "parameters": "what"}]]
)
def test_unreadable(raw):
    with pytest.raises(Unreadable):
        read_tools(raw)


def test_nesting_is_bounded():
    deep: dict = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(Unreadable, match="deeper"):
        read_parameters(deep)
    with pytest.raises(Unreadable):
        read_literal("[" * 100_000)
    with pytest.raises(Unreadable):
        read_literal("(" + "1," * 600_000)


KEYWORDS = (
    "type properties required items enum default anyOf description minimum pattern $ref $defs additionalProperties a "
    "string integer str, optional List[int] object not const uniqueItems format maxLength title"
)
WORDS = st.sampled_from(KEYWORDS.split(" "))
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | WORDS
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=14,
)


@settings(max_examples=120, deadline=None)
@given(JSON)
def test_whatever_comes_is_refused_or_becomes_a_schema(raw):
    try:
        schema = read_parameters(raw)
    except Unreadable:
        return
    Draft202012Validator.check_schema(schema)
    assert schema.get("type", "object") == "object" or "type" in raw
    if schema.get("properties"):
        assert read_parameters(schema) == schema


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_the_fast_check_never_says_yes_to_what_the_meta_schema_refuses(raw):
    if is_schema(raw):
        try:
            Draft202012Validator.check_schema(raw)
        except SchemaError as error:  # pragma: no cover
            raise AssertionError(f"{raw} is called a schema: {error.message}") from None
