"""Bare JSON: the whole reply is one {name, arguments} or a list of them, alone or in one fenced block."""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolsample_cli.toolcalls.call import Call, loads
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
from toolsample_cli.toolcalls.protocols.lenient import read_payload


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = thought_apart(text.strip())
    content, payload, fenced = _located(body)
    if payload is None:
        return no_call(body, gold_kind, thought, closed)
    strict = strictly(_strict, payload)
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
    value = loads(payload)
    return call_list(value if isinstance(value, list) else [value])


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as one object, or a list of several; text beside calls makes it a fenced block."""
    head = f"<think>\n{thought}\n</think>\n\n" if thought is not None else ""
    if not calls:
        return head + (response or "")
    records = [call.record() for call in calls]
    body = json.dumps(records[0] if len(records) == 1 else records, ensure_ascii=False)
    return head + (f"{response}\n```json\n{body}\n```" if response is not None else body)


PROTOCOL = Protocol("json", "bare or fenced JSON", False, _parse, _render)
