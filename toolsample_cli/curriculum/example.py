"""A task seen as a possible demonstration: what it calls, offers, costs and would give away."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolsample_cli.json_types import Json, Row
from toolsample_cli.toolcalls.call import Call, canonical, read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS

BYTES_PER_TOKEN = 4
"""Rule of thumb for the budget; only `chat` tokenises."""

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Example:
    """`keys` are its gold calls in the form the leak rule compares; `tools` the offered tools by name; `uses` the
    arguments' names of every tool called in it, in earlier turns too; `source` where it comes from."""

    task_id: str
    protocol: str
    calls: tuple[Call, ...]
    keys: frozenset[str]
    answer: str  # the answer of a task without gold calls, else ""
    tools: Mapping[str, Row]
    uses: Mapping[str, frozenset[str]]
    words: tuple[str, ...]
    messages: tuple[Row, ...]
    system: str
    source: str = "gold"

    @property
    def called(self) -> frozenset[str]:
        """Names of the tools its gold answer calls."""
        return frozenset(call.name for call in self.calls)

    @property
    def calling(self) -> bool:
        """Whether its gold answer holds a call at all."""
        return bool(self.calls)

    @property
    def tokens(self) -> int:
        """Its length as a demonstration, in tokens of about 4 bytes."""
        return -(-len(canonical(list(self.messages)).encode("utf-8")) // BYTES_PER_TOKEN)

    @classmethod
    def of(cls, row: Mapping[str, str], own: str | None = None, source: str = "gold") -> Example:
        """From a row of `tasks`; `own` is an exactly right completion to show in place of the gold answer."""
        calls = read_calls(row["gold_json"])
        messages: list[Row] = json.loads(row["messages_json"])
        turns = [m for m in messages if m["role"] != "system"]
        tools: list[Row] = json.loads(row["tools_json"])
        text = " ".join(str(turn.get("content") or "") for turn in turns if turn["role"] == "user")
        described = " ".join(f"{tool['name']} {tool.get('description') or ''}" for tool in tools)
        return cls(
            task_id=row["task_id"],
            protocol=row["protocol"],
            calls=calls,
            keys=frozenset(leak_key(call) for call in calls),
            answer="" if calls else _plain(row["gold_text"] or ""),
            tools={tool["name"]: tool for tool in tools},
            uses=_uses(calls, turns),
            words=tuple(f"{text} {described}".lower().replace("_", " ").split()),
            messages=(*turns, _answer(row, calls, own)),
            system="".join(str(m.get("content") or "") for m in messages[:1] if m["role"] == "system"),
            source=source,
        )


def _uses(calls: Sequence[Call], turns: Sequence[Row]) -> dict[str, frozenset[str]]:
    """Tool -> names of arguments it is called with, in the answer and in earlier turns (their arguments unread)."""
    uses: dict[str, frozenset[str]] = {}
    for turn in turns:
        for call in turn.get("tool_calls") or ():
            uses.setdefault(str(call.get("function", call).get("name")), frozenset())
        for block in _BLOCK.findall(str(turn.get("content") or "")):
            for name in _NAME.findall(block):
                uses.setdefault(name, frozenset())
    for call in calls:
        uses[call.name] = uses.get(call.name, frozenset()) | call.arguments.keys()
    return uses


def leak_key(call: Call) -> str:
    """A call reduced until calls that a reward could take for equal are equal: numbers by value, text by letters."""
    return canonical([_plain(call.name), _reduced(call.arguments)])


def _reduced(value: Json) -> Json:
    if isinstance(value, dict):
        return {_plain(str(key)): _reduced(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_reduced(item) for item in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def leaks(task: Example, other: Example) -> bool:
    """Whether showing `other` before `task` would show an answer of `task`, whole or in part."""
    if task.task_id == other.task_id or task.keys & other.keys:
        return True
    return not task.calls and not other.calls and task.answer == other.answer


def _answer(row: Mapping[str, str], calls: Sequence[Call], own: str | None) -> Row:
    protocol = PROTOCOLS[row["protocol"]]
    if not protocol.tools_in_template:
        return {"role": "assistant", "content": own or row["gold_text"] or protocol.render(calls, None, None)}
    thought = protocol.parse(own, row["gold_kind"]).thought if own else None
    spoken = {"content": f"<think>\n{thought}\n</think>"} if thought else {}
    if not calls:
        return {"role": "assistant", "content": own or row["gold_text"] or ""}
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return {"role": "assistant", **spoken, "tool_calls": [{"type": "function", "function": f} for f in functions]}
