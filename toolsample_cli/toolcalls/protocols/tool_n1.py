"""Tool-N1 (arXiv 2505.00024): a thought, then one <tool_call> block that holds a JSON list with `arguments`.

Strict reading is Tool-N1's: the LAST block is parsed, and it must be a list of {name, arguments}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from toolsample_cli.toolcalls.call import Call, loads
from toolsample_cli.toolcalls.protocols.base import (
    Parsed,
    Protocol,
    Strict,
    behind_thoughts,
    bounded,
    call_list,
    no_call,
    strictly,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.hermes import CLOSE, OPEN, untagged
from toolsample_cli.toolcalls.protocols.lenient import Fault, read_blocks

_TAGS = re.compile(r"<(?=/?(?:tool_call|think)>)")


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    thought, body, closed = behind_thoughts(text.strip())
    start = body.find(OPEN)
    if start < 0:
        parsed = no_call(body, gold_kind, thought, closed, CLOSE not in body and thought is not None)
        return untagged(parsed, body) if body[:1] in ("{", "[", "`") else parsed
    last = body.rfind(OPEN)
    strict = strictly(_list, body, last + len(OPEN))
    strict.form = strict.form and thought is not None and last == start
    meant = read_blocks(body, OPEN, CLOSE) if strict.slip else None
    return with_calls(strict, meant, body[:start].strip(), gold_kind, thought)


def _list(body: str, start: int) -> Strict:
    end = body.find(CLOSE, start)
    if end < 0:
        raise Fault("truncated")
    if not body[start:end].strip():
        raise Fault("empty")
    return call_list(loads(body[start:end]), end + len(CLOSE) == len(body))


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as Tool-N1's prompt demands it; a thought is always present."""
    parts = [f"<think>{thought or ''}</think>"]
    if response is not None:
        parts.append(response)
    if calls:
        listed = json.dumps([call.record() for call in calls], ensure_ascii=False)
        parts.append("\n".join([OPEN, _TAGS.sub(r"\\u003c", listed), CLOSE]))  # a tag in a string would end the block
    return "\n".join(parts)


PROTOCOL = Protocol("tool_n1", "Tool-N1: a JSON list in one <tool_call> block", False, _parse, _render)
