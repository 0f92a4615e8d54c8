"""A hard task -> the same request with demonstrations before it (Dynamic Multi-Round Hard Sampling).

The paper asks for high-quality demonstrations and does not say where they come from; our reading (docs/methods.md
2.3): an example is shown only where it fits, and the better it fits the sooner it is taken. From best to worst:

`parameters`  it calls a tool that the task calls, with the same parameters;
`tool`        it calls a tool that the task calls;
`offered`     it calls tools that the task offers;
`shown`       it calls other tools, whose schemas are added to the offer, for the same kind of request (one call or
              several).

Among equals the model's own right answers come first, then the user's bank, then gold answers of the corpus.
The leak rule: never the task's own answer, nor a call equal to one of its gold calls, since copying would earn the
reward. `hint` breaks it on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolsample_cli.curriculum.example import Example, leaks
from toolsample_cli.curriculum.offer import added_tools, can_add, with_tools
from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import as_written, canonical

PER_TOOL, GENERAL = 64, 512
"""Most candidates kept for one tool, and for tools on nobody's offer."""

FITS = ("parameters", "tool", "offered", "shown")
"""How an example can fit a task, best first."""

SOURCES = ("own", "bank", "gold")
"""Where an example can come from, best first."""


def fit_of(task: Example, example: Example) -> str | None:
    """How `example` fits `task` (one of FITS), or None where it must not be shown.

    An example that calls nothing fits only a task that wants no call: `offered` where they share a tool, else `shown`.
    """
    if example.protocol != task.protocol or example.calling != task.calling:
        return None
    if not task.calling:
        return "offered" if example.tools.keys() & task.tools.keys() else "shown"
    added = added_tools(task, example)
    if added is None or (added and not can_add(task)):
        return None
    shared = [call for call in example.calls if call.name in task.called and call.name not in added]
    if shared:
        asked = {(call.name, frozenset(call.arguments)) for call in task.calls}
        same = any((call.name, frozenset(call.arguments)) in asked for call in shared)
        return "parameters" if same else "tool"
    if not added:
        return "offered"
    return "shown" if (len(example.calls) > 1) == (len(task.calls) > 1) else None


@dataclass(frozen=True)
class Choice:
    """Demonstrations chosen for one task, the best last; `why` there are none, or nothing."""

    examples: tuple[Example, ...] = ()
    fits: tuple[str, ...] = ()
    why: str = ""


@dataclass
class Bank:
    """Candidates, bounded in number; add rows in the order of preference.

    `by_tool` is by whether they call, and the tools they call, or only offer where no call is right; `general` by
    whether they call.
    """

    by_tool: dict[tuple[bool, str], list[Example]] = field(default_factory=dict)
    general: dict[bool, list[Example]] = field(default_factory=dict)

    def add(
        self, rows: Iterable[Mapping[str, str]], source: str = "gold", own: Mapping[str, str] | None = None
    ) -> None:
        """Take rows of `tasks` as candidates from `source`; those with doubts about their gold answer are passed over.

        `own` holds completions of the model to show in place of gold answers, by task.
        """
        for row in rows:
            if row["gold_issues_json"] != "[]":
                continue
            example = Example.of(row, (own or {}).get(row["task_id"]), source)
            for name in example.called or example.tools:
                shelf = self.by_tool.setdefault((example.calling, name), [])
                if len(shelf) < PER_TOOL:
                    shelf.append(example)
            shelf = self.general.setdefault(example.calling, [])
            if len(shelf) < GENERAL:
                shelf.append(example)

    def choose(self, task: Example, shots: int, budget: int, least: str = "shown") -> Choice:
        """At most `shots` demonstrations for `task` within `budget` tokens, none fitting worse than `least`.

        None leaks, no two have a call in common, all are written in the task's protocol, and all call or none does,
        as the task's own answer. The tokens of added schemas count, too.
        """
        chosen: list[Example] = []
        fits: list[str] = []
        used: set[str] = set()
        added: dict[str, str] = {}
        spent, why = 0, "no example fits"
        for fit, example in self._ranked(task, least):
            if len(chosen) == shots:
                break
            if example.task_id == task.task_id:
                continue
            if leaks(task, example):
                why = "the only examples that fit show its answer" if why == "no example fits" else why
                continue
            tools = {name: canonical(tool) for name, tool in (added_tools(task, example) or {}).items()}
            clash = any(added.get(name, text) != text for name, text in tools.items())
            if clash or example.keys & used or example.task_id in used:
                continue
            cost = example.tokens + sum(len(text) // 4 for name, text in tools.items() if name not in added)
            if spent + cost > budget:
                why = "the examples that fit are too long"
                continue
            chosen.append(example)
            fits.append(fit)
            used |= {*example.keys, example.task_id}
            added |= tools
            spent += cost
        return Choice(tuple(chosen[::-1]), tuple(fits[::-1]), "" if chosen else why)

    def _ranked(self, task: Example, least: str) -> Iterator[tuple[str, Example]]:
        """Candidates that fit, best first: by fit, then source and words."""
        names = [*sorted(task.called), *sorted(task.tools.keys() - task.called)]
        shelves = [self.by_tool.get((task.calling, name), []) for name in names]
        found = {e.task_id: e for shelf in [*shelves, self.general.get(task.calling, [])] for e in reversed(shelf)}
        levels: dict[str, list[Example]] = {fit: [] for fit in FITS[: FITS.index(least) + 1]}
        for example in _by_preference(task, list(found.values())):
            fit = fit_of(task, example)
            if fit in levels:
                levels[fit].append(example)
        for fit, examples in levels.items():
            yield from ((fit, example) for example in examples)


def _by_preference(task: Example, examples: list[Example]) -> list[Example]:
    """By source, then by BM25 against the task's request and tools; equal scores keep their order."""
    if len(examples) < 2:
        return examples
    from rank_bm25 import BM25Okapi

    scores = BM25Okapi([list(example.words) or [""] for example in examples]).get_scores(list(task.words))

    def rank(i: int) -> tuple[int, float, int]:
        return SOURCES.index(examples[i].source), -scores[i], i

    return [examples[i] for i in sorted(range(len(examples)), key=rank)]


def rewrite(row: Row, demonstrations: Sequence[Example]) -> Row:
    """The few-shot form of a zero-shot task: same request and gold, demonstrations before it, an id of its own.

    Tools that only the demonstrations call are added to the offer, as the task's protocol writes them.
    """
    if not demonstrations:
        return dict(row)
    task = Example.of(row)
    added: dict[str, Row] = {}
    for example in demonstrations:
        added |= added_tools(task, example) or {}
    return {
        **with_tools(row, added.values()),
        "task_id": f"{row['task_id']}@{len(demonstrations)}shot",
        "demos_json": as_written([{"messages": list(example.messages)} for example in demonstrations]),
        "demo_task_ids": [example.task_id for example in demonstrations],
        "parent_task_id": row["task_id"],
    }


def hint(row: Row) -> Row:
    """The task with its own answer shown before it: hint training, the leak rule broken by name."""
    return {**rewrite(row, [Example.of(row)]), "task_id": f"{row['task_id']}@hint"}
