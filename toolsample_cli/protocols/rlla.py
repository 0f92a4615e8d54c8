"""ToolRL's tags: <think>, then <tool_call> with one JSON object a line under `parameters`, and/or <response>.

Strict reading is ToolRL's, quirks included (methods Q6, Q7): the text after the FIRST <tool_call> up to the next
closing tag, one JSON value a line, any slip voids all. Only depth and length are bounded besides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolsample_cli.protocols.base import Parsed
from toolsample_cli.toolcall import MAX_CHARS, Call, TooDeep, loads

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD, _TAIL = "</think>\n<tool_call>\n", "\n</tool_call>"


def parse(text: str, gold_kind: str = "calls") -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if len(text) > MAX_CHARS:
        return Parsed("too_long")
    text = text.strip()
    parsed = strict(text)
    parsed.format_ok = form(text, gold_kind)
    return parsed


def form(text: str, gold_kind: str) -> bool:
    """Whether the stripped reply as a whole has the form of the gold's kind (methods 3.3)."""
    if not text.startswith("<think>"):
        return False
    if gold_kind == "calls":
        return _one(text, OPEN) and _one(text, CLOSE) and _block(text, len(text))
    if gold_kind == "response":
        return _response_at(text) >= 16 and text.startswith("</think>\n", _response_at(text) - 9)
    if gold_kind == "both":
        start = _response_at(text)
        return (
            start > 0 and _one(text, OPEN) and _one(text, CLOSE) and text[start - 1] == "\n" and _block(text, start - 1)
        )
    return text.endswith("</think>") and len(text) >= 15


def _one(text: str, tag: str) -> bool:
    return text.count(tag) == 1


def _block(text: str, end: int) -> bool:
    start = text.find(_HEAD)
    return start >= 7 and text.endswith(_TAIL, 0, end) and end - len(_TAIL) >= start + len(_HEAD)


def _response_at(text: str) -> int:
    """Where the one <response>...</response> that ends the text starts; -1 when there is none."""
    if not (text.endswith("</response>") and _one(text, "<response>") and _one(text, "</response>")):
        return -1
    return text.find("<response>")


def strict(text: str) -> Parsed:
    """ToolRL's own reading of a stripped reply; `strict_calls` is None where ToolRL's reader fails."""
    thought, response = _between(text, "<think>", "</think>"), _between(text, "<response>", "</response>")
    start = text.find(OPEN)
    if start < 0:
        return Parsed("no_call", (), False, response, thought, None)
    if CLOSE not in text:
        return Parsed("truncated", (), False, response, thought, None)
    start += len(OPEN)
    end = text.find(CLOSE, start)
    other = text.find(OPEN, start)
    if other >= 0 and (end < 0 or other < end):
        end = other
    payload = text[start : end if end >= 0 else len(text)].strip()
    calls, broken, status = [], [], "ok"
    for line in payload.split("\n"):
        try:
            value = loads(line)
        except TooDeep:
            return Parsed("too_deep", (), False, response, thought, None)
        except ValueError:
            return Parsed("bad_json" if payload else "empty", (), False, response, thought, None)
        if not isinstance(value, dict):
            return Parsed("not_object", (), False, response, thought, None)
        name, arguments = value.get("name"), value.get("parameters")
        if not isinstance(name, str):
            if "name" not in value or isinstance(name, dict | list):
                return Parsed("no_name", (), False, response, thought, None)
            name = f"{name!r} (not text)"  # ToolRL counts it as a tool that no gold names
        if not isinstance(arguments, dict):
            broken.append(len(calls))
            status, arguments = "no_arguments", {}
        calls.append(Call(name, arguments))
    found = tuple(calls)
    return Parsed(status, found, False, response, thought, found, tuple(broken))


def _between(text: str, opening: str, closing: str) -> str | None:
    start = text.find(opening)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return text[start : end if end >= 0 else len(text)].strip()


def render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as ToolRL's format demands it; a thought is always present."""
    parts = [f"<think> {thought} </think>" if thought else "<think> </think>"]
    if calls:
        lines = [json.dumps({"name": c.name, "parameters": c.arguments}, ensure_ascii=False) for c in calls]
        parts.append("\n".join([OPEN, *lines, CLOSE]))
    if response is not None:
        parts.append(f"<response> {response} </response>")
    return "\n".join(parts)
