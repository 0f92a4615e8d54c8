"""Hermes and Qwen: one <tool_call> block a call, {"name", "arguments"} inside; tools come through the template.

A completion is in form when it is an optional <think> block and then nothing but well-formed blocks separated by
newlines, or plain text without any tag where the gold has no call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolsample_cli.protocols.base import Parsed
from toolsample_cli.toolcall import MAX_CHARS, Call, TooDeep, guard_depth

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_decode = json.JSONDecoder().raw_decode


def parse(text: str, gold_kind: str = "calls") -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if len(text) > MAX_CHARS:
        return Parsed("too_long")
    thought, body = split_thought(text.strip())
    start = body.find(OPEN)
    if start < 0:
        status = "truncated" if thought is not None and not body and "</think>" not in text else "no_call"
        in_form = bool(body) and CLOSE not in body and gold_kind in ("response", "none")
        return Parsed(status, (), in_form, body or None, thought, ())
    content = body[:start].strip()
    parsed = _blocks(body[start:])
    parsed.thought, parsed.response = thought, content or None
    if gold_kind == "calls":
        parsed.format_ok = parsed.format_ok and not content
    elif gold_kind == "both":
        parsed.format_ok = parsed.format_ok and bool(content)
    else:
        parsed.format_ok = False
    return parsed


def split_thought(text: str) -> tuple[str | None, str]:
    """(thought, rest) of a reply that may begin with a <think> block; an unclosed one takes everything."""
    if not text.startswith("<think>"):
        return None, text
    end = text.find("</think>")
    if end < 0:
        return text[7:].strip(), ""
    return text[7:end].strip(), text[end + 8 :].strip()


def _blocks(body: str) -> Parsed:
    """Every block from the first tag on; the JSON decides where a block ends, so tags inside strings do no harm."""
    calls: list[Call] = []
    at, in_form, status = 0, True, "ok"
    try:
        guard_depth(body)
        while at >= 0:
            value, end, neat = _payload(body, at + len(OPEN))
            in_form &= neat and value.keys() == {"name", "arguments"}
            name, arguments = value.get("name"), value.get("arguments")
            if not isinstance(name, str):
                return Parsed("no_name", tuple(calls))
            if not isinstance(arguments, dict):
                return Parsed("no_arguments", tuple(calls))
            calls.append(Call(name, arguments))
            at = body.find(OPEN, end)
            between = body[end : at if at >= 0 else len(body)]
            in_form &= between == "\n" if at >= 0 else not between
    except TooDeep:
        return Parsed("too_deep")
    except _Slip as slip:
        status = str(slip)
        return Parsed(status, tuple(calls))
    return Parsed(status, tuple(calls), in_form, strict_calls=tuple(calls))


class _Slip(ValueError):
    """A block that cannot be read; the message is its status."""


def _payload(body: str, start: int) -> tuple[dict, int, bool]:
    """(object, position after the closing tag, written exactly as demanded) of the block whose tag ends at start."""
    begin = start
    while begin < len(body) and body[begin].isspace():
        begin += 1
    try:
        value, end = _decode(body, begin)
    except RecursionError:
        raise TooDeep("nested too deeply") from None
    except ValueError:
        raise _Slip("bad_json" if CLOSE in body[start:] else "truncated") from None
    if not isinstance(value, dict):
        raise _Slip("not_object")
    close = end
    while close < len(body) and body[close].isspace():
        close += 1
    if not body.startswith(CLOSE, close):
        raise _Slip("bad_json" if CLOSE in body[close:] else "truncated")
    neat = body[start:begin] == "\n" and body[end:close] == "\n"
    return value, close + len(CLOSE), neat


def render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as the chat template would write it: thought, content, then one block a call."""
    parts = [f"<think>\n{thought}\n</think>\n"] if thought is not None else []
    if response is not None:
        parts.append(response)
    for call in calls:
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        parts.append(f"{OPEN}\n{body}\n{CLOSE}")
    return "\n".join(parts)
