"""Tools in a file of their own (`--tools FILE`), and which of them are offered with a request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolsample_cli.errors import DataError
from toolsample_cli.hashing import hash_text
from toolsample_cli.importing.base import Reject
from toolsample_cli.importing.raw_rows import raw_rows
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_tool

_FIELDS = ("field", "category", "category_name", "domain")


@dataclass(frozen=True)
class Catalogue:
    """Tools as their file has them, by name; `fields` groups names by what the tools are about."""

    tools: dict[str, Any]
    fields: dict[str, list[str]]
    field_of: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Catalogue:
        """DataError for a tool that cannot be read, with file and row."""
        tools: dict[str, Any] = {}
        fields: dict[str, list[str]] = {}
        field_of: dict[str, str] = {}
        for raw in raw_rows(path):
            if raw.fault is not None:
                raise DataError(f"{path} row {raw.number}: {raw.fault}")
            try:
                name = read_tool(raw.value)["name"]
            except Unreadable as error:
                raise DataError(f"{path} row {raw.number}: {error}", hint="--tools takes one tool per row") from None
            field = next((raw.value[key] for key in _FIELDS if isinstance(raw.value.get(key), str)), "")
            tools[name] = raw.value
            field_of[name] = field.partition("/")[0].strip()
            fields.setdefault(field_of[name], []).append(name)
        return cls(tools, fields, field_of)

    def offer(self, names: Sequence[str], distractors: int, key: str) -> list[Any]:
        """The tools called `names` and so many others of the same field, in an order that `key` alone decides.

        Where a field has too few, tools of any field fill up. Raises Reject for a name that is not in the file.
        """
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if name not in self.tools:
                raise Reject("unknown_tool", f"{name} is not among the tools of --tools")
        draw = random.Random(hash_text(key))
        near = [n for f in dict.fromkeys(self.field_of[name] for name in wanted) for n in self.fields[f]]
        near = [name for name in near if name not in wanted]
        chosen = draw.sample(near, min(distractors, len(near)))
        if len(chosen) < distractors:
            far = [name for name in self.tools if name not in wanted and name not in chosen]
            chosen += draw.sample(far, min(distractors - len(chosen), len(far)))
        offered = [*wanted, *chosen]
        draw.shuffle(offered)
        return [self.tools[name] for name in offered]
