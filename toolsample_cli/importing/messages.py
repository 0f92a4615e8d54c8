"""OpenAI's and TRL's form: `messages` (or `prompt` and `completion`) with `tools`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Format
from toolsample_cli.importing.chats import conversation

_USED = ("messages", "prompt", "completion", "tools", "functions", "category", "parallel_tool_calls")


def _looks_like(row: dict[str, Any]) -> bool:
    if isinstance(row.get("messages"), list):
        return True
    return isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list)


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """Assistant turns of one conversation; of prompt and completion, the completion."""
    tools = row.get("tools") if row.get("tools") is not None else row.get("functions")
    extra = {key: value for key, value in row.items() if key not in _USED and value is not None}
    messages = row.get("messages")
    if messages is None:
        messages, context = [*row["prompt"], *row["completion"]], replace(context, turns="last")
    category = row.get("category")
    for draft in conversation(messages, tools, context, extra):
        if isinstance(draft, Draft) and isinstance(category, str):
            draft.category = category
        yield draft


FORMAT = Format("messages", "OpenAI and TRL: messages, or prompt and completion, with tools", _looks_like, _drafts)
