"""Mistral: [TOOL_CALLS] before a JSON list of {name, arguments}, or (since v11) [TOOL_CALLS]name[ARGS]{...} a call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolsample_cli.toolcalls.call import Call, TooDeep, TooLong, guard
from toolsample_cli.toolcalls.protocols.base import Parsed, Strict, bounded, no_call, split_thought, with_calls
from toolsample_cli.toolcalls.protocols.hermes import untagged
from toolsample_cli.toolcalls.protocols.lenient import Meant, read_payload

TAG, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_decode = json.JSONDecoder().raw_decode


def parse(text: str, gold_kind: str = "calls", **_: Any) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = split_thought(text.strip().removesuffix("</s>").rstrip())
    start = body.find(TAG)
    if start < 0:
        parsed = no_call(body, gold_kind, thought, closed)
        return untagged(parsed, body) if body[:1] in ("{", "[", "`") else parsed
    payload = body[start:]
    strict = _strict(payload)
    meant = _meant(payload) if strict.slip else None
    return with_calls(strict, meant, body[:start].strip(), gold_kind, thought)


def _strict(payload: str) -> Strict:
    try:
        guard(payload)
        if ARGS in payload:
            return _named(payload)
        value, end = _decode(payload, _skip(payload, len(TAG)))
    except (TooDeep, RecursionError):
        return Strict(None, slip="too_deep")
    except TooLong:
        return Strict(None, slip="too_long")
    except ValueError:
        return Strict(None, slip="bad_json")
    if not isinstance(value, list):
        return Strict(None, slip="not_list")
    calls = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return Strict(None, slip="no_name" if isinstance(item, dict) else "not_object")
        if not isinstance(item.get("arguments"), dict):
            return Strict(None, slip="no_arguments")
        calls.append(Call(item["name"], item["arguments"]))
    return Strict(calls, bool(calls) and not payload[end:].strip(), "" if calls else "empty")


def _named(payload: str) -> Strict:
    calls: list[Call] = []
    at, form = 0, True
    while payload.startswith(TAG, at):
        split = payload.find(ARGS, at)
        if split < 0:
            return Strict(None, slip="truncated")
        name = payload[at + len(TAG) : split].split(ID)[0].strip()
        arguments, end = _decode(payload, _skip(payload, split + len(ARGS)))
        if not isinstance(arguments, dict):
            return Strict(None, slip="no_arguments")
        if not name or len(name) > 500:
            return Strict(None, slip="no_name")
        calls.append(Call(name, arguments))
        at = _skip(payload, end)
        form = form and end == at
    return Strict(calls, form and at == len(payload))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _meant(payload: str) -> Meant:
    meant = Meant()
    for part in payload.split(TAG, 1000)[1:]:
        name, mark, arguments = part.partition(ARGS)
        if mark:
            name = json.dumps(name.split(ID)[0].strip())
            part = f'{{"name": {name}, "arguments": {arguments.strip() or "{}"}}}'
        read_payload(part, bool(mark), meant)
    return meant


def render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Mistral's template writes it (the JSON list)."""
    head = f"<think>\n{thought}\n</think>\n\n" if thought is not None else ""
    listed = json.dumps([call.record() for call in calls], ensure_ascii=False) if calls else ""
    return head + (response or "") + (f"{TAG} {listed}" if calls else "")
