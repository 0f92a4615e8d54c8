"""What an importer gives for a raw row: drafts of tasks, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from toolsample_cli.toolcalls.call import Call


@dataclass
class Draft:
    """A task before it is checked: prompt, tools and gold answer as plain values.

    `tools` is what `toolspec.read_tools` accepts. `gold_text` is the source's own text of the gold answer where the
    protocol keeps it verbatim; otherwise it is rendered. `split` is the source's own, where it has one.
    `row` is a whole row of tasks, which only `messages` accompany.
    """

    messages: list[dict[str, Any]]
    tools: Any = None
    calls: list[Call] = field(default_factory=list)
    response: str | None = None
    thought: str | None = None
    gold_text: str | None = None
    category: str = ""
    split: str = ""
    license: str = ""
    row: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Reject(Exception):
    """A raw row, or one turn of it, that cannot become a task: `reason` is one word, the message a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


Drafts = Iterator[Draft | Reject]


@dataclass(frozen=True)
class Context:
    """What an importer may need besides the row: the turns to take, answers from another file, the name of its own.

    `catalogue` is a `catalogue.Catalogue` of tools from another file, from which `distractors` are offered besides.
    """

    turns: str = "every"
    answers: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    catalogue: Any = None
    distractors: int = 0


@dataclass(frozen=True)
class Format:
    """One raw format: how it is recognised by the keys of a row and how a row becomes drafts.

    `protocol` is the way of writing calls its tasks get by default; `verbatim` formats carry the protocol's
    instructions in their own prompt and can have no other. `test` marks benchmark data that `train` refuses.
    """

    name: str
    meaning: str
    looks_like: Callable[[dict[str, Any]], bool]
    drafts: Callable[[dict[str, Any], Context], Drafts]
    protocol: str = "hermes"
    verbatim: bool = False
    test: bool = False


def category_of(kind: str, n_calls: int, n_tools: int) -> str:
    """A word for a request whose source gives none: BFCL's for calls and for "no tool fits", else `response`."""
    if n_calls == 0:
        return "response" if kind == "response" else "irrelevance"
    word = "simple" if n_tools == 1 else "multiple"
    if n_calls == 1:
        return word
    return "parallel" if n_tools == 1 else "parallel_multiple"
