"""Llama 3.x JSON calls: {"name", "parameters"} as the whole reply, `; ` between several, <|python_tag|> before them.

Special tokens of the template that a backend left in the text are dropped.
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
    no_call,
    one_call,
    some,
    strictly,
    thought_apart,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.lenient import Reading, read_payload, skip

TAG = "<|python_tag|>"
_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
_BETWEEN = re.compile(r"\s*;?\s*")
_FUNCTION = re.compile(r"<function=([^<>\s]{1,200})>")
_decode = json.JSONDecoder().raw_decode


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = thought_apart(_stripped(text))
    tag = body.find(TAG)
    content, payload = (body[:tag].strip(), body[tag + len(TAG) :].strip()) if tag >= 0 else ("", body)
    is_json = payload[:1] in ("{", "[")  # then a tag can only stand inside a string
    if not is_json and _FUNCTION.search(payload):
        return with_calls(Strict(None, slip="custom_tag"), _custom(payload), content, gold_kind, thought)
    if tag < 0 and not is_json and payload[:1] != "`":
        return no_call(body, gold_kind, thought, closed)
    strict = strictly(_objects, payload)
    meant = read_payload(payload, delimited=False) if strict.slip else None
    if tag < 0 and strict.calls is None and not (meant and meant.calls):
        parsed = no_call(body, gold_kind, thought, closed)
        parsed.status, parsed.slip, parsed.format_ok, parsed.strict_calls = strict.slip, strict.slip, False, None
        return parsed
    return with_calls(strict, meant, content, gold_kind, thought)


def _stripped(text: str) -> str:
    text = text.strip()
    for _ in range(4):
        if not text.endswith(_ENDS):
            break
        text = text[: text.rfind("<|")].rstrip()
    return text


def _objects(payload: str) -> Strict:
    calls: list[Call] = []
    at = 0
    refuse_excess(payload)
    while at < len(payload):
        value, end = _decode(payload, at)
        calls.append(one_call(value, "parameters", "arguments"))
        at = skip(_BETWEEN, payload, end)
    return some(calls)


def _custom(payload: str) -> Reading:
    """`<function=name>{...}</function>`, the custom form of Llama 3.1."""
    meant = Reading()
    for found in _FUNCTION.finditer(payload):
        inner = Reading(budget=meant.budget)
        end = payload.find("</function>", found.end())
        text = payload[found.end() : end if end >= 0 else len(payload)]
        read_payload(f'{{"name": {json.dumps(found[1])}, "arguments": {text.strip() or "{}"}}}', True, inner)
        meant.calls += inner.calls
        meant.budget = inner.budget
        meant.note(inner.slip)
        if end < 0 or len(meant.calls) > 1000:
            meant.note("truncated")
            break
    return meant


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Llama's template writes it; text beside a call needs the python tag between them."""
    texts = [json.dumps({"name": c.name, "parameters": c.arguments}, ensure_ascii=False) for c in calls]
    parts = [f"<think>\n{thought}\n</think>\n"] if thought is not None else []
    if response is not None:
        parts.append(response + (f"\n{TAG}" if calls else ""))
    return "\n".join([*parts, *(["; ".join(texts)] if texts else [])])


PROTOCOL = Protocol("llama3", "Llama 3: bare JSON with `parameters`", True, _parse, _render)
