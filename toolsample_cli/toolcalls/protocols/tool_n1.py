"""Tool-N1 (arXiv 2505.00024): a thought, then one <tool_call> block that holds a JSON list with `arguments`.

Strict reading is Tool-N1's: the LAST block is parsed, and it must be a list of {name, arguments}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from toolsample_cli.toolcalls.call import Call, TooDeep, TooLong, loads
from toolsample_cli.toolcalls.protocols.base import Parsed, Strict, behind_thoughts, bounded, no_call, with_calls
from toolsample_cli.toolcalls.protocols.hermes import CLOSE, OPEN, untagged
from toolsample_cli.toolcalls.protocols.lenient import read_blocks

_TAGS = re.compile(r"<(?=/?(?:tool_call|think)>)")


def parse(text: str, gold_kind: str = "calls", **_: Any) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = behind_thoughts(text.strip())
    start = body.find(OPEN)
    if start < 0:
        parsed = no_call(body, gold_kind, thought, closed, CLOSE not in body and thought is not None)
        return untagged(parsed, body) if body[:1] in ("{", "[", "`") else parsed
    last = body.rfind(OPEN)
    strict = _list(body, last + len(OPEN))
    strict.form = strict.form and thought is not None and last == start
    meant = read_blocks(body, OPEN, CLOSE) if strict.slip else None
    return with_calls(strict, meant, body[:start].strip(), gold_kind, thought)


def _list(body: str, start: int) -> Strict:
    end = body.find(CLOSE, start)
    if end < 0:
        return Strict(None, slip="truncated")
    try:
        value = loads(body[start:end])
    except TooDeep:
        return Strict(None, slip="too_deep")
    except TooLong:
        return Strict(None, slip="too_long")
    except ValueError:
        return Strict(None, slip="bad_json" if body[start:end].strip() else "empty")
    if not isinstance(value, list):
        return Strict(None, slip="not_list")
    calls = []
    for item in value:
        if not isinstance(item, dict):
            return Strict(None, slip="not_object")
        name, arguments = item.get("name"), item.get("arguments")
        if not isinstance(name, str):
            return Strict(None, slip="no_name")
        if not isinstance(arguments, dict):
            return Strict(None, slip="no_arguments")
        calls.append(Call(name, arguments))
    return Strict(calls, end + len(CLOSE) == len(body) and bool(calls), "" if calls else "empty")


def render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Tool-N1's prompt demands it; a thought is always present."""
    parts = [f"<think>{thought or ''}</think>"]
    if response is not None:
        parts.append(response)
    if calls:
        listed = json.dumps([call.record() for call in calls], ensure_ascii=False)
        parts.append("\n".join([OPEN, _TAGS.sub(r"\\u003c", listed), CLOSE]))  # a tag in a string would end the block
    return "\n".join(parts)
