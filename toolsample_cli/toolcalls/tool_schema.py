"""What a tool is: name, description and parameters in JSON Schema, whatever shape its data set gave it.

Schemas in the wild name Python types, leave out the envelope or put `required` in odd places. A schema that already
is JSON Schema comes out unchanged. What cannot be read as a constraint becomes no constraint, never a wrong one.
"""

from __future__ import annotations

import ast
import functools
import json
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError

from toolsample_cli.toolcalls.plain_schema import KEYWORDS, is_plain
from toolsample_cli.toolcalls.type_names import read_type

DEPTH = 48
"""Deepest nesting that is read; deeper schemas are refused."""
LITERAL = 1_000_000
"""Longest text in characters that is read as a Python literal where it is not JSON."""
REPAIRS = 32
"""Most keywords that are dropped from one schema to make it valid."""

_NAME = ("name", "api_name", "tool_name", "tool")
_PARAMETERS = ("parameters", "input_schema", "inputSchema", "params", "arguments")
_NULL_IS_MEANT = frozenset({"default", "const", "example"})
_CHOICES = ("anyOf", "oneOf", "allOf")
_NESTING = frozenset(
    {"properties", "required", "items", "additionalProperties", "not", "contains", "prefixItems", "$defs"}
    | {"definitions", "$ref", *_CHOICES}
)
_OBJECT = {"type": "object", "properties": {}}


class Unreadable(ValueError):
    """A tool or a schema that cannot be read; the message says why."""


def read_tools(raw: Any) -> list[dict[str, Any]]:
    """Offered tools as [{name, description, parameters}] from a list, one tool, JSON text or a list of JSON texts.

    None and blank text mean no tools. Raises Unreadable.
    """
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return []
    value = read_literal(raw) if isinstance(raw, str) else raw
    if isinstance(value, dict):
        value = [value] if any(key in value for key in (*_NAME, "function")) else list(value.values())
    if not isinstance(value, list):
        raise Unreadable(f"tools are {type(value).__name__}, expected a list")
    return [read_tool(item) for item in value]


def read_tool(raw: Any) -> dict[str, Any]:
    """One tool, with or without the `{"type": "function", "function": ...}` envelope. Raises Unreadable."""
    value = read_literal(raw) if isinstance(raw, str) else raw
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}
    if not isinstance(value, dict):
        raise Unreadable(f"a tool is {type(value).__name__}, expected an object")
    name = next((value[key] for key in _NAME if isinstance(value.get(key), str)), None)
    if not name:
        raise Unreadable("a tool has no name")
    given = next((value[key] for key in _PARAMETERS if value.get(key) is not None), None)
    schema = read_parameters(given, value.get("required"))
    description = value.get("description")
    return {"name": name, "description": description if isinstance(description, str) else "", "parameters": schema}


def read_parameters(raw: Any, required: Any = None) -> dict[str, Any]:
    """A tool's parameters as one valid object schema; `required` is a list that stood beside them."""
    value = read_literal(raw) if isinstance(raw, str) and raw.strip() else raw
    if not value:
        return dict(_OBJECT)
    if isinstance(value, list):
        value = _from_list(value)
    if not isinstance(value, dict):
        raise Unreadable(f"parameters are {type(value).__name__}, expected an object")
    schema = _object(value, 0) if _is_schema(value) else _flat(value, 0)
    if isinstance(required, list) and "required" not in schema:
        names = [name for name in required if isinstance(name, str) and name in schema.get("properties", {})]
        schema = {**schema, "required": names} if names else schema
    return _repaired(schema)


def read_literal(text: str) -> Any:
    """JSON, or a Python literal such as single-quoted dicts; never evaluated. Raises Unreadable."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    if len(text) > LITERAL:
        raise Unreadable(f"neither JSON nor short enough ({len(text)} characters) for a Python literal")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise Unreadable(f"neither JSON nor a Python literal: {text[:80]!r}") from None


def _is_schema(value: dict[str, Any]) -> bool:
    properties = value.get("properties")
    if isinstance(properties, dict) and all(isinstance(item, dict | bool) for item in properties.values()):
        return not isinstance(value.get("type"), dict)  # a flat map may have parameters called type and properties
    kind = value.get("type")
    if isinstance(kind, str) and read_type(kind)[0].get("type") == "object":
        return all(key in KEYWORDS or not isinstance(item, dict) for key, item in value.items())
    return isinstance(value.get("$ref"), str) or any(isinstance(value.get(key), list) for key in _CHOICES)


def _from_list(items: list[Any]) -> dict[str, Any]:
    flat = {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise Unreadable("a parameter in a list has no name")
        flat[item["name"]] = {key: inner for key, inner in item.items() if key != "name"}
    return flat


def _flat(value: dict[str, Any], depth: int) -> dict[str, Any]:
    """A bare map name -> description of a parameter. One with a default or called optional is not required."""
    properties, required = {}, []
    for name, item in value.items():
        if item is None:  # padding of a table with one column for each parameter of any tool
            continue
        properties[name], optional = _property(item if isinstance(item, dict | str | list) else {}, depth + 1)
        if not optional and "default" not in properties[name]:
            required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _object(value: dict[str, Any], depth: int) -> dict[str, Any]:
    schema, _ = _property(value, depth)
    schema.setdefault("type", "object")
    if schema["type"] == "object" and not {"$ref", *_CHOICES} & schema.keys():
        schema.setdefault("properties", {})
    return schema


def _property(raw: Any, depth: int) -> tuple[Any, bool]:
    """One schema node normalised, and whether it calls itself optional."""
    if depth > DEPTH:
        raise Unreadable(f"a schema nested deeper than {DEPTH} levels")
    if isinstance(raw, bool):
        return raw, False
    if isinstance(raw, str):
        fragment, optional = read_type(raw)
        return (fragment, optional) if fragment else ({"description": raw}, optional)
    if isinstance(raw, list):
        raw = {"enum": raw}
    if not isinstance(raw, dict):
        return {}, False
    node = {key: item for key, item in raw.items() if item is not None or key in _NULL_IS_MEANT}
    optional = node.get("optional") is True
    if "type" in node:
        fragment, said = _types(node["type"])
        node = _put(fragment, node)
        optional = optional or said
    if isinstance(node.get("required"), bool):  # `required: true` on the parameter itself
        optional = optional or not node.pop("required")
    _inner(node, depth)
    return node, optional


def _put(fragment: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """The fragment where the node says `type`, so that keys stay in their author's order; the node's own keys win."""
    made: dict[str, Any] = {}
    for key, item in node.items():
        new = {key: item} if key != "type" else {k: v for k, v in fragment.items() if k == "type" or k not in node}
        made.update(new)
    return made


def _types(raw: Any) -> tuple[dict[str, Any], bool]:
    if isinstance(raw, str):
        return read_type(raw)
    if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
        names = [read_type(item)[0].get("type") for item in raw]
        if all(isinstance(name, str) for name in names):
            return {"type": list(dict.fromkeys(names))}, False
    return {}, False


def _inner(node: dict[str, Any], depth: int) -> None:
    if _NESTING.isdisjoint(node):
        return
    properties = node.get("properties")
    if isinstance(properties, dict):
        inner = {name: _property(item, depth + 1) for name, item in properties.items() if item is not None}
        node["properties"] = {name: schema for name, (schema, _) in inner.items()}
        wanted = [name for name, item in properties.items() if isinstance(item, dict) and item.get("required") is True]
        if wanted and "required" not in node:
            node["required"] = wanted
    if isinstance(node.get("required"), str):
        node["required"] = [node["required"]]
    if isinstance(node.get("required"), list):
        node["required"] = list(dict.fromkeys(name for name in node["required"] if isinstance(name, str)))
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
    for key in ("items", "additionalProperties", "not", "contains"):
        if isinstance(node.get(key), dict | str):
            node[key] = _property(node[key], depth + 1)[0]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(node.get(key), list):
            node[key] = [_property(item, depth + 1)[0] for item in node[key]]
    for key in ("$defs", "definitions"):
        if isinstance(node.get(key), dict):
            node[key] = {name: _property(item, depth + 1)[0] for name, item in node[key].items()}
    if isinstance(node.get("$ref"), str) and not node["$ref"].startswith("#"):
        del node["$ref"]  # nothing is fetched to check an argument


def _repaired(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if is_plain(schema) else json.loads(_repaired_text(json.dumps(schema)))


@functools.lru_cache(maxsize=4096)
def _repaired_text(text: str) -> str:
    """Drop keywords that the meta-schema refuses, the deepest offender first, until the schema is one."""
    schema = json.loads(text)
    for _ in range(REPAIRS):
        try:
            Draft202012Validator.check_schema(schema)
            return json.dumps(schema)
        except SchemaError as error:
            path = list(_deepest(error).absolute_path)
        except RecursionError:
            break
        if not path:
            break
        parent = schema
        for step in path[:-1]:
            parent = parent[step]
        del parent[path[-1]]
    return json.dumps(_OBJECT)


def _deepest(error: ValidationError) -> ValidationError:
    while error.context:
        error = max(error.context, key=lambda inner: len(inner.absolute_path))
    return error
