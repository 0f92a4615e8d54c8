"""Llama 3.x JSON calls: {"name", "parameters"} as the whole reply, `; ` between several, <|python_tag|> before them.

Special tokens of the template that a backend left in the text are dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from toolsample_cli.toolcalls.call import Call, TooDeep, TooLong, guard
from toolsample_cli.toolcalls.protocols.base import Parsed, Strict, bounded, no_call, split_thought, with_calls
from toolsample_cli.toolcalls.protocols.lenient import Meant, read_payload

TAG = "<|python_tag|>"
_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
_BETWEEN = re.compile(r"\s*;?\s*")
_FUNCTION = re.compile(r"<function=([^<>\s]{1,200})>")
_decode = json.JSONDecoder().raw_decode


def parse(text: str, gold_kind: str = "calls", **_: Any) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = split_thought(_stripped(text))
    tag = body.find(TAG)
    content, payload = (body[:tag].strip(), body[tag + len(TAG) :].strip()) if tag >= 0 else ("", body)
    if custom := _FUNCTION.search(payload):
        return with_calls(Strict(None, slip="custom_tag"), _custom(payload), content, gold_kind, thought)
    if tag < 0 and payload[:1] not in ("{", "[", "`"):
        return no_call(body, gold_kind, thought, closed, custom is None)
    strict = _objects(payload)
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
    try:
        guard(payload)
        while at < len(payload):
            value, end = _decode(payload, at)
            if not isinstance(value, dict):
                return Strict(None, slip="not_object")
            arguments = value.get("parameters", value.get("arguments"))
            if not isinstance(value.get("name"), str):
                return Strict(None, slip="no_name")
            if not isinstance(arguments, dict):
                return Strict(None, slip="no_arguments")
            calls.append(Call(value["name"], arguments))
            at = _BETWEEN.match(payload, end).end()
    except (TooDeep, RecursionError):
        return Strict(None, slip="too_deep")
    except TooLong:
        return Strict(None, slip="too_long")
    except ValueError:
        return Strict(None, slip="bad_json")
    return Strict(calls, bool(calls), "" if calls else "empty")


def _custom(payload: str) -> Meant:
    """`<function=name>{...}</function>`, the custom form of Llama 3.1."""
    meant = Meant()
    for found in _FUNCTION.finditer(payload):
        inner = Meant(budget=meant.budget)
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


def render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Llama's template writes it; text beside a call needs the python tag between them."""
    texts = [json.dumps({"name": c.name, "parameters": c.arguments}, ensure_ascii=False) for c in calls]
    parts = [f"<think>\n{thought}\n</think>\n"] if thought is not None else []
    if response is not None:
        parts.append(response + (f"\n{TAG}" if calls else ""))
    return "\n".join([*parts, *(["; ".join(texts)] if texts else [])])
