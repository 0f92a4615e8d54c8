"""A hard task -> the same request with demonstrations before it (Dynamic Multi-Round Hard Sampling).

Where demonstrations come from is not public; our reading (methods 2.3): tasks that call one of the same tools,
then tasks that call a tool offered here, then the nearest by BM25. Before a request that no call answers stand only
others that no call answers, with a tool on offer here first: calls would teach the model what it does wrong already.
The leak rule: never the task's own answer, nor a call equal to one of its gold calls, since copying would earn the
reward. `hint` breaks it on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolsample_cli.toolcalls.call import Call, as_written, canonical, read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS

BYTES_PER_TOKEN = 4
"""Rule of thumb for the budget; only `chat` tokenises."""

PER_TOOL, GENERAL = 64, 512
"""Most candidates kept for one tool, and for the search by BM25."""


@dataclass(frozen=True)
class Example:
    """A task seen as a possible demonstration. `keys` are its gold calls in the form the leak rule compares."""

    task_id: str
    protocol: str
    calls: tuple[Call, ...]
    keys: frozenset[str]
    answer: str  # the answer of a task without gold calls, else ""
    offered: frozenset[str]
    words: tuple[str, ...]
    messages: tuple[dict[str, Any], ...]

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
    def of(cls, row: Mapping[str, Any], own: str | None = None) -> Example:
        """From a row of `tasks`; `own` is an exactly right completion to show in place of the gold answer."""
        calls = read_calls(row["gold_json"])
        turns = [m for m in json.loads(row["messages_json"]) if m["role"] != "system"]
        tools = json.loads(row["tools_json"])
        text = " ".join(str(turn.get("content") or "") for turn in turns if turn["role"] == "user")
        described = " ".join(f"{tool['name']} {tool.get('description') or ''}" for tool in tools)
        return cls(
            task_id=row["task_id"],
            protocol=row["protocol"],
            calls=calls,
            keys=frozenset(leak_key(call) for call in calls),
            answer="" if calls else _plain(row["gold_text"] or ""),
            offered=frozenset(tool["name"] for tool in tools),
            words=tuple(f"{text} {described}".lower().replace("_", " ").split()),
            messages=(*turns, _answer(row, calls, own)),
        )


def leak_key(call: Call) -> str:
    """A call reduced until calls that a reward could take for equal are equal: numbers by value, text by letters."""
    return canonical([_plain(call.name), _reduced(call.arguments)])


def _reduced(value: Any) -> Any:
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


def _answer(row: Mapping[str, Any], calls: Sequence[Call], own: str | None) -> dict[str, Any]:
    protocol = PROTOCOLS[row["protocol"]]
    if not protocol.tools_in_template:
        return {"role": "assistant", "content": own or row["gold_text"] or protocol.render(calls, None, None)}
    thought = protocol.parse(own, row["gold_kind"]).thought if own else None
    said = {"content": f"<think>\n{thought}\n</think>"} if thought else {}
    if not calls:
        return {"role": "assistant", "content": own or row["gold_text"] or ""}
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return {"role": "assistant", **said, "tool_calls": [{"type": "function", "function": f} for f in functions]}


@dataclass
class Bank:
    """Candidates, bounded in number; add rows in the order of preference.

    `by_tool` is by whether they call, and the tools they call, or only offer where no call is right; `general` by
    whether they call. `own` holds completions of the model to show in place of gold answers, by task.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    by_tool: dict[tuple[bool, str], list[Example]] = field(default_factory=dict)
    general: dict[bool, list[Example]] = field(default_factory=dict)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take rows of `tasks` as candidates; those with doubts about their gold answer are passed over."""
        for row in rows:
            if row["gold_issues_json"] != "[]":
                continue
            example = Example.of(row, self.own.get(row["task_id"]))
            for name in example.called or example.offered:
                shelf = self.by_tool.setdefault((example.calling, name), [])
                if len(shelf) < PER_TOOL:
                    shelf.append(example)
            shelf = self.general.setdefault(example.calling, [])
            if len(shelf) < GENERAL:
                shelf.append(example)

    def choose(self, task: Example, shots: int, budget: int) -> list[Example]:
        """At most `shots` demonstrations for `task` within `budget` tokens, the nearest last.

        None leaks, no two have a call in common, all are written in the task's protocol, and all call or none does, as
        the task's own answer.
        """
        chosen: list[Example] = []
        used: set[str] = set()
        for example in self._ranked(task):
            if len(chosen) == shots:
                break
            cost = sum(e.tokens for e in chosen) + example.tokens
            if leaks(task, example) or cost > budget or example.keys & used or example.task_id in used:
                continue
            chosen.append(example)
            used |= {*example.keys, example.task_id}
        return chosen[::-1]

    def _ranked(self, task: Example) -> Iterable[Example]:
        def usable(names: Iterable[str]) -> list[Example]:
            found = {e.task_id: e for name in sorted(names) for e in self.by_tool.get((task.calling, name), ())}
            return [e for e in found.values() if e.protocol == task.protocol]

        def inside(example: Example) -> bool:  # calls nothing that is not on offer here
            return example.called <= task.offered

        same, offered = usable(task.called), usable(task.offered)
        for shelf in ([e for e in same if inside(e)], [e for e in offered if inside(e)], same, offered):
            yield from _by_words(task, shelf)
        yield from _by_words(task, [e for e in self.general.get(task.calling, ()) if e.protocol == task.protocol])


def _by_words(task: Example, shelf: list[Example]) -> list[Example]:
    """The shelf by BM25 against the task's request and tools, best first; equal scores keep their order."""
    if len(shelf) < 2:
        return shelf
    from rank_bm25 import BM25Okapi

    scores = BM25Okapi([list(example.words) or [""] for example in shelf]).get_scores(list(task.words))
    return [shelf[i] for i in sorted(range(len(shelf)), key=lambda i: -scores[i])]


def rewrite(row: Mapping[str, Any], demonstrations: Sequence[Example]) -> dict[str, Any]:
    """The few-shot form of a zero-shot task: same request and gold, demonstrations before it, an id of its own."""
    if not demonstrations:
        return dict(row)
    return {
        **row,
        "task_id": f"{row['task_id']}@{len(demonstrations)}shot",
        "demos_json": as_written([{"messages": list(example.messages)} for example in demonstrations]),
        "demo_task_ids": [example.task_id for example in demonstrations],
        "parent_task_id": row["task_id"],
    }


def hint(row: Mapping[str, Any]) -> dict[str, Any]:
    """The task with its own answer shown before it: hint training, the leak rule broken by name."""
    return {**rewrite(row, [Example.of(row)]), "task_id": f"{row['task_id']}@hint"}
