"""Calls and tools that a data set wrote as text inside its messages, and what is left of the text without them."""

from __future__ import annotations

import re
from typing import Any

from toolsample_cli.importing.base import Reject
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_literal

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_RESPONSE = re.compile(r"\s*<tool_response>(.*?)</tool_response>\s*", re.DOTALL)
_HERMES = ("You are a function calling AI model", "You are a helpful assistant with access to the following functions")


def split_answer(text: str) -> tuple[str | None, str, list[Any]]:
    """(thought, text, calls as written) of an assistant turn that may hold <think> and <tool_call>. Raises Reject."""
    thought, text = split_thought(text)
    calls: list[Any] = []
    said = ""
    while True:
        before, found, rest = text.partition(OPEN)
        said += before
        if not found:
            return thought, said.strip(), calls
        payload, closed, text = rest.partition(CLOSE)
        if not closed:
            raise Reject("bad_call", "a <tool_call> is not closed")
        calls += _payload(payload)


def split_thought(text: str) -> tuple[str | None, str]:
    """(thought, rest) of a text that begins with <think> or <scratch_pad>."""
    bare = text.lstrip()
    for name in ("think", "scratch_pad"):
        if bare.startswith(f"<{name}>"):
            thought, closed, rest = bare.removeprefix(f"<{name}>").partition(f"</{name}>")
            if closed:
                return thought.strip(), rest.strip()
    return None, text


def _payload(text: str) -> list[Any]:
    """One object, a list of them, or one object per line."""
    try:
        value = read_literal(text.strip())
    except Unreadable as error:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        if len(lines) < 2:
            raise Reject("bad_call", f"a call cannot be read: {error}") from None
        try:
            value = [read_literal(line.strip()) for line in lines]
        except Unreadable:
            raise Reject("bad_call", f"a call cannot be read: {error}") from None
    return value if isinstance(value, list) else [value]


def bare_response(text: str) -> str:
    """A tool's answer without the tags that a chat template adds by itself."""
    match = _RESPONSE.fullmatch(text)
    return match[1].strip() if match and "<tool_response>" not in match[1] else text


def split_tools(system: str) -> tuple[Any, str]:
    """(tools as written in <tools>, the system text without them): what the template adds must not stand twice.

    A system text that is nothing but the well-known instruction for calling goes with them. Raises Reject.
    """
    blocks = _TOOLS.findall(system)
    for block in blocks:
        body = block.strip()
        if not body or body == "XML":
            continue
        try:
            value = read_literal(body)
        except Unreadable as error:
            try:
                value = [read_literal(line) for line in body.splitlines() if line.strip()]
            except Unreadable:
                raise Reject("bad_tools", f"the tools in the system turn cannot be read: {error}") from None
        rest = "" if system.lstrip().startswith(_HERMES) else _TOOLS.sub("", system).strip()
        return value, rest
    return None, "" if system.lstrip().startswith(_HERMES) and blocks else system
