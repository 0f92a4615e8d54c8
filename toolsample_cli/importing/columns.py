"""Rows of any shape by a map of their columns: `--column query=q,tools=meta.tools,answers=calls`, or `--map FILE`.

A path has dots between keys and numbers of list items. What no path names goes along in `extra_json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, DataError

TARGETS = ("query", "tools", "answers", "messages", "system", "response", "split", "license")
"""What a map may name: a request with its calls (or a response in words), or whole messages."""


@dataclass(frozen=True)
class ColumnMap:
    """`paths`: target -> path; `roles`: what turns call their roles -> ours; `keys`: their (role, content) keys."""

    paths: Mapping[str, str]
    roles: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, str] = ("role", "content")

    @property
    def format(self) -> str:
        """The format that a mapped row is in."""
        return "messages" if {"messages", "response"} & self.paths.keys() else "xlam"

    def apply(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row under the names of its format. KeyError names a path that leads nowhere and must not."""
        found = {target: _at(row, path) for target, path in self.paths.items()}
        used = {path.partition(".")[0] for path in self.paths.values()}
        rest = {key: value for key, value in row.items() if key not in used and key not in TARGETS}
        if "messages" in found:
            return {**rest, **found, "messages": self._messages(found)}
        if found.get("system"):
            raise ValueError("a map with `system` needs `messages`")
        if "response" in found:
            answer = {"tool_calls": found["answers"]} if found.get("answers") else {"content": found["response"]}
            turns = [{"role": "user", "content": found["query"]}, {"role": "assistant", **answer}]
            return {**rest, "messages": turns, "tools": found.get("tools")}
        return {**rest, **found}

    def _messages(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        turns = found["messages"]
        turns = json.loads(turns) if isinstance(turns, str) else turns
        role, content = self.keys
        renamed = [
            {
                **{key: value for key, value in turn.items() if key not in (role, content)},
                "role": self.roles.get(turn[role], turn[role]),
                "content": turn.get(content),
            }
            for turn in turns
        ]
        system = found.pop("system", None)
        return [*([{"role": "system", "content": system}] if system else []), *renamed]


def _at(row: Any, path: str) -> Any:
    """The value at a dotted path; None where a step is missing."""
    value = row
    for step in path.split("."):
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            value = json.loads(value)
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.lstrip("-").isdigit() and -len(value) <= int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def read_map(column: str, file: str) -> ColumnMap | None:
    """The map of the settings `column` and `map`; None when neither is given. ConfigError for a wrong one."""
    if not column and not file:
        return None
    paths: dict[str, str] = {}
    if file:
        try:
            value = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: not a readable JSON file: {error}") from None
        if not isinstance(value, dict) or not all(isinstance(path, str) for path in value.values()):
            raise ConfigError(f"{file}: expected an object of target and path", hint=f"targets: {', '.join(TARGETS)}")
        paths |= value
    for part in filter(None, (part.strip() for part in column.split(","))):
        target, sign, path = part.partition("=")
        if not sign:
            raise ConfigError(
                f"column = {part!r}: expected target=path", hint="as in query=question,answers=gold.calls"
            )
        paths[target.strip()] = path.strip()
    for target in paths:
        if target not in TARGETS:
            raise ConfigError(
                f"column: no target {target!r}", hint=nearest(target, TARGETS) or f"one of {', '.join(TARGETS)}"
            )
    if (
        "messages" not in paths
        and not {"query", "answers"} <= paths.keys()
        and not {"query", "response"} <= paths.keys()
    ):
        raise ConfigError("column: a map names messages, or query with answers or response")
    return ColumnMap(paths)


def llamafactory_files(path: Path) -> list[tuple[Path, ColumnMap]] | None:
    """(file, map) of each tool-calling set in LLaMA-Factory's dataset_info.json that is there; None for other files."""
    if path.name != "dataset_info.json":
        return None
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(info, dict) or not all(isinstance(entry, dict) for entry in info.values()):
        return None
    if not any({"file_name", "hf_hub_url", "script_url"} & entry.keys() for entry in info.values()):
        return None
    found = []
    for entry in info.values():
        file = path.parent / str(entry.get("file_name", ""))
        columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
        if entry.get("formatting") not in ("sharegpt", "openai") or "tools" not in columns or not file.is_file():
            continue
        paths = {key: columns[key] for key in ("messages", "tools", "system") if isinstance(columns.get(key), str)}
        paths.setdefault("messages", "conversations")
        names = {
            "user": "user",
            "assistant": "assistant",
            "observation": "tool",
            "function": "function_call",
            "system": "system",
        }
        roles = {tags[f"{theirs}_tag"]: ours for theirs, ours in names.items() if f"{theirs}_tag" in tags}
        own = ("role", "content") if entry["formatting"] == "openai" else ("from", "value")
        found.append((file, ColumnMap(paths, roles, (tags.get("role_tag", own[0]), tags.get("content_tag", own[1])))))
    return found
