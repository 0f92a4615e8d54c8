"""Whether a value fits a JSON Schema (Draft 2020-12), in bounded time whatever schema and value say.

jsonschema-rs decides: its regular expressions are linear or stop after so many steps back, `uniqueItems` hashes. What
it has no bound for is counted first and left out of checking when it is too much: branches that multiply through
`$ref`, long lists under many alternatives, `unevaluated...` within itself. jsonschema gives the words of errors and
decides what jsonschema-rs cannot take (unpaired surrogates, patterns in Python's own notation).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import UnknownType, ValidationError
from referencing.exceptions import Unresolvable

from toolsample_cli.json_types import Json, Row

MAX_STEPS = 10_000
"""Keywords applied to values in one check; a check that could take more is not made and counts as passed."""
MAX_WORDED = 1_000
"""The same for jsonschema, which takes a hundred times as long a step."""
SMALL = 40
"""A schema of at most that many objects and lists, and none of the keywords in `_COUNTED`, needs no counting."""
_COUNTED = frozenset(
    ("$ref", "$dynamicRef", "pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems")
)
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)
_STEPS_BACK = 2_000  # what a pattern with look-around or back references may cost
_BACKTRACKS = re.compile(r"\(\?[=!<]|\\[1-9k]")
_REPEATS = re.compile(r"\{(\d*),?(\d*)\}")

_KEYWORDS = """
    type required description title format enum const default examples minimum maximum exclusiveMinimum
    exclusiveMaximum minLength maxLength minItems maxItems minProperties maxProperties uniqueItems deprecated readOnly
    writeOnly items additionalProperties not contains anyOf oneOf allOf prefixItems properties
    $id $schema $ref $anchor $dynamicRef $dynamicAnchor $vocabulary $comment $defs $recursiveAnchor $recursiveRef
    definitions dependencies dependentSchemas dependentRequired if then else patternProperties propertyNames
    unevaluatedItems unevaluatedProperties multipleOf pattern contentEncoding contentMediaType contentSchema
    minContains maxContains"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""Every keyword of Draft 2020-12."""


def _fetch_nothing(uri: str) -> Row:
    raise LookupError(f"nothing is fetched to check an argument: {uri}")


_META = jsonschema_rs.Draft202012Validator(
    dict(Draft202012Validator.META_SCHEMA), validate_formats=True, retriever=_fetch_nothing
)


def is_schema(value: object) -> bool:
    """Whether Draft 2020-12's meta-schema surely accepts the value; False also where only jsonschema can tell."""
    try:
        return _META.is_valid(value)
    except (ValueError, LookupError):
        return False


class UnusableSchema(ValueError):
    """The schema cannot decide about this value: an unknown type, a reference that leads nowhere."""


class SchemaCheck:
    """One schema, given as JSON text, made ready."""

    def __init__(self, text: str) -> None:
        self._schema: Row = json.loads(text)
        self._named = '"$anchor"' in text or text.count('"$id"') > ("$id" in self._schema)
        self.fast: Callable[[object], bool] | None = None
        """jsonschema-rs' verdict without counting first, where schema and any value in bounds are cheap."""
        self._checked: Callable[[object], bool] | None = None
        try:
            self._checked = _made(self._schema)
            self.fast = self._checked if _is_small(self._schema) else None
        except (ValueError, jsonschema_rs.ReferencingError):
            pass  # jsonschema decides

    def fits(self, value: object) -> bool:
        """Whether the value fits; True where checking could take too long."""
        try:
            if self.fast is not None:
                return self.fast(value)
            if not self._affordable(value, MAX_STEPS):
                return True
            if self._checked is not None:
                return self._checked(value)
        except ValueError:  # text or numbers that jsonschema-rs does not take
            pass
        try:
            return next(self._worded(value), None) is None
        except UnusableSchema:
            return False

    def faults(self, value: object) -> Iterator[ValidationError]:
        """What is wrong, in jsonschema's words; one fault without details where these would take too long.

        Raises UnusableSchema.
        """
        if self._checked is not None and self.fits(value):
            return
        worded = False
        for error in self._worded(value):
            worded = True
            yield error
        if not worded and self._checked is not None:
            yield _without_words(value)

    def _worded(self, value: object) -> Iterator[ValidationError]:
        if not self._affordable(value, MAX_WORDED):
            return
        try:
            yield from _Bounded(self._schema).iter_errors(value)
        except (UnknownType, Unresolvable, RecursionError, LookupError, TypeError) as fault:
            raise UnusableSchema(type(fault).__name__) from None
        except ValueError:  # a number of so many digits that Python does not print it
            yield _without_words(value)

    def _affordable(self, value: object, most: int) -> bool:
        return affordable(self._schema, value, most, self._named)


def _without_words(value: object) -> ValidationError:
    return ValidationError("does not fit the schema", validator="schema", validator_value=True, instance=value)


def _made(schema: Row) -> Callable[[object], bool]:
    return jsonschema_rs.Draft202012Validator(
        schema, pattern_options=_PATTERNS, retriever=_fetch_nothing
    ).is_valid  # fmt: skip


@lru_cache(maxsize=65536)
def schema_check(text: str) -> SchemaCheck:
    """A kept SchemaCheck for this text; building one costs a hundred times a check."""
    return SchemaCheck(text)


def _is_small(schema: Json) -> bool:
    nodes, stack = 0, [schema]
    while stack and nodes <= SMALL:
        node = stack.pop()
        nodes += 1
        if isinstance(node, dict):
            if not _COUNTED.isdisjoint(node):
                return False
            stack += [item for item in node.values() if isinstance(item, dict | list)]
        elif isinstance(node, list):
            nodes += len(node) // 8
            stack += [item for item in node if isinstance(item, dict | list)]
    return nodes <= SMALL


_SAME_ONE = ("not", "if", "then", "else")
_SAME_MANY = ("anyOf", "oneOf", "allOf")
_LEADING = frozenset(("$ref", *_SAME_MANY))
_DEEPEST_TYPES, _WIDEST_TYPES = 4, 16  # 16 options on each of 4 levels is more than any tool has
_EVERY_ITEM = ("items", "contains", "unevaluatedItems")
_EVERY_VALUE = ("additionalProperties", "unevaluatedProperties")


def affordable(schema: Json, value: object, most: int, named: bool = False) -> bool:
    """Whether checking takes at most so many steps even if nothing is decided early.

    `named`: parts of the schema have names of their own; then references to them count as too much.
    """
    stack: list[tuple[Any, Any]] = [(schema, value)]
    while stack:
        most -= 1
        if most < 0:
            return False
        node, item = stack.pop()
        if not isinstance(node, Mapping):
            continue
        most -= _own_steps(node, item)
        if most < 0:
            return False
        if "$dynamicRef" in node:
            return False
        if "$ref" in node:
            if named:
                return False
            stack.append((_at(schema, node["$ref"]), item))
        here = [node[key] for key in _SAME_ONE if key in node]
        here += [option for key in _SAME_MANY if isinstance(node.get(key), list) for option in node[key]]
        if isinstance(node.get("dependentSchemas"), Mapping):
            here += node["dependentSchemas"].values()
        if "unevaluatedProperties" in node or "unevaluatedItems" in node:
            here *= 3  # what is in them is checked once more to learn what it looked at
        stack += [(option, item) for option in here]
        if isinstance(item, Mapping):
            stack += _inside(node, item)
        elif isinstance(item, list | tuple):
            stack += [(node[key], inner) for key in _EVERY_ITEM if isinstance(node.get(key), Mapping) for inner in item]
            if isinstance(node.get("prefixItems"), list):
                stack += zip(node["prefixItems"], item, strict=False)
    return True


def _inside(node: Mapping[str, Any], item: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    properties = node.get("properties")
    if isinstance(properties, Mapping):
        yield from ((properties[name], inner) for name, inner in item.items() if name in properties)
    for key in _EVERY_VALUE:
        if isinstance(node.get(key), Mapping):
            yield from ((node[key], inner) for inner in item.values())
    if isinstance(node.get("propertyNames"), Mapping):
        yield from ((node["propertyNames"], name) for name in item)
    if isinstance(node.get("patternProperties"), Mapping):
        yield from ((schema, inner) for schema in node["patternProperties"].values() for inner in item.values())


def _own_steps(node: Mapping[str, Any], item: object) -> int:
    """Steps of the node's own keywords on this value."""
    steps = len(node["enum"]) // 4 if isinstance(node.get("enum"), list) else 0
    if isinstance(item, str):
        return steps + (_pattern_steps(node["pattern"], item) if "pattern" in node else 0)
    if isinstance(item, list | tuple):
        every = sum(isinstance(node.get(key), Mapping) for key in _EVERY_ITEM)
        return steps + len(item) * (every + (2 if node.get("uniqueItems") is True else 0))
    if isinstance(item, Mapping) and isinstance(node.get("patternProperties"), Mapping):
        return steps + sum(_pattern_steps(pattern, name) for pattern in node["patternProperties"] for name in item)
    return steps


def _pattern_steps(pattern: object, text: str) -> int:
    if not isinstance(pattern, str):
        return 0
    repeats = 1
    for low, high in _REPEATS.findall(pattern[:1000]):
        repeats *= max(1, int((high or low or "1")[:6]))
    back = _STEPS_BACK if _BACKTRACKS.search(pattern) else 0
    return back + len(text) * min(repeats, 100_000) // 100


def _at(schema: Json, reference: object) -> Json:
    """What a JSON pointer `#/...` leads to; None where it leads nowhere, which ends the check at once."""
    if not isinstance(reference, str) or not reference.startswith("#") or (reference[1:2] not in ("", "/")):
        return None
    node: Any = schema
    for step in reference[2:].split("/") if len(reference) > 1 else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and len(name) < 9 and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def inlined(schema: Row, whole: Row, depth: int = 0) -> Row:
    """The schema with references on the way to its types (`$ref`, anyOf, oneOf, allOf) replaced by their targets."""
    if depth > _DEEPEST_TYPES or _LEADING.isdisjoint(schema):
        return schema
    target = _at(whole, schema["$ref"]) if "$ref" in schema else None
    made = {**(inlined(target, whole, depth + 1) if isinstance(target, dict) else {}), **schema}
    for key in _SAME_MANY:
        if isinstance(made.get(key), list):
            options = made[key][:_WIDEST_TYPES]
            made[key] = [inlined(item, whole, depth + 1) if isinstance(item, dict) else item for item in options]
    return made


def _pattern(_: object, pattern: str, text: object, __: object) -> Iterator[ValidationError]:
    if isinstance(text, str) and not _matches(pattern, text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _unique(_: object, unique: object, items: object, __: object) -> Iterator[ValidationError]:
    if unique is True and isinstance(items, list) and not _fits_keyword("uniqueItems", True, items):
        yield ValidationError(f"{str(items)[:200]} has non-unique elements")


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text; True for a pattern that cannot be used."""
    return _fits_keyword("pattern", pattern, text)


def _fits_keyword(keyword: str, setting: Json, value: object) -> bool:
    try:
        return _keyword_check(keyword, setting)(value)
    except ValueError:
        return True


@lru_cache(maxsize=1024)
def _keyword_check(keyword: str, setting: Json) -> Callable[[object], bool]:
    return _made({keyword: setting})


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: object, _: object
) -> Iterator[ValidationError]:
    if isinstance(value, Mapping):
        for pattern, schema in patterns.items():
            for name, item in value.items():
                if _matches(pattern, name):
                    yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _additional(validator: Any, schema: Any, value: object, parent: Mapping[str, Any]) -> Iterator[ValidationError]:
    if not isinstance(value, Mapping):
        return
    named, patterns = parent.get("properties") or {}, parent.get("patternProperties") or {}
    extra = [name for name in value if name not in named and not any(_matches(each, name) for each in patterns)]
    if isinstance(schema, Mapping):
        for name in extra:
            yield from validator.descend(value[name], schema, path=name)
    elif schema is False and extra:
        listed, verb = ", ".join(map(repr, sorted(extra, key=str))), "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({listed} {verb} unexpected)")


_Bounded = validators.extend(
    Draft202012Validator,
    {
        "pattern": _pattern,
        "uniqueItems": _unique,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
    },
)
"""jsonschema, with the keywords that could run for ever on model text taken over by jsonschema-rs."""
