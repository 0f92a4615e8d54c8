"""The tools a task offers, as validators: does a call name one of them and fit its JSON Schema?

A validator is built once a schema text and kept; building one costs a hundred times a check. The plain schemas that
most tools have are checked directly; jsonschema decides everything else and is the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import UnknownType, ValidationError
from referencing.exceptions import Unresolvable

from toolsample_cli.toolcalls.call import Call, canonical

MAX_CALLS = 100
"""More calls than that in one answer are not checked one by one but called invalid."""
MAX_MATCHED = 1000
"""Longest text in characters that a pattern is matched against; longer ones pass."""
_RISKY = re.compile(r"[*+}]\)*[*+{]|\)[*+{]|\\[1-9]")
_OPEN_ENDED = re.compile(r"[*+]|,\}")


class Toolbox:
    """Offered tools by name. `problem(call)` is None for a valid call, else what is wrong with it.

    ValueError when the text is no list of {name, parameters}.
    """

    def __init__(self, tools_json: str) -> None:
        self.tools: list[dict[str, Any]] = json.loads(tools_json)
        if not isinstance(self.tools, list) or not all(map(_is_tool, self.tools)):
            raise ValueError("tools_json is not a list of {name, parameters}")
        self._schemas: dict[str, Mapping[str, Any]] = {
            tool["name"]: tool.get("parameters") or {"type": "object"} for tool in self.tools
        }
        self._texts = {name: canonical(schema) for name, schema in self._schemas.items()}
        self._plain = {name: plain_check(text) for name, text in self._texts.items()}
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
            plain = self._plain.get(call.name)
            if not (plain(call.arguments) if plain is not None else self.problem(call) is None):
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
        properties = self._schemas.get(tool, {}).get("properties")
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        return schema if isinstance(schema, Mapping) else None


def _is_tool(tool: Any) -> bool:
    named = isinstance(tool, dict) and isinstance(tool.get("name"), str)
    return named and isinstance(tool.get("parameters") or {}, dict)


def _problem(schema: str, arguments: Mapping[str, Any]) -> str | None:
    try:
        error = next(validator(schema).iter_errors(arguments), None)
    except (UnknownType, Unresolvable, RecursionError, LookupError, re.error) as fault:
        return f"the schema itself cannot be used: {type(fault).__name__}"
    return None if error is None else f"{error.validator} at {error.json_path}: {error.message[:200]}"


@lru_cache(maxsize=8192)
def toolbox(tools_json: str) -> Toolbox:
    """A kept Toolbox for this text."""
    return Toolbox(tools_json)


@lru_cache(maxsize=65536)
def validator(schema: str) -> Any:
    """A kept jsonschema validator for this text; patterns that could run for ever on model text do not count."""
    return _Bounded(_without_risk(json.loads(schema)))


def _pattern(_: Any, pattern: str, text: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(text, str) and len(text) <= MAX_MATCHED and not risky(pattern) and not re.search(pattern, text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


_Bounded = validators.extend(Draft202012Validator, {"pattern": _pattern})


def risky(pattern: str) -> bool:
    """Whether a search could take more than quadratic time: repeated groups, back references, many open ends."""
    return bool(_RISKY.search(pattern)) or len(_OPEN_ENDED.findall(pattern)) > 2


def _without_risk(schema: Any) -> Any:
    if isinstance(schema, dict):
        named = schema.get("patternProperties")
        drop = isinstance(named, dict) and any(map(risky, named))
        return {k: _without_risk(v) for k, v in schema.items() if not (drop and k == "patternProperties")}
    return [_without_risk(item) for item in schema] if isinstance(schema, list) else schema


Check = Callable[[Any], bool]
_PLAIN = frozenset(
    ("type", "properties", "required", "enum", "items", "additionalProperties", "description", "title", "default")
)
_LOOSE = frozenset(("type", "description", "title", "default"))
_CLASSES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
"""The class that JSON of a type mostly has: enough to see that a value fits, never that it does not."""
_TYPES: dict[str, Check] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


@lru_cache(maxsize=65536)
def plain_check(schema: str) -> Check | None:
    """A check with jsonschema's verdict for a schema of plain keywords only; None for any other."""
    return _compiled(json.loads(schema), 0)


def _compiled(schema: Any, depth: int) -> Check | None:
    if not isinstance(schema, dict) or not schema.keys() <= _PLAIN or depth > 8:
        return None
    kind, properties, items = schema.get("type"), schema.get("properties", {}), schema.get("items")
    if kind is not None and (not isinstance(kind, str) or kind not in _TYPES):
        return None
    required, texts = schema.get("required", []), schema.get("enum")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    if texts is not None and not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        return None
    if not isinstance(schema.get("additionalProperties", True), bool):
        return None
    inner = {name: _compiled(item, depth + 1) for name, item in properties.items()}
    each = None if items is None else _compiled(items, depth + 1)
    if (each is None and items is not None) or None in inner.values():
        return None
    return _check(schema, _TYPES.get(kind or ""), inner, each)


def _check(schema: dict[str, Any], has_type: Check | None, inner: dict[str, Check], each: Check | None) -> Check:
    required = tuple(schema.get("required", ()))
    sure = {
        name: _CLASSES.get(item["type"])
        for name, item in schema.get("properties", {}).items()
        if item.keys() <= _LOOSE and "type" in item
    }
    allowed = frozenset(schema["enum"]) if "enum" in schema else None
    closed = schema.get("additionalProperties") is False
    if not inner and not required and each is None and not closed and allowed is None:
        return has_type or (lambda value: True)

    def check(value: Any) -> bool:
        if has_type is not None and not has_type(value):
            return False
        if allowed is not None and not (isinstance(value, str) and value in allowed):
            return False
        if isinstance(value, dict):
            for name in required:
                if name not in value:
                    return False
            for name, item in value.items():
                if item.__class__ is sure.get(name):
                    continue
                test = inner.get(name)
                if closed if test is None else not test(item):
                    return False
            return True
        return each is None or not isinstance(value, list) or all(map(each, value))

    return check
