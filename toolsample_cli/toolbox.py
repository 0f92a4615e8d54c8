"""The tools a task offers, as validators: does a call name one of them and fit its JSON Schema?

A validator is built once a schema text and kept; building one costs a hundred times a check. The plain schemas that
most tools have are checked directly; jsonschema decides everything else and is the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType
from referencing.exceptions import Unresolvable

from toolsample_cli.toolcall import Call, canonical

MAX_CALLS = 100
"""More calls than that in one answer are not checked one by one but called invalid."""
_RISKY = re.compile(r"[*+}]\)*[*+{]|\)[*+{]|\\[1-9]")


class Toolbox:
    """Offered tools by name. `problem(call)` is None for a valid call, else what is wrong with it."""

    def __init__(self, tools_json: str) -> None:
        self.tools: list[dict[str, Any]] = json.loads(tools_json)
        self._schemas: dict[str, Mapping[str, Any]] = {
            tool["name"]: tool.get("parameters") or {"type": "object"} for tool in self.tools
        }
        self._texts = {name: canonical(schema) for name, schema in self._schemas.items()}
        self._fast = {name: _quick(text) for name, text in self._texts.items()}
        self.names = frozenset(self._schemas)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Toolbox:
        """From tools as objects {name, description, parameters}."""
        return toolbox(canonical(list(tools)))

    def valid(self, calls: Sequence[Call]) -> bool | None:
        """Whether every call is; None without a call."""
        if not calls:
            return None
        if len(calls) > MAX_CALLS:
            return False
        for call in calls:
            quick = self._fast.get(call.name)
            if quick is not None and quick(call.arguments):
                continue
            if self.problem(call) is not None:
                return False
        return True

    def problem(self, call: Call) -> str | None:
        """`unknown_tool`, or where and how the arguments break the schema, or None."""
        text = self._texts.get(call.name)
        if text is None:
            return "unknown_tool"
        return _problem(text, call.arguments)

    def parameter(self, tool: str, name: str) -> Mapping[str, Any] | None:
        """The schema of one parameter, None when the tool or the parameter is unknown or unconstrained."""
        schema = (self._schemas.get(tool) or {}).get("properties", {}).get(name)
        return schema if isinstance(schema, Mapping) else None


def _problem(schema: str, arguments: Mapping[str, Any]) -> str | None:
    try:
        error = next(validator(schema).iter_errors(arguments), None)
    except (UnknownType, Unresolvable, RecursionError, LookupError) as fault:
        return f"the schema itself cannot be used: {type(fault).__name__}"
    return None if error is None else f"{error.validator} at {error.json_path}: {error.message[:200]}"


@lru_cache(maxsize=8192)
def toolbox(tools_json: str) -> Toolbox:
    """A kept Toolbox for this text."""
    return Toolbox(tools_json)


@lru_cache(maxsize=65536)
def validator(schema: str) -> Any:
    """A kept jsonschema validator for this text; patterns that could run for ever on model text are left out."""
    return Draft202012Validator(_without_risk(json.loads(schema)))


def _without_risk(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = {}
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str) and _RISKY.search(value):
                continue
            if key == "patternProperties" and isinstance(value, dict) and any(map(_RISKY.search, value)):
                continue
            kept[key] = _without_risk(value)
        return kept
    return [_without_risk(item) for item in schema] if isinstance(schema, list) else schema


Check = Callable[[Any], bool]
_PLAIN = frozenset(("type", "properties", "required", "enum", "items", "description", "title", "default", "examples"))
_TYPES: dict[str, Check] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


@lru_cache(maxsize=65536)
def _quick(schema: str) -> Check | None:
    """A check that says True only for valid arguments; False means ask jsonschema. None: not a plain schema."""
    return _compiled(json.loads(schema), 0)


def _compiled(schema: Any, depth: int) -> Check | None:
    if not isinstance(schema, dict) or not schema.keys() <= _PLAIN or depth > 8:
        return None
    kind, properties, items = schema.get("type"), schema.get("properties", {}), schema.get("items", {})
    if kind is not None and (not isinstance(kind, str) or kind not in _TYPES):
        return None
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    inner = {name: _compiled(item, depth + 1) for name, item in properties.items()}
    each = _compiled(items, depth + 1)
    if each is None or None in inner.values():
        return None
    return _check(_TYPES.get(kind) if kind else None, inner, each if items else None, schema)


def _check(has_type: Check | None, inner: dict[str, Check], each: Check | None, schema: dict[str, Any]) -> Check:
    required = frozenset(schema.get("required", ()))
    texts = schema.get("enum")
    allowed = frozenset(texts) if texts and all(isinstance(text, str) for text in texts) else None

    def check(value: Any) -> bool:
        if has_type is not None and not has_type(value):
            return False
        if texts is not None and (allowed is None or not isinstance(value, str) or value not in allowed):
            return False
        if isinstance(value, dict):
            if not required <= value.keys():
                return False
            return all(name not in inner or inner[name](item) for name, item in value.items())
        return each is None or not isinstance(value, list) or all(map(each, value))

    return check
