"""What a tool is: name, description and parameters in JSON Schema, whatever shape its data set gave it.

Schemas in the wild name Python types, leave out the envelope or put `required` in odd places. A schema that already
is JSON Schema comes out unchanged. What cannot be read as a constraint becomes no constraint, never a wrong one.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError

from toolsample_cli.toolcalls.schema_check import KEYWORDS, is_schema
from toolsample_cli.toolcalls.type_names import read_type

DEPTH = 48
"""Deepest nesting that is read; deeper schemas are refused."""
LITERAL = 1_000_000
"""Longest text in characters that is read as a Python literal where it is not JSON."""
MAX_BITS = 14_000
"""Largest integer that is read, in bits: about the 4,300 digits that Python writes out again."""
REPAIRS = 32
"""Most keywords that are dropped from one schema to make it valid."""

_NAME = ("name", "api_name", "tool_name", "tool")
_DESCRIPTION = ("description", "api_description", "tool_description")
_PARAMETERS = (
    "parameters", "input_schema", "inputSchema", "parametersJsonSchema", "params", "arguments", "args", "args_schema",
)  # fmt: skip
"""Where tools keep a schema or a flat map: OpenAI, Anthropic, MCP, Gemini and what people write by hand."""
_WRAPPERS = ("tools", "functions", "function_declarations", "functionDeclarations")
"""Keys under which whole lists of tools stand: MCP's tools/list, Gemini's declarations."""
_OF_A_TOOL = (*_NAME, "function", "toolSpec", *_WRAPPERS)  # else an object holds tools by name
_BESIDE = frozenset(
    {*_NAME, *_DESCRIPTION, *_PARAMETERS, "type", "function", "strict", "required", "optional", "return", "returns"}
    | {"return_type", "response", "responses", "output", "outputs", "output_schema", "outputSchema", "output_type"}
    | {"results", "result", "example", "examples", "annotations", "metadata", "meta", "_meta", "title", "field"}
    | {"category", "category_name", "method", "url", "tags", "cache_control", "template_response", "execution"}
)
"""Keys of a tool that hold no parameters."""
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
        one = any(key in value for key in _OF_A_TOOL)
        value = [value] if one else [_named(key, tool) for key, tool in value.items()]
    if not isinstance(value, list):
        raise Unreadable(f"tools are {type(value).__name__}, expected a list")
    return [read_tool(tool) for item in value for tool in _unwrapped(item)]


def _named(name: str, tool: Any) -> Any:
    """A tool from an object of tools by name, which need not repeat its name inside."""
    nameless = isinstance(tool, dict) and tool and not any(key in tool for key in _OF_A_TOOL)
    return {"name": name, **tool} if nameless else tool


def _unwrapped(item: Any) -> list[Any]:
    """The tools of a wrapper such as {"functionDeclarations": [...]}, or the tool itself."""
    if isinstance(item, dict) and not any(key in item for key in (*_NAME, "function")):
        for key in _WRAPPERS:
            if isinstance(item.get(key), list):
                return list(item[key])
    return [item]


def read_tool(raw: Any) -> dict[str, Any]:
    """One tool, with or without the `{"type": "function", "function": ...}` envelope. Raises Unreadable."""
    value = read_literal(raw) if isinstance(raw, str) else raw
    for envelope in ("toolSpec", "function"):  # Bedrock, OpenAI
        if isinstance(value, dict) and isinstance(value.get(envelope), dict):
            value = {**value, **value[envelope]}
    if not isinstance(value, dict):
        raise Unreadable(f"a tool is {type(value).__name__}, expected an object")
    name = next((value[key] for key in _NAME if isinstance(value.get(key), str)), None)
    if not name:
        raise Unreadable("a tool has no name")
    description = next((value[key] for key in _DESCRIPTION if isinstance(value.get(key), str)), "")
    return {"name": name, "description": description, "parameters": _parameters_of(value)}


def _parameters_of(tool: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a tool, wherever its form keeps them. Unreadable when they are under no known key."""
    given = next((tool[key] for key in _PARAMETERS if tool.get(key) is not None), None)
    if given is not None:
        inner = given.get("json") if "toolSpec" in tool and isinstance(given, dict) else None  # Bedrock
        return read_parameters(inner or given, tool.get("required"))
    if "required_parameters" in tool or "optional_parameters" in tool:  # ToolBench
        listed, may = (_from_list(tool.get(f"{kind}_parameters") or []) for kind in ("required", "optional"))
        return read_parameters({**listed, **may}, list(listed))
    if isinstance(tool.get("parameter_definitions"), dict):  # Cohere: optional unless it says otherwise
        defined = tool["parameter_definitions"]
        must = [key for key, item in defined.items() if isinstance(item, dict) and item.get("required") is True]
        return read_parameters(defined, must)
    if isinstance(tool.get("inputs"), dict):  # smolagents: nullable ones may be left out
        inputs = tool["inputs"]
        may_be_null = {key for key, item in inputs.items() if isinstance(item, dict) and item.get("nullable") is True}
        return read_parameters(inputs, [key for key in inputs if key not in may_be_null])
    if isinstance(tool.get("properties"), dict | list):  # the schema itself, with a name
        return read_parameters({"type": "object", "properties": tool["properties"]}, tool.get("required"))
    for key, item in tool.items():
        if key not in _BESIDE and item and isinstance(item, dict | list) and not _is_words(item):
            raise Unreadable(f"the parameters of {tool.get('name', 'a tool')!r} are under no known key; it has {key!r}")
    return dict(_OBJECT)


def read_parameters(raw: Any, required: Any = None) -> dict[str, Any]:
    """A tool's parameters as one valid object schema; a list `required` that stood beside a flat map is the law.

    Raises Unreadable.
    """
    value = read_literal(raw) if isinstance(raw, str) and raw.strip() else raw
    required = [required] if isinstance(required, str) else required
    if not value:
        return dict(_OBJECT)
    if isinstance(value, list):
        value = _from_list(value)
    if not isinstance(value, dict):
        raise Unreadable(f"parameters are {type(value).__name__}, expected an object")
    if isinstance(value.get("properties"), list):
        value = {**value, "properties": _from_list(value["properties"])}
    if _is_schema(value):
        schema = _object(value, 0)
        if isinstance(required, list) and "required" not in schema:
            schema = _requiring(schema, required)
    else:
        inside = value.get("required")
        if isinstance(inside, list) and all(isinstance(name, str) and name in value for name in inside):
            value = {name: item for name, item in value.items() if name != "required"}
            required = required if isinstance(required, list) else inside
        schema = _flat(value, 0)
        if isinstance(required, list):
            schema = _requiring(schema, required)
    return _repaired(_without_dangling(schema))


def _requiring(schema: dict[str, Any], names: list[Any]) -> dict[str, Any]:
    """The schema with exactly these required parameters, as far as it has them."""
    known = [name for name in names if isinstance(name, str) and name in schema.get("properties", {})]
    rest = {key: item for key, item in schema.items() if key != "required"}
    return {**rest, "required": known} if known else rest


def read_literal(text: str) -> Any:
    """JSON, or a Python literal such as single-quoted dicts that JSON can hold; never evaluated. Raises Unreadable."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    if len(text) > LITERAL:
        raise Unreadable(f"neither JSON nor short enough ({len(text)} characters) for a Python literal")
    try:
        return _as_json(ast.literal_eval(text.strip()), 0)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise Unreadable(f"neither JSON nor a Python literal of JSON's kinds: {text[:80]!r}") from None


def _as_json(value: Any, depth: int) -> Any:
    """The value with tuples as lists; ValueError for what JSON cannot hold: sets, bytes, keys other than text."""
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number of too many digits")
        return value
    if depth > DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, list | tuple):
        return [_as_json(item, depth + 1) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(item, depth + 1) for key, item in value.items()}
    raise ValueError("not a value that JSON can hold")


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
        if item["name"] in flat:
            raise Unreadable(f"the parameter {item['name']!r} is listed twice")
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
    node = {str(key): item for key, item in raw.items() if item is not None or key in _NULL_IS_MEANT}
    optional = node.get("optional") is True
    if "type" in node:
        fragment, said = _types(node["type"])
        node = _put(fragment, node)
        optional = optional or said
    if isinstance(node.get("required"), bool):  # `required: true` on the parameter itself
        optional = optional or not node.pop("required")
    _inner(node, depth)
    if isinstance(node.get("nullable"), bool):  # OpenAPI 3.0 and Gemini
        node = _nullable(node) if node.pop("nullable") else node
    return node, optional


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    """The node with null among what it takes."""
    kind = node.get("type")
    if isinstance(kind, str | list):
        kinds = [kind] if isinstance(kind, str) else kind
        node = {**node, "type": [*kinds, *([] if "null" in kinds else ["null"])]}
        if isinstance(node.get("enum"), list) and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
        return node
    named = {key: node[key] for key in ("$ref", *_CHOICES) if key in node}
    if not named:
        return node
    rest = {key: item for key, item in node.items() if key not in named}
    return {**rest, "anyOf": [named, {"type": "null"}]}


def _put(fragment: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """The fragment where the node says `type`, so that keys stay in their author's order; the node's own keys win."""
    made: dict[str, Any] = {}
    for key, item in node.items():
        new = {key: item} if key != "type" else {k: v for k, v in fragment.items() if k == "type" or k not in node}
        made.update(new)
    return made


def _is_words(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(one, str | int | float) for one in item)


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


def _without_dangling(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references that lead nowhere in this schema: they constrain nothing, and checkers stumble over them."""

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(node.get(key), str) and not _leads_somewhere(node[key], schema):
                    del node[key]
            for key, item in node.items():
                if key not in ("default", "const", "enum", "examples", "example"):  # data, not schema
                    walk(item)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(schema)
    return schema


def _leads_somewhere(reference: str, schema: dict[str, Any]) -> bool:
    """Whether a local reference names a subschema; anchors are not followed."""
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    at: Any = schema
    for step in reference[2:].split("/"):
        name = re.sub(r"%([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), step)
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and name in at:
            at = at[name]
        elif isinstance(at, list) and name.isdigit() and int(name) < len(at):
            at = at[int(name)]
        else:
            return False
    return isinstance(at, dict | bool)


def _repaired(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if is_schema(schema) else json.loads(_repaired_text(json.dumps(schema)))


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


def _deepest(error: SchemaError | ValidationError) -> SchemaError | ValidationError:
    while error.context:
        error = max(error.context, key=lambda inner: len(inner.absolute_path))
    return error
