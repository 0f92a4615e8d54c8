"""ShareGPT: `conversations` of {from, value}, as Hermes, APIGen-MT and LLaMA-Factory store them; and raw Glaive."""

from __future__ import annotations

import re
from typing import Any

from toolsample_cli.importing.base import Context, Drafts, Format, Reject
from toolsample_cli.importing.chats import conversation
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_literal

_USED = ("conversations", "system", "tools")
_TURN = re.compile(r"^(USER|ASSISTANT|FUNCTION RESPONSE): ?", re.MULTILINE)
_ROLE = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}


def _looks_like(row: dict[str, Any]) -> bool:
    turns = row.get("conversations")
    return (
        isinstance(turns, list)
        and bool(turns)
        and isinstance(turns[0], dict)
        and ("from" in turns[0] or "role" in turns[0])
    )


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """The assistant's turns of one conversation."""
    turns = list(row["conversations"])
    if isinstance(row.get("system"), str) and row["system"].strip():
        turns.insert(0, {"from": "system", "value": row["system"]})
    extra = {key: value for key, value in row.items() if key not in _USED and value is not None}
    yield from conversation(turns, row.get("tools"), context, extra)


FORMAT = Format("sharegpt", "ShareGPT, Hermes, LLaMA-Factory: conversations of from and value", _looks_like, _drafts)


def _looks_like_glaive(row: dict[str, Any]) -> bool:
    return isinstance(row.get("chat"), str) and "USER:" in row["chat"]


def glaive_drafts(row: dict[str, Any], context: Context) -> Drafts:
    """Glaive's raw form: the dialogue is one text, tools stand one after another in the system text."""
    text = row["chat"]
    marks = list(_TURN.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    turns = []
    for mark, end in zip(marks, ends, strict=True):
        value = text[mark.end() : end].replace("<|endoftext|>", "").strip()
        if mark[1] == "ASSISTANT" and "<functioncall>" in value:
            said, *calls = value.split("<functioncall>")
            turns.append({"role": "assistant", "content": said.strip(), "tool_calls": [*map(_glaive_call, calls)]})
        else:
            turns.append({"role": _ROLE[mark[1]], "content": value})
    yield from conversation(turns, _glaive_tools(str(row.get("system") or "")), context, {})


def _glaive_call(text: str) -> Any:
    """The arguments are JSON in single quotes inside JSON."""
    bare = re.sub(r"(\"arguments\":\s*)'(.*)'(\s*\})\s*$", r"\1\2\3", text.strip(), flags=re.DOTALL)
    try:
        return read_literal(bare)
    except Unreadable as error:
        raise Reject("bad_call", f"a call cannot be read: {error}") from None


def _glaive_tools(system: str) -> list[Any]:
    import json

    decode, tools, at = json.JSONDecoder(strict=False).raw_decode, [], system.find("{")
    while at >= 0:
        try:
            tool, end = decode(system, at)
        except (ValueError, RecursionError):
            raise Reject("bad_tools", "a tool in the system text is not JSON") from None
        tools.append(tool)
        at = system.find("{", end)
    return tools


GLAIVE = Format("glaive", "Glaive's raw form: system and chat as text", _looks_like_glaive, glaive_drafts)
