"""Which sub-task a completion's tokens belong to: tool names, parameter names, parameter values.

Calls are found in the decoded text as JSON objects with `name` and `arguments` (or `parameters`), wherever the
protocol puts them, by one linear scan that forgives broken JSON; token boundaries come from the tokens' own texts. A
token that touches two sub-tasks counts for the later one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NAME, KEY, VALUE = 1, 2, 3
CALL_NAMES = frozenset({"name"})
CALL_ARGUMENTS = frozenset({"arguments", "parameters"})
MAX_DEPTH = 64

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')


@dataclass
class _Open:
    """An object or array being read. `key`: the member at hand; `role`: what the container is to a call."""

    is_object: bool
    role: str
    key: str | None = None
    found: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    start: int = 0


def text_spans(text: str) -> list[tuple[int, int, int]]:
    """(start, end, NAME | KEY | VALUE) in characters, for every call in the text, in order.

    Example: `{"name": "f", "arguments": {"x": 1}}` gives "f" (quotes included) as NAME, "x" as KEY, 1 as VALUE.
    """
    spans: list[tuple[int, int, int]] = []
    stack: list[_Open] = []
    for match in _TOKEN.finditer(text):
        token, start, end = match.group(), match.start(), match.end()
        if token in "{[":
            stack.append(_opened(stack, token == "{", start))
            if len(stack) > MAX_DEPTH:
                return spans
        elif token in "}]":
            if stack:
                _closed(stack, end, spans)
        elif stack and token == ",":
            stack[-1].key = None
        elif stack and token != ":":
            _scalar(stack[-1], token, start, end)
        elif not stack and token == ":":
            continue
    while stack:  # a call that was cut off still has the parts that were written
        _closed(stack, len(text), spans)
    return sorted(set(spans))


def _opened(stack: list[_Open], is_object: bool, start: int) -> _Open:
    parent = stack[-1] if stack else None
    if parent is None:
        role = "call" if is_object else "list"
    elif parent.role in ("call", "list") and parent.is_object and parent.key in CALL_ARGUMENTS:
        role = "arguments"
    elif parent.role == "list":
        role = "call" if is_object else "list"
    elif parent.role in ("arguments", "value"):
        role = "value"
    else:
        role = "call" if is_object else "list"
    return _Open(is_object, role, start=start)


def _scalar(top: _Open, token: str, start: int, end: int) -> None:
    quoted = token.startswith('"')
    if top.is_object and top.key is None:
        top.key = token[1:-1] if quoted else token
        if top.role == "arguments":
            top.found.setdefault("spans", []).append((start, end, KEY))
    elif top.role == "call" and top.key in CALL_NAMES and quoted:
        top.found.setdefault("name", []).append((start, end, NAME))
    elif top.role == "arguments":
        top.found.setdefault("spans", []).append((start, end, VALUE))


def _closed(stack: list[_Open], end: int, spans: list[tuple[int, int, int]]) -> None:
    done = stack.pop()
    parent = stack[-1] if stack else None
    if done.role == "value" and parent is not None and parent.role == "arguments":
        parent.found.setdefault("spans", []).append((done.start, end, VALUE))
    elif done.role == "arguments" and parent is not None:
        parent.found.setdefault("arguments", []).extend(done.found.get("spans", []))
    elif done.role == "call" and "name" in done.found:
        spans += done.found["name"] + done.found.get("arguments", [])


class TokenSpans:
    """Spans of token ids, with each token's text looked up once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def of(self, completion: Sequence[int] | np.ndarray) -> np.ndarray:
        """0, NAME, KEY or VALUE for each token, int64 [L]; all 0 where tokens cannot be placed in the text."""
        ids = [int(token) for token in completion]
        marks = np.zeros(len(ids), dtype=np.int64)
        ends = self._ends(ids)
        if ends is None or not ids:
            return marks
        spans = text_spans(self._decode(ids))
        starts = np.concatenate([[0], ends[:-1]])
        for start, end, kind in spans:
            marks[(starts < end) & (ends > start)] = kind
        return marks

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _ends(self, ids: list[int]) -> np.ndarray | None:
        """End of each token in the decoded text, in characters; None for a tokenizer whose pieces do not add up."""
        new = [token for token in dict.fromkeys(ids) if token not in self._pieces]
        for token in new:
            self._pieces[token] = self._decode([token])
        lengths = [len(self._pieces[token]) for token in ids]
        torn = ["\ufffd" in self._pieces[token] for token in ids]
        text = []
        for broken, members in itertools.groupby(range(len(ids)), key=torn.__getitem__):
            run = list(members)
            if not broken:
                text += [self._pieces[ids[at]] for at in run]
                continue
            # a character split over tokens: together they have its text, which counts for the last of them
            joint = self._decode([ids[at] for at in run])
            text.append(joint)
            ends = [0, *(len(self._decode([ids[at] for at in run[: k + 1]]).rstrip("\ufffd")) for k in range(len(run)))]
            ends[-1] = len(joint)
            ends = list(itertools.accumulate(ends, max))
            for at, (before, after) in zip(run, itertools.pairwise(ends), strict=True):
                lengths[at] = after - before
        if "".join(text) != self._decode(ids):
            return None
        return np.cumsum(lengths, dtype=np.int64)
