"""Task shards of this suite as raw data: to merge corpora, or to import one again with other settings."""

from __future__ import annotations

import json
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Format, Reject

_KEYS = frozenset({"task_id", "messages_json", "tools_json", "gold_json", "gold_kind", "protocol"})


def _looks_like(row: dict[str, Any]) -> bool:
    return row.keys() >= _KEYS


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """The task as it is; its gold answer is checked anew."""
    if row.get("parent_task_id"):
        raise Reject("few_shot_form", "a few-shot form of a task, which a curriculum made; import the task itself")
    for key in ("messages_json", "tools_json", "gold_json"):
        if not isinstance(json.loads(row[key]), list):
            raise Reject("misfit", f"{key} is not a list")
    yield Draft(json.loads(row["messages_json"]), row=row, split=row.get("split") or "")


FORMAT = Format(
    "tasks", "task shards of this suite, as import writes them", _looks_like, _drafts, protocol="", verbatim=True
)
