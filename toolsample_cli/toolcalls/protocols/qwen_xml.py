"""Qwen3-Coder: <tool_call>, <function=name>, one <parameter=key> per parameter, its value as plain text.

The text alone has no types: "03106" may be a postcode or a number. `types` gives the schema of a parameter; without
it, what reads as JSON other than a string is taken as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from toolsample_cli.json_types import Json, Row
from toolsample_cli.toolcalls.call import MAX_PAYLOAD, Call, loads
from toolsample_cli.toolcalls.protocols import json_repair
from toolsample_cli.toolcalls.protocols.base import (
    Parsed,
    Protocol,
    Strict,
    bounded,
    no_call,
    thought_apart,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.hermes import untagged
from toolsample_cli.toolcalls.protocols.lenient import MAX_BLOCKS, Reading, read_blocks

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"<function=([^<>\n]{1,1000})>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,1000})>")
_DEEPEST = 8
Types = Callable[[str, str], Row | None]


def _parse(text: str, gold_kind: str = "calls", *, types: Types | None = None, **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = thought_apart(text.strip())
    start = body.find(OPEN)
    first = _FUNCTION.search(body)
    if start < 0 and not first:
        parsed = no_call(body, gold_kind, thought, closed, CLOSE not in body and "</function>" not in body)
        return untagged(parsed, body) if body[:1] in ("{", "[", "`") else parsed
    if first and (start < 0 or first.start() < start):
        start = first.start()
    if len(body) - start > MAX_PAYLOAD:
        return Parsed("too_long", slip="too_long")
    if not first:
        return with_calls(Strict(None, slip="not_xml"), read_blocks(body, OPEN, CLOSE), "", gold_kind, thought)
    strict = _functions(body[start:], types)
    meant = Reading(list(strict.calls or ()), strict.slip)
    if strict.slip:
        strict.calls = None
    return with_calls(strict, meant, body[:start].strip(), gold_kind, thought)


def _functions(body: str, types: Types | None) -> Strict:
    """All functions; with a slip, `calls` holds what could still be read."""
    calls, slip = [], ""
    heads = list(islice(_FUNCTION.finditer(body), MAX_BLOCKS + 1))
    if len(heads) > MAX_BLOCKS:
        return Strict([], False, "too_long")
    for head, following in zip(heads, [*heads[1:], None], strict=False):
        stop = following.start() if following else len(body)
        end = body.rfind("</function>", head.end(), stop)
        if end < 0:
            slip = slip or ("truncated" if following is None and CLOSE not in body[head.end() :] else "repaired")
            if slip == "truncated":
                break
        arguments, unclosed = _parameters(body[head.end() : end if end >= 0 else stop], head[1], types)
        slip = slip or ("repaired" if unclosed else "")
        calls.append(Call(head[1], arguments))
    form = bool(calls) and not slip and _shape(body) == _shape(_render(calls))
    return Strict(calls, form, slip)


def _shape(text: str) -> str:
    """The text with values and line ends between tags taken out: what the form demands to be equal."""
    text = re.sub(r"<parameter=[^<>\n]{1,1000}>\n", "<parameter>", text)
    tags = re.findall(r"<parameter>|\n</parameter>|\n?</function>|\n?</?tool_call>|\n?<function=[^<>\n]{1,1000}>", text)
    return "".join(tags)


def _parameters(body: str, tool: str, types: Types | None) -> tuple[Row, bool]:
    arguments: Row = {}
    unclosed = False
    heads = list(_PARAMETER.finditer(body))
    for head, following in zip(heads, [*heads[1:], None], strict=False):
        stop = following.start() if following else len(body)
        end = body.rfind("</parameter>", head.end(), stop)
        unclosed = unclosed or end < 0
        text = body[head.end() : end if end >= 0 else stop]
        text = text.removeprefix("\n").removesuffix("\n")
        name = head[1]
        arguments[name] = typed_value(text, types(tool, name) if types else None)
    return arguments, unclosed


def typed_value(text: str, schema: Row | None) -> Json:
    """The value a parameter's text stands for under its schema."""
    kinds = _kinds(schema) if schema is not None else frozenset()
    if kinds == {"string"}:
        return text
    try:
        value = loads(text.strip())
    except ValueError:
        value = _literal(text.strip())
    if isinstance(value, str):
        return text
    if "string" in kinds and _kind(value) not in kinds:
        return text
    return value


def _literal(text: str) -> Json:
    if len(text) > 50_000 or text[:1] not in tuple("{[TFN"):
        return text
    try:
        value, end = json_repair.read(text)
    except ValueError:
        return text
    return value if end == len(text) else text


def _kinds(schema: Mapping[str, Json], depth: int = 0) -> frozenset[str]:
    """The types that values of this schema may have; empty where it does not say."""
    kind = schema.get("type")
    kinds = frozenset([kind] if isinstance(kind, str) else _strings(kind))
    for key in ("anyOf", "oneOf"):
        kinds |= frozenset().union(*_each(schema.get(key), depth))
    for named in _each(schema.get("allOf"), depth):
        kinds = (kinds & named or named) if kinds and named else kinds | named
    if not kinds and "const" in schema:
        kinds = frozenset([_kind(schema["const"])])
    options = schema.get("enum")
    if not kinds and isinstance(options, list):
        kinds = frozenset(map(_kind, options))
    return kinds


def _each(options: Json, depth: int) -> list[frozenset[str]]:
    if not isinstance(options, list) or depth > _DEEPEST:
        return []
    return [_kinds(option, depth + 1) for option in options if isinstance(option, dict)]


def _strings(names: Json) -> list[str]:
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _kind(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    names: dict[type, str] = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Qwen3-Coder's template writes it, values that are not text as JSON."""
    parts = [f"<think>\n{thought}\n</think>\n"] if thought is not None else []
    if response is not None:
        parts.append(response)
    for call in calls:
        lines = [OPEN, f"<function={call.name}>"]
        for key, value in call.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += [f"<parameter={key}>", text, "</parameter>"]
        parts.append("\n".join([*lines, "</function>", CLOSE]))
    return "\n".join(parts)


PROTOCOL = Protocol("qwen_xml", "Qwen3-Coder: <function=...> tags", True, _parse, _render, typed=True)
