"""Whether a schema uses only ordinary keywords in their ordinary shape: then it needs no check by the meta-schema.

The full check costs about two milliseconds a schema, this one about ten microseconds. It may answer no to a valid
schema, never yes to an invalid one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_DEEPEST = 64


def is_plain(schema: Any, depth: int = 0) -> bool:
    """True only for schemas that Draft 2020-12's meta-schema accepts."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return False
    for key, value in schema.items():
        if key in _SCHEMAS:
            inner = _SCHEMAS[key](value)
            if inner is None or not all(is_plain(item, depth + 1) for item in inner):
                return False
        elif not _SHAPES.get(key, _free)(value):
            return False
    return not _OTHERS & schema.keys()


def _free(value: Any) -> bool:
    return True  # an annotation of somebody's own


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)


def _type(value: Any) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _names(value) and bool(value) and TYPES.issuperset(value)


_SHAPES: dict[str, Callable[[Any], bool]] = {
    "type": _type, "required": _names, "description": _text, "title": _text, "format": _text, "enum": _list,
    "examples": _list, "minimum": _number, "maximum": _number, "exclusiveMinimum": _number,
    "exclusiveMaximum": _number, "minLength": _count, "maxLength": _count, "minItems": _count, "maxItems": _count,
    "minProperties": _count, "maxProperties": _count, "uniqueItems": _flag, "deprecated": _flag, "readOnly": _flag,
    "writeOnly": _flag,
}  # fmt: skip
_ONE = ("items", "additionalProperties", "not", "contains")
_SOME = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS: dict[str, Callable[[Any], list[Any] | None]] = {
    "properties": lambda value: list(value.values()) if isinstance(value, dict) else None,
    **{key: lambda value: [value] for key in _ONE},
    **{key: lambda value: value if isinstance(value, list) and value else None for key in _SOME},
}
_RULED = """
    $id $schema $ref $anchor $dynamicRef $dynamicAnchor $vocabulary $comment $defs $recursiveAnchor $recursiveRef
    definitions dependencies dependentSchemas dependentRequired if then else patternProperties propertyNames
    unevaluatedItems unevaluatedProperties multipleOf pattern contentEncoding contentMediaType contentSchema
    minContains maxContains"""
_OTHERS = frozenset(_RULED.split())
"""Keywords with rules of their own: left to the full check."""

KEYWORDS = frozenset({"const", "default"}) | _SHAPES.keys() | _SCHEMAS.keys() | _OTHERS
"""Every keyword of Draft 2020-12."""
