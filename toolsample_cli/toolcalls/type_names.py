"""Type names as people write them (`List[int]`, `str, optional`, `dict`, `ArrayList`) as JSON Schema fragments.

An unknown name gives no constraint: a wrong constraint would call right answers wrong.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any

_WORDS = {
    "string": "str string varchar char character text date datetime time timestamp uuid url uri email path bytes byte",
    "integer": "int integer long short int32 int64 int16 int8 uint uint8 uint32 uint64 bigint biginteger",
    "number": "float double number decimal real numeric float32 float64 bigdecimal",
    "boolean": "bool boolean",
    "array": "list array tuple set frozenset sequence iterable arraylist vector collection",
    "object": "dict object hashmap map mapping json struct dictionary record",
    "null": "none null nonetype",
}
_TYPE = {word: name for name, words in _WORDS.items() for word in words.split()}
_OPTIONAL = re.compile(r"\s*(?:,\s*optional|\(\s*optional\s*\))\s*\.?\s*$", re.IGNORECASE)
_DEFAULT = re.compile(r"\s*(?:,\s*default(?:s to)?\b.*|\(\s*default\b.*\))\s*$", re.IGNORECASE)
_OF = re.compile(r"(list|array|set|tuple|sequence)\s+of\s+(.+?)s?", re.IGNORECASE)
_CALL = re.compile(r"([A-Za-z_.]+)\s*[\[(<](.*)[\])>]", re.DOTALL)
_LONGEST = 400
_DEEPEST = 8


@functools.lru_cache(maxsize=4096)
def _read(text: str, depth: int) -> tuple[str, bool]:
    fragment, optional = _parse(text, depth)
    return repr(fragment), optional


def read_type(text: str, depth: int = 0) -> tuple[dict[str, Any], bool]:
    """(JSON Schema fragment, whether the text says optional); an empty fragment for an unknown type."""
    if (known := _TYPE.get(text)) is not None:
        return {"type": known}, False
    fragment, optional = _read(text, depth)
    return ast.literal_eval(fragment), optional  # a fresh value each time: callers add to it


def _parse(text: str, depth: int) -> tuple[dict[str, Any], bool]:
    bare = text.strip()
    if len(bare) > _LONGEST or depth > _DEEPEST:
        return {}, False
    said_default = bool(_DEFAULT.search(bare))
    bare = _DEFAULT.sub("", bare)
    optional = bool(_OPTIONAL.search(bare)) or said_default
    bare = _OPTIONAL.sub("", bare).strip()
    word = bare.lower().removeprefix("typing.")
    if word in _TYPE:
        return {"type": _TYPE[word]}, optional
    if word.endswith("[]") and word[:-2]:
        return _array(bare[:-2], depth), optional
    parts = _split(bare, "|")
    if len(parts) > 1:
        return _union(parts, depth), optional
    if match := _OF.fullmatch(bare):
        return _array(match[2], depth), optional
    if match := _CALL.fullmatch(bare):
        fragment, said = _generic(match[1].lower().rsplit(".", 1)[-1], match[2], depth)
        return fragment, optional or said
    return {}, optional


def _generic(head: str, inner: str, depth: int) -> tuple[dict[str, Any], bool]:
    parts = _split(inner, ",")
    if head == "optional":
        return read_type(inner, depth + 1)[0], True
    if head == "union":
        return _union(parts, depth), False
    if head in ("literal", "enum"):
        return _literal(inner), False
    name = _TYPE.get(head)
    if name == "array":
        if head == "tuple" and len(parts) > 1 and parts[-1] != "...":
            return {"type": "array"}, False
        return _array(parts[0] if parts else "", depth), False
    if name == "object" and len(parts) == 2:
        values = read_type(parts[1], depth + 1)[0]
        return {"type": "object", **({"additionalProperties": values} if values else {})}, False
    return ({"type": name} if name else {}), False


def _array(inner: str, depth: int) -> dict[str, Any]:
    items = read_type(inner, depth + 1)[0] if inner.strip() else {}
    return {"type": "array", **({"items": items} if items else {})}


def _union(parts: list[str], depth: int) -> dict[str, Any]:
    options = [read_type(part, depth + 1)[0] for part in parts]
    if not options or not all(options):
        return {}  # one unknown member: anything may come
    if all(set(option) == {"type"} for option in options):
        names = list(dict.fromkeys(option["type"] for option in options))
        return {"type": names[0] if len(names) == 1 else names}
    return {"anyOf": options}


def _literal(inner: str) -> dict[str, Any]:
    try:
        values = ast.literal_eval(f"[{inner}]")
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return {}
    return {"enum": values} if values and all(isinstance(value, str | int | float) for value in values) else {}


def _split(text: str, separator: str) -> list[str]:
    """Parts at top level: separators inside brackets do not count."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char in "[(<") - (char in "])>")
        if char == separator and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]
