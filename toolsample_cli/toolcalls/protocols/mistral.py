"""Mistral: [TOOL_CALLS] before a JSON list of {name, arguments}, or (since v11) name and arguments of each call.

The newer form is [TOOL_CALLS]name[ARGS]{...}, with [CALL_ID] before [ARGS] at times; where a backend drops special
tokens only the name is left before the arguments, and both are read alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from toolsample_cli.toolcalls.call import Call, refuse_excess
from toolsample_cli.toolcalls.protocols.base import (
    Parsed,
    Protocol,
    Strict,
    bounded,
    call_list,
    no_call,
    strictly,
    thought_apart,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.hermes import untagged
from toolsample_cli.toolcalls.protocols.lenient import MAX_BLOCKS, Fault, Reading, read_payload, skip, value_end

TAG = "[TOOL_CALLS]"
_HEAD = re.compile(
    r"""\s*(?:([^{"\n]{0,500}?)\s*(?:\[CALL_ID\][^\[{]{0,200})?\[ARGS\]\s*|([^\[{"\n]{0,500}?)\s*(?=\{))"""
)
"""Name, id and mark before the arguments of a call; without the mark the name stands right before them."""
_SPACES = re.compile(r"\s*")
_decode = json.JSONDecoder().raw_decode


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = thought_apart(text.strip().removesuffix("</s>").rstrip())
    start = body.find(TAG)
    if start < 0:
        parsed = no_call(body, gold_kind, thought, closed)
        return untagged(parsed, body) if body[:1] in ("{", "[", "`") else parsed
    payload = body[start:]
    strict = strictly(_strict, payload)
    meant = _lenient(payload) if strict.slip else None
    return with_calls(strict, meant, body[:start].strip(), gold_kind, thought)


def _strict(payload: str) -> Strict:
    refuse_excess(payload)
    begin = skip(_SPACES, payload, len(TAG))
    if payload.startswith("[", begin) and not payload.startswith(("[ARGS]", "[CALL_ID]"), begin):
        value, end = _decode(payload, begin)
        return call_list(value, not payload[end:].strip())
    calls: list[Call] = []
    at, form = 0, True
    while payload.startswith(TAG, at):
        head = _HEAD.match(payload, at + len(TAG))
        if not head:
            raise Fault("not_list" if not calls else "truncated")
        arguments, end = _decode(payload, head.end())
        if not isinstance(arguments, dict):
            raise Fault("no_arguments")
        if not (head[1] or head[2]):
            raise Fault("not_list" if head[1] is None else "no_name")
        calls.append(Call(head[1] or head[2], arguments))
        at = skip(_SPACES, payload, end)
        form = form and end == at
    return Strict(calls, form and at == len(payload))


def _lenient(payload: str) -> Reading:
    """Part by part; where a part is JSON, the JSON decides where it ends."""
    meant, at = Reading(), 0
    for _ in range(MAX_BLOCKS):
        if at < 0:
            return meant
        head = _HEAD.match(payload, at + len(TAG))
        begin = head.end() if head else at + len(TAG)
        following = payload.find(TAG, value_end(payload, begin))
        part = payload[begin : following if following >= 0 else len(payload)]
        name = (head[1] or head[2]) if head else ""
        if name:
            part = f'{{"name": {json.dumps(name)}, "arguments": {part.strip() or "{}"}}}'
        read_payload(part, bool(name), meant)
        at = following
    meant.note("too_long")
    return meant


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Mistral's template writes it (the JSON list)."""
    head = f"<think>\n{thought}\n</think>\n\n" if thought is not None else ""
    listed = json.dumps([call.record() for call in calls], ensure_ascii=False) if calls else ""
    return head + (response or "") + (f"{TAG} {listed}" if calls else "")


PROTOCOL = Protocol("mistral", "Mistral: [TOOL_CALLS] and a JSON list", True, _parse, _render)
