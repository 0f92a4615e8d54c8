"""Requests that test items share with a corpus: the same words, nearly the same words, or the same gold calls.

Near duplicates are measured by the share of words two requests have in common (Jaccard index of their multisets of
words, numbers and names included), in any order; docs/importing.md says what recall and precision the threshold has.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from toolsample_cli.importing.base import Context, Draft, Reject
from toolsample_cli.importing.bfcl_questions import read_answers
from toolsample_cli.importing.raw_rows import raw_rows
from toolsample_cli.importing.sources import Source, sources
from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import canonical

FEWEST = 6
"""Words below which only equal requests match: short ones are alike by chance."""
_MARK = re.compile(r"[^\w\s]")


@dataclass(frozen=True)
class Match:
    """What a request matched: the test set's file, its row, and how: same_request, near_request or same_gold."""

    where: str
    how: str
    share: float


@dataclass
class Benchmark:
    """Test requests, ready to be compared with; `near` is the share of common words from which two count as alike."""

    near: float
    exact: dict[tuple[str, ...], str] = field(default_factory=dict)
    golds: dict[str, str] = field(default_factory=dict)
    words: list[tuple[Counter[str], str]] = field(default_factory=list)
    index: dict[str, list[int]] = field(default_factory=dict)

    def add(self, request: str, gold: Sequence[Row], where: str) -> None:
        """Remember one test item."""
        words = words_of(request)
        if not words:
            return
        self.exact.setdefault(tuple(sorted(words)), where)
        if (told := _telling(gold)) is not None:
            self.golds.setdefault(told, where)
        if len(words) >= FEWEST:
            for word in set(words):
                self.index.setdefault(word, []).append(len(self.words))
            self.words.append((Counter(words), where))

    def match(self, request: str, gold: Sequence[Row]) -> Match | None:
        """The first kind of match: the same words in any order, nearly the same words, the same gold calls."""
        words = words_of(request)
        if (where := self.exact.get(tuple(sorted(words)))) is not None and words:
            return Match(where, "same_request", 1.0)
        near = self._nearest(words)
        if near is not None:
            return near
        told = _telling(gold)
        if told is not None and (where := self.golds.get(told)) is not None:
            return Match(where, "same_gold", 1.0)
        return None

    def _nearest(self, words: list[str]) -> Match | None:
        if len(words) < FEWEST or not self.words:
            return None
        mine = Counter(words)
        # two that share enough words share one of the rarest few: only those lists are looked through
        ranked = sorted(set(words), key=lambda word: (len(self.index.get(word, ())), word))
        most_missing = int((1 - self.near) * len(words)) + 1
        candidates = {i for word in ranked[: most_missing + 1] for i in self.index.get(word, ())}
        best, found = self.near, None
        for i in sorted(candidates):
            theirs, where = self.words[i]
            common = sum((mine & theirs).values())
            share = common / (sum(mine.values()) + sum(theirs.values()) - common)
            if share >= best:
                best, found = share + 1e-9, Match(where, "near_request", share)
        return found


def words_of(text: str) -> list[str]:
    """Words, numbers and names of a text in small letters, without punctuation."""
    return _MARK.sub("", unicodedata.normalize("NFKC", text).casefold()).split()


def request_of(messages: Sequence[Row]) -> str:
    """What is asked: the text of the last user turn; RLLA's history tags stay words like any other."""
    return next((str(m.get("content") or "") for m in reversed(messages) if m.get("role") == "user"), "")


def _telling(gold: Sequence[Row]) -> str | None:
    """The gold calls in any order, where they say enough to be no coincidence: at least three argument values."""
    if sum(len(call.get("arguments") or {}) for call in gold) < 3:
        return None
    return canonical(sorted(canonical(call) for call in gold))


def read_benchmark(paths: Sequence[str], near: float) -> Benchmark:
    """Test items from raw benchmark files, folders of them, or folders of tasks."""
    items = Benchmark(near)
    for source in sources(list(paths), "auto", skip_broken=True).files:
        answers = {key: gold for file in source.answers for key, gold in read_answers(file).items()}
        context = Context("every", answers, source.path.name)
        for raw in raw_rows(source.path):
            if isinstance(raw.value, dict):
                for request, gold in _items(source, raw.value, context):
                    items.add(request, gold, f"{source.label} row {raw.number}")
    return items


def _items(source: Source, row: Row, context: Context) -> Iterator[tuple[str, list[Row]]]:
    """(request, gold calls) of a raw row; multi-turn benchmark rows give each user turn without a gold."""
    question = row.get("question")
    if isinstance(question, list):
        turns = question if question and isinstance(question[0], list) else [question]
        if len(turns) > 1:
            yield from ((request_of(turn), []) for turn in turns if isinstance(turn, list))
            return
    try:
        for draft in source.format.drafts(row, context):
            if isinstance(draft, Draft):
                calls = json.loads(draft.row["gold_json"]) if draft.row else [call.record() for call in draft.calls]
                yield request_of(draft.messages), calls
            elif isinstance(question, list):
                yield request_of(turns[0]), []
    except (Reject, KeyError, TypeError, ValueError, AttributeError, IndexError):
        if isinstance(question, list):
            yield request_of(turns[0]), []
