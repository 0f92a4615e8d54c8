"""ToolRL's RLLA rows, as verl Parquet or raw: the tools are text in the system prompt, which is kept verbatim.

The answer is `<think>`, `<tool_call>` with one object per line under `parameters`, and/or `<response>`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Format, Reject
from toolsample_cli.importing.chats import read_gold_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_literal

_BEGIN, _END = "**Available Tools**", "**Steps for Each Turn**"
_ITEM = re.compile(r"^(\d{1,4})\. (?:Name: *)?", re.MULTILINE)
_HEAD = re.compile(r"(?P<name>[^\n]*?)\nDescription:(?P<description>.*?)\nParameters:", re.DOTALL)
_SHORT = re.compile(r"(?P<name>[^\n:]+):(?P<description>.*?)\nParameters:", re.DOTALL)
_DUPLICATES = ("instruction", "input", "output")


def tools_of(prompt: str) -> list[dict[str, Any]]:
    """The numbered tools of a system prompt; [] without a tool section. Raises Reject."""
    _, found, rest = prompt.partition(_BEGIN)
    if not found:
        return []
    section = rest.partition(_END)[0]
    tools, at = [], 0
    while match := _ITEM.search(section, at):
        tool, at = _tool(section, match.end())
        tools.append(tool)
    return tools


def _tool(section: str, start: int) -> tuple[dict[str, Any], int]:
    """The tool whose name begins at `start`, and where its parameters end: a description may hold numbered lines."""
    match = _HEAD.match(section, start) or _SHORT.match(section, start)
    if not match:
        raise Reject("bad_tools", f"a tool in the prompt has no name and parameters: {section[start : start + 80]!r}")
    name = match["name"].rstrip("\r")
    parameters, end = _parameters(section, match.end(), name)
    return {"name": name, "description": match["description"].strip(), "parameters": parameters}, end


def _parameters(section: str, start: int, name: str) -> tuple[Any, int]:
    while start < len(section) and section[start].isspace():
        start += 1
    try:
        return json.JSONDecoder(strict=False).raw_decode(section, start)
    except (ValueError, RecursionError):
        line = section[start:].partition("\n")[0]
    try:
        return read_literal(line), start + len(line)
    except Unreadable as error:
        raise Reject("bad_tools", f"parameters of {name!r} in the prompt: {error}") from None


def _looks_like(row: dict[str, Any]) -> bool:
    truth = row.get("reward_model")
    if isinstance(row.get("prompt"), list) and isinstance(truth, dict) and "ground_truth" in truth:
        return True
    return _BEGIN in str(row.get("instruction", "")) and "output" in row


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """One draft: system and user turn as they stand, the answer as it stands."""
    if isinstance(row.get("prompt"), list):
        messages = [{"role": str(m.get("role")), "content": m.get("content") or ""} for m in row["prompt"]]
        gold = (row.get("reward_model") or {}).get("ground_truth")
        info = row.get("extra_info") or {}
        extra = {key: value for key, value in info.items() if key not in _DUPLICATES and value is not None}
        if row.get("data_source"):
            extra["data_source"] = row["data_source"]
    else:
        messages = [
            {"role": "system", "content": row["instruction"]},
            {"role": "user", "content": row.get("input", "")},
        ]
        gold = row.get("output")
        extra = {key: value for key, value in row.items() if key not in _DUPLICATES}
    if not isinstance(gold, str) or not gold.strip():
        raise Reject("no_gold", "the answer is missing or empty")
    system = next((m["content"] for m in messages if m["role"] == "system"), "")
    draft = gold_of(gold.strip())
    draft.messages, draft.tools, draft.extra = messages, tools_of(system), extra
    if isinstance(extra.get("split"), str):
        draft.split = extra["split"]
    yield draft


def gold_of(text: str) -> Draft:
    """The parts of an answer. The thought is cut off first: it may mention the tags. Raises Reject."""
    head, closed, rest = text.partition("</think>")
    thought = head.removeprefix("<think>").strip() if closed else None
    body = rest if closed else text
    parsed = PROTOCOLS["rlla"].parse(f"<think> </think>{body}")
    if parsed.status not in ("ok", "no_call"):
        raise Reject("bad_gold", f"the calls of the answer cannot be read: {parsed.status}")
    return Draft([], calls=list(parsed.calls), response=parsed.response, thought=thought, gold_text=text)


FORMAT = Format(
    "rlla", "ToolRL's RLLA, as verl Parquet or raw JSON; tools are text in the prompt", _looks_like, _drafts,
    protocol="rlla", verbatim=True,
)  # fmt: skip


def _looks_like_api_bank(row: dict[str, Any]) -> bool:
    return _BEGIN in str(row.get("system", "")) and isinstance(row.get("answer"), list | dict)


def api_bank_drafts(row: dict[str, Any], context: Context) -> Drafts:
    """API-Bank in RLLA's prompts: `system`, `user` and `answer`, a list of calls without a thought."""
    messages = [{"role": "system", "content": row["system"]}, {"role": "user", "content": row.get("user", "")}]
    extra = {key: value for key, value in row.items() if key not in ("system", "user", "answer")}
    yield Draft(messages, tools_of(row["system"]), read_gold_calls(row["answer"]), extra=extra)


API_BANK = Format(
    "api-bank", "API-Bank in RLLA's prompts (benchmark)", _looks_like_api_bank, api_bank_drafts,
    protocol="rlla", verbatim=True, test=True,
)  # fmt: skip
