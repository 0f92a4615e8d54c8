"""Seal-Tools: a query and its calls; the tools are in a file of their own."""

from __future__ import annotations

import json
import re
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Format, Reject
from toolsample_cli.importing.chats import read_call

_EARLIER = re.compile(r"API_call_\d+")


def _looks_like(row: dict[str, Any]) -> bool:
    calling = row.get("calling")
    return "query" in row and isinstance(calling, list) and all(isinstance(c, dict) and "api" in c for c in calling)


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """One task. Calls that use an earlier call's result cannot be made in one answer: such rows are rejects."""
    if context.catalogue is None:
        raise Reject("no_tools", "its tools are in another file: give --tools tool.jsonl")
    if not isinstance(row["query"], str) or not row["query"].strip():
        raise Reject("no_user", "the query is missing or blank")
    calls = [read_call({"name": item["api"], "arguments": item.get("parameters") or {}}) for item in row["calling"]]
    if _EARLIER.search(json.dumps([call.arguments for call in calls])):
        raise Reject("nested_calls", "an argument stands for the result of an earlier call (API_call_k)")
    identity = str(row.get("id", ""))
    offered = context.catalogue.offer([call.name for call in calls], context.distractors, identity or row["query"])
    split = "test" if identity.startswith("test_") else ""
    extra = {"id": identity} if identity else {}
    yield Draft([{"role": "user", "content": row["query"]}], offered, calls, split=split, extra=extra)


FORMAT = Format("seal-tools", "Seal-Tools: query and calling; tools come from --tools", _looks_like, _drafts)
