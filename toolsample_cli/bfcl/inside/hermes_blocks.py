"""Hermes blocks as the official handler of Qwen's function-calling models reads them, quirks included.

Tag, newline, JSON, newline, tag; a block whose JSON is broken is passed over; what lacks a name or an object of
arguments fails the answer as a whole.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BLOCK = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
LONGEST = 1_000_000


def blocks(text: str) -> list[Any]:
    """The JSON values of all readable blocks."""
    values = []
    for match in _BLOCK.finditer(text):
        try:
            values.append(json.loads(match[1]))
        except (ValueError, RecursionError):
            continue
    return values


def hermes_calls(text: str, release: str) -> list[dict[str, Any]]:
    """The calls as [{"name", "arguments"}]; raises where the v4 handler fails, and is empty where v3's gives up."""
    values = blocks(text)
    if any(not isinstance(value, dict) for value in values):
        if release == "v3":
            return []
        raise ValueError("a block that is no object")
    return values
