"""Bare JSON: the whole reply is one {name, arguments} or a list of them, alone or in one fenced block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolsample_cli.toolcalls.call import Call, TooDeep, TooLong, loads
from toolsample_cli.toolcalls.protocols.base import Parsed, Strict, bounded, no_call, split_thought, with_calls
from toolsample_cli.toolcalls.protocols.lenient import read_payload


def parse(text: str, gold_kind: str = "calls", **_: Any) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = split_thought(text.strip())
    content, payload, fenced = _located(body)
    if payload is None:
        return no_call(body, gold_kind, thought, closed)
    strict = _strict(payload)
    meant = read_payload(payload, delimited=fenced) if strict.slip else None
    if content and strict.calls is None and not (meant and meant.calls):
        return no_call(body, gold_kind, thought, closed)
    return with_calls(strict, meant, content, gold_kind, thought)


def _located(body: str) -> tuple[str, str | None, bool]:
    """(text before, payload, fenced): the whole body, or its one fenced block."""
    if body.lstrip("\ufeff")[:1] in ("{", "["):
        return "", body, False
    start = body.find("```")
    if start < 0:
        return body, None, False
    first = body.find("\n", start)
    end = body.find("```", start + 3)
    if first < 0 or (0 <= end < first):
        return body, None, False
    payload = body[first + 1 : end if end >= 0 else len(body)].strip()
    if payload[:1] not in ("{", "["):
        return body, None, False
    return body[:start].strip(), payload, end >= 0


def _strict(payload: str) -> Strict:
    try:
        value = loads(payload)
    except TooDeep:
        return Strict(None, slip="too_deep")
    except TooLong:
        return Strict(None, slip="too_long")
    except ValueError:
        return Strict(None, slip="bad_json")
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            return Strict(None, slip="not_object")
        if not isinstance(item.get("name"), str):
            return Strict(None, slip="no_name")
        if not isinstance(item.get("arguments"), dict):
            return Strict(None, slip="no_arguments")
        calls.append(Call(item["name"], item["arguments"]))
    return Strict(calls, bool(calls), "" if calls else "empty")


def render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as one object, or a list of several; text beside calls makes it a fenced block."""
    head = f"<think>\n{thought}\n</think>\n\n" if thought is not None else ""
    if not calls:
        return head + (response or "")
    records = [call.record() for call in calls]
    body = json.dumps(records[0] if len(records) == 1 else records, ensure_ascii=False)
    return head + (f"{response}\n```json\n{body}\n```" if response is not None else body)
