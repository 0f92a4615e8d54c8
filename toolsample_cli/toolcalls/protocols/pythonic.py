"""ToolACE's, BFCL's and Llama 3.2's calls as a Python list: [f(a=1), g(b="x")].

Parsed by `ast`, literals only, nothing is evaluated. Names that are not Python names (with spaces, as in ToolACE) and
JSON constants are read by the lenient reader.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence

from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import MAX_DEPTH, Call, TooDeep
from toolsample_cli.toolcalls.protocols import json_repair
from toolsample_cli.toolcalls.protocols.base import (
    Parsed,
    Protocol,
    Strict,
    bounded,
    no_call,
    some,
    strictly,
    thought_apart,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.lenient import Fault, Reading, read_payload

MAX_SOURCE = 50_000
"""Longest source in characters given to `ast`, whose tree takes a hundred times the room."""
_NAME = re.compile(r"[^()\[\]{}=,'\"\n]{1,200}?(?=\s*\()")
_KEY = re.compile(r"\s*([A-Za-z_][\w.-]{0,200})\s*=(?!=)")
_START = re.compile(r"\[\s*[^()\[\]{}=,'\"\n]{1,200}?\s*\(")


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = thought_apart(text.strip())
    start = _START.search(body[:MAX_SOURCE])
    if not start:
        return _without_list(body, gold_kind, thought, closed)
    content = body[: start.start()].strip()
    strict = strictly(_calls, body[start.start() :])
    meant = _lenient(body[start.start() :]) if strict.slip else None
    if content and meant and not meant.calls:  # brackets in prose
        return no_call(body, gold_kind, thought, closed)
    return with_calls(strict, meant, content, gold_kind, thought)


def _without_list(body: str, gold_kind: str, thought: str | None, closed: bool) -> Parsed:
    if body.startswith(("```", "{", "[{")):
        meant = _lenient(body)
        if not meant.calls:
            meant = read_payload(body, delimited=False)
        if meant.calls:
            return with_calls(Strict(None, slip="not_python"), meant, "", gold_kind, thought)
    if _NAME.match(body[:1000]) and body.endswith(")"):
        meant = _lenient(f"[{body}]")
        if meant.calls and not meant.slip:
            return with_calls(Strict(None, slip="not_list"), meant, "", gold_kind, thought)
    return no_call(body, gold_kind, thought, closed)


def _calls(source: str) -> Strict:
    if len(source) > MAX_SOURCE:
        raise Fault("too_long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings warn
            tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List):
            raise Fault("not_list")
        return some([_call(node) for node in tree.elts])
    except MemoryError:  # ast's own word for too complex
        raise Fault("too_deep") from None
    except (Fault, TooDeep):
        raise
    except (SyntaxError, ValueError):
        raise Fault("bad_python") from None


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise Fault("not_call")
    if node.args:
        raise Fault("positional")
    arguments: Row = {}
    for item in node.keywords:
        if item.arg is None:
            raise Fault("not_literal")
        if item.arg in arguments:
            raise Fault("duplicate_key")
        arguments[item.arg] = _literal(item.value, 0)
    return Call(_dotted(node.func), arguments)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise Fault("no_name")
    return ".".join([node.id, *reversed(parts)])


def _literal(node: ast.expr | None, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise TooDeep(f"nested deeper than {MAX_DEPTH}")
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.List):
        return [_literal(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(item, depth + 1) for item in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        if len(keys) == len(node.keys):
            return {str(key): _literal(value, depth + 1) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _literal(node.operand, depth + 1)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    raise Fault("not_literal")


def _lenient(source: str) -> Reading:
    """Calls with any name and relaxed literals; stops at the first thing it cannot read."""
    meant = Reading()
    if source.startswith("```"):
        meant.note("repaired")
        source = source.split("\n", 1)[-1].strip().removesuffix("```").strip()
    if len(source) > meant.budget:
        meant.note("too_long")
        return meant
    at = 1 if source.startswith("[") else 0
    try:
        while True:
            at = _past(source, at, " \t\r\n,;")
            if source[at : at + 1] in ("]", ""):
                break
            call, at = read_keyword_call(source, at)
            meant.calls.append(call)
    except TooDeep:
        meant.note("too_deep")
    except json_repair.BeyondRepair as error:
        meant.note("truncated" if error.cut else "bad_python")
    if source[at : at + 1] != "]" and source.startswith("["):
        meant.note("truncated")
    elif source[at + 1 :].strip():
        meant.note("repaired")
    return meant


def _past(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def read_keyword_call(source: str, at: int) -> tuple[Call, int]:
    """(call, position behind it) of `name(key=value, ...)` at `at`; raises BeyondRepair or TooDeep."""
    name = _NAME.match(source, at)
    if not name:
        raise json_repair.BeyondRepair("no name of a function")
    at = source.index("(", name.end()) + 1
    arguments: Row = {}
    while True:
        at = _past(source, at, " \t\r\n,")
        if source.startswith(")", at):
            return Call(name[0].strip(), arguments), at + 1
        key = _KEY.match(source, at)
        if not key:
            raise json_repair.BeyondRepair("no keyword argument", cut=at >= len(source))
        arguments[key[1]], at = json_repair.read(source, key.end())


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as BFCL's prompt demands it; names that are not Python names are written all the same."""
    texts = [f"{c.name}({', '.join(f'{key}={value!r}' for key, value in c.arguments.items())})" for c in calls]
    parts = [f"<think>\n{thought}\n</think>\n"] if thought is not None else []
    if response is not None:
        parts.append(response)
    return "\n".join([*parts, *([f"[{', '.join(texts)}]"] if texts else [])])


PROTOCOL = Protocol("pythonic", "ToolACE, BFCL: a Python list of calls", False, _parse, _render)
