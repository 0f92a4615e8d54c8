"""The label of a task: one JSON text with all that its reward needs, for the field of a trainer that survives.

Row ids and extra columns are lost in most trainers' logs; the ground truth is passed on verbatim by all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from toolsample_cli.json_types import Row

TEXTS = ("task_id", "protocol", "gold_kind")
LISTS = ("gold", "tools")


@dataclass(frozen=True)
class Label:
    """A task's id, protocol and gold answer; `tools` in normalised JSON Schema, as `tasks` holds them."""

    task_id: str
    protocol: str
    gold_kind: str
    gold: Sequence[Row]
    tools: Sequence[Row]

    @classmethod
    def of(cls, task: Row) -> Label:
        """From a row of tasks."""
        gold, tools = json.loads(task["gold_json"]), json.loads(task["tools_json"])
        return cls(task["task_id"], task["protocol"], task["gold_kind"], gold, tools)

    @classmethod
    def read(cls, text: object) -> Label | None:
        """The label whose `text` this is, or None for anything else. Never raises."""
        if not isinstance(text, str) or '"task_id"' not in text:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or not value.keys() >= {*TEXTS, *LISTS}:
            return None
        texts = all(isinstance(value[key], str) for key in TEXTS)
        lists = all(isinstance(value[key], list) and all(map(_named, value[key])) for key in LISTS)
        return cls(**{key: value[key] for key in (*TEXTS, *LISTS)}) if texts and lists else None

    @property
    def text(self) -> str:
        """The label as it travels."""
        value = {key: getattr(self, key) for key in (*TEXTS, *LISTS)}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _named(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)
