"""Hermes and Qwen: one <tool_call> block per call, {"name", "arguments"} inside; tools come through the template.

A completion is in form when it is an optional <think> block and then nothing but well-formed blocks separated by
newlines, or plain text without any tag where the gold has no call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import Call, refuse_excess
from toolsample_cli.toolcalls.protocols.base import (
    Parsed,
    Protocol,
    Strict,
    bounded,
    no_call,
    one_call,
    strictly,
    thought_apart,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.lenient import Fault, read_blocks, read_payload

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_decode = json.JSONDecoder().raw_decode


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = thought_apart(text.strip())
    start = body.find(OPEN)
    if start < 0:
        parsed = no_call(body, gold_kind, thought, closed, CLOSE not in body)
        return untagged(parsed, body) if body[:1] in ("{", "[", "`") else parsed
    strict = strictly(_blocks, body, start)
    meant = None if not strict.slip else read_blocks(body, OPEN, CLOSE)
    return with_calls(strict, meant, body[:start].strip(), gold_kind, thought)


def untagged(parsed: Parsed, body: str) -> Parsed:
    """The same reply when it is nothing but calls whose tags were forgotten."""
    meant = read_payload(body, delimited=False)
    if meant.calls and meant.slip in ("", "repaired"):
        parsed.status, parsed.calls, parsed.slip, parsed.format_ok = "untagged", tuple(meant.calls), "no_call", False
    return parsed


def _blocks(body: str, at: int) -> Strict:
    """Every block from the first tag on; the JSON decides where a block ends, so tags inside strings do no harm."""
    calls: list[Call] = []
    in_form = True
    refuse_excess(body if at == 0 else body[at:])
    while at >= 0:
        value, end, neat = _payload(body, at + len(OPEN))
        calls.append(one_call(value, "arguments"))
        at = body.find(OPEN, end)
        between = body[end : at if at >= 0 else len(body)]
        in_form = in_form and neat and len(value) == 2 and between == ("\n" if at >= 0 else "")
    return Strict(calls, in_form)


def _payload(body: str, start: int) -> tuple[Row, int, bool]:
    """(object, position after the closing tag, written exactly as demanded) of the block whose tag ends at start."""
    begin = start
    while begin < len(body) and body[begin].isspace():
        begin += 1
    try:
        value, end = _decode(body, begin)
    except ValueError:
        raise Fault("bad_json" if CLOSE in body[start:] else "truncated") from None
    if not isinstance(value, dict):
        raise Fault("not_object")
    close = end
    while close < len(body) and body[close].isspace():
        close += 1
    if not body.startswith(CLOSE, close):
        raise Fault("bad_json" if CLOSE in body[close:] else "truncated")
    neat = body[start:begin] == "\n" and body[end:close] == "\n"
    return value, close + len(CLOSE), neat


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as the chat template would write it: thought, content, then one block per call."""
    parts = [f"<think>\n{thought}\n</think>\n"] if thought is not None else []
    if response is not None:
        parts.append(response)
    for call in calls:
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        parts.append(f"{OPEN}\n{body}\n{CLOSE}")
    return "\n".join(parts)


PROTOCOL = Protocol("hermes", "Hermes and Qwen: one <tool_call> block per call", True, _parse, _render)
