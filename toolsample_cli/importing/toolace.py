"""ToolACE: ShareGPT turns whose calls are Python text, `[Get News(topic="x"), Sum(a=1)]`; tools are in the system text.

Names may hold spaces, dots and slashes, so the text is no Python as a whole; only the arguments are read as such,
as literals, never evaluated.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from toolsample_cli.importing.base import Context, Drafts, Format, Reject
from toolsample_cli.importing.chats import conversation
from toolsample_cli.toolcalls.call import Call

_LIST = re.compile(r"\s*\[\s*[^\[\]()\n]+\(.*\)\s*\]\s*", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
_LONGEST = 100_000


def _looks_like(row: dict[str, Any]) -> bool:
    turns, system = row.get("conversations"), row.get("system")
    if not isinstance(turns, list) or not isinstance(system, str) or row.get("tools"):
        return False
    return "func1(params_name" in system or any(
        isinstance(turn, dict) and turn.get("from") == "assistant" and _LIST.fullmatch(str(turn.get("value")))
        for turn in turns
    )


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """The assistant's turns; the system text, being tools and instructions, is replaced by the tools."""
    turns: list[dict[str, Any]] = []
    for turn in row["conversations"]:
        text = str(turn.get("value"))
        if turn.get("from") == "assistant" and _LIST.fullmatch(text):
            calls = [{"type": "function", "function": call.record()} for call in python_calls(text)]
            turns.append({"role": "assistant", "tool_calls": calls})
        else:
            turns.append(turn)
    extra = {"id": row["id"]} if row.get("id") else {}
    yield from conversation(turns, system_tools(row["system"]), context, extra)


def system_tools(system: str) -> list[Any]:
    """The first JSON list of objects in a text; [] when there is none."""
    decode, at = json.JSONDecoder(strict=False).raw_decode, system.find("[")
    while at >= 0:
        try:
            value, _ = decode(system, at)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            return value
        at = system.find("[", at + 1)
    return []


def python_calls(text: str) -> list[Call]:
    """Calls of `[name(key=literal, ...), ...]`: names may hold brackets, keys dashes or keywords. Raises Reject."""
    body = text.strip()[1:-1]
    if len(body) > _LONGEST:
        raise Reject("bad_call", f"calls of {len(body)} characters")
    calls, at = [], 0
    while body[at:].strip(" \n,"):
        opening = body.find("(", at)
        closing = _closing(body, opening) if opening >= 0 else -1
        following = body.find("(", closing)
        while closing >= 0 and following >= 0 and not body[closing + 1 : following].strip(" "):
            # `name (v2)(a=1)`: the last group holds the arguments
            opening, closing = following, _closing(body, following)
            following = body.find("(", closing)
        if closing < 0:
            raise Reject("bad_call", f"brackets do not match: {body[at : at + 80]!r}")
        name = body[at:opening].strip(" \n,")
        calls.append(Call(name, _arguments(body[opening + 1 : closing])))
        at = closing + 1
    return calls


def _unquoted(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """(index, character, depth of brackets behind it) of every character from `start` on that is outside quotes."""
    depth, quote, skip = 0, "", False
    for index in range(start, len(text)):
        char = text[index]
        if skip:
            skip = False
        elif quote:
            skip, quote = char == "\\", "" if char == quote else quote
        else:
            quote = char if char in "\"'" else ""
            depth += (char in "([{") - (char in ")]}")
            yield index, char, depth


def _closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` is closed; -1 when it is not."""
    return next((index for index, char, depth in _unquoted(text, opening) if char in ")]}" and depth == 0), -1)


def _arguments(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in _parts(text):
        key, sign, value = part.partition("=")
        key = key.strip()
        if not sign or not key or not re.fullmatch(r"[^\W\d][\w.\- ]*", key):
            raise Reject("bad_call", f"an argument without a name: {part.strip()[:80]!r}")
        if key in found:
            raise Reject("bad_call", f"the argument {key} is given twice")
        try:
            found[key] = _literal(ast.parse(value.strip(), mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            raise Reject("bad_call", f"an argument is no literal: {part.strip()[:80]!r}") from None
    return found


def _parts(text: str) -> Iterator[str]:
    """The text cut at commas outside brackets and quotes."""
    start = 0
    for index, char, depth in _unquoted(text):
        if char == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(ast.literal_eval(key)): _literal(value) for key, value in pairs if key is not None}
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("not JSON")
    return value


FORMAT = Format("toolace", "ToolACE: calls as Python text, tools in the system text", _looks_like, _drafts)
