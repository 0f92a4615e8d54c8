"""Calls and tools that a data set wrote as text inside its messages, and what is left of the text without them."""

from __future__ import annotations

import json
import re
from typing import Any

from toolsample_cli.importing.base import Reject
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_literal

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_RESPONSE = re.compile(r"\s*<tool_response>(.*?)</tool_response>\s*", re.DOTALL)
_INSTRUCTION = (
    re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL),
    re.compile(r"<schema>.*?</schema>", re.DOTALL),
    re.compile(r"\{[^\n]*FunctionCall[^\n]*\}"),
    re.compile(r"\{\s*['\"]?(?:arguments|name)['\"]?\s*:\s*<[^>]*>[^}]*\}"),
)
"""Blocks of the instruction: the example, the schema of a call."""
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?]*")
_KNOWN = re.compile(
    r"function calling AI model|function signatures within|call one or more functions"
    r"|make assumptions about what values"
    r"|[Hh]ere are the available tools|pydantic model|[Ff]or each function call|within\s*(?:<tool_call>|XML tags)"
    r"|helpful assistant with access to the following functions|[Uu]se them if required|<tools>|</?tool_call>"
    r"|XML tags as follows|json object with function name|following json schema for each|^\s*(?:XML|tags)\b"
    r"|^\s*(?:[Aa]vailable )?[Tt]ools\s*:?\s*$",
)
"""Sentences of the instruction that Hermes' data sets share, in the wordings that are about."""
_decode = json.JSONDecoder(strict=False).raw_decode
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
        neat = _neat(rest)
        if neat is not None:
            calls += neat[0]
            text = rest[neat[1] :]
            continue
        payload, closed, text = rest.partition(CLOSE)
        if not closed:
            raise Reject("bad_call", "a <tool_call> is not closed")
        calls += _payload(payload)


def _neat(text: str) -> tuple[list[Any], int] | None:
    """(calls, where the closing tag ends) when JSON values alone fill the block: they decide where it ends, so that a
    closing tag inside a string does no harm.
    """
    values: list[Any] = []
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if values and text.startswith(CLOSE, at):
            flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
            return flat, at + len(CLOSE)
        try:
            value, at = _decode(text, at)
        except (ValueError, RecursionError):
            return None
        values.append(value)


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
        return value, own_words(system)
    return None, own_words(system) if blocks else system


def own_words(system: str) -> str:
    """A system text without its tools and without the well-known instruction for calling, which the template adds.

    Sentences that a data set added itself stay: they may hold what the answer needs.
    """
    text = _TOOLS.sub(" ", system)
    if not system.lstrip().startswith(_HERMES):
        return text.strip()
    for block in _INSTRUCTION:
        text = block.sub(" ", text)
    kept = [sentence for sentence in _SENTENCE.findall(text) if not _KNOWN.search(sentence)]
    left = " ".join(" ".join(kept).split())
    return left if re.search(r"\w", left) else ""
