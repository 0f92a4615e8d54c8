"""The run's memory between rounds, `state.json`: what was visited, mastered, weighted, found hard and drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from toolsample_cli.curriculum.sampling import EpochPlace
from toolsample_cli.json_types import Json, Row

WEIGHTED = ("name", "key", "value")
"""Sub-tasks that carry a weight; the format term always counts 1."""

EVEN = {name: 1.0 for name in WEIGHTED}


@dataclass(frozen=True)
class HardTask:
    """A task that has its place in the corpus in few-shot form, hardened in round `since`.

    `waiting` until it has been rolled out with these shots; `unsolved` while its latest visit had no right
    completion; `unfit` when no demonstration fitted it at its latest draw, so that it was drawn as it is.
    """

    shots: int
    since: int
    waiting: bool = True
    unsolved: bool = True
    unfit: bool = False


@dataclass(frozen=True)
class State:
    """Everything the loop remembers between rounds. `round` is the latest one taken in, -1 before the first.

    `task_visits` counts tasks rolled out, over all rounds; `visited` how many different ones there were; `streak`
    the visits of the latest rounds in a row whose mean reward was above the activation mean; `active` whether the
    draw goes by importance; `place` where a draw by `skips` has come to. `weights` are in force for the next round;
    `stage` is the index of the sub-task being learned and `stage_rounds` how many rounds in a row it has been mastered
    (`weighting = stage`); `hard` and `dropped` are by slot; `hard_ended` says why hard sampling is over, or nothing;
    `log` has one entry per round.
    """

    corpus: Mapping[str, Json]
    round: int = -1
    task_visits: int = 0
    visited: int = 0
    streak: int = 0
    active: bool = False
    place: EpochPlace = field(default_factory=EpochPlace)
    mastery: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=lambda: dict(EVEN))
    stage: int = 0
    stage_rounds: int = 0
    dead_rounds: int = 0
    hard: dict[str, HardTask] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    hard_ended: str = ""
    log: tuple[Row, ...] = ()

    VERSION = 2

    @property
    def corpus_tasks(self) -> int:
        """Tasks in the corpus, at least 1."""
        tasks = self.corpus.get("tasks")
        return max(tasks, 1) if isinstance(tasks, int) else 1

    @property
    def passes(self) -> float:
        """Task visits over the size of the corpus: how many times it has been gone through."""
        return round(self.task_visits / self.corpus_tasks, 6)

    def record(self) -> Row:
        """As JSON values, in reading order; slots sorted, so that two states can be compared line by line."""
        plain = asdict(self)
        plain["hard"] = dict(sorted(plain["hard"].items()))
        plain["dropped"] = dict(sorted(plain["dropped"].items()))
        head = {"version": self.VERSION, "next_round": self.round + 1, "passes": self.passes}
        return {**head, **plain, "log": list(self.log)}

    @classmethod
    def read(cls, record: Mapping[str, Json]) -> State:
        """The inverse of `record`. Raises ValueError, TypeError or KeyError on anything that is not one."""
        if record.get("version") != cls.VERSION:
            raise ValueError(f"version {record.get('version')!r}, expected {cls.VERSION}")
        values: Row = {name: record[name] for name in cls.__dataclass_fields__}
        values["hard"] = {slot: HardTask(**entry) for slot, entry in values["hard"].items()}
        values["log"] = tuple(values["log"])
        values["place"] = EpochPlace(*values["place"])
        state = cls(**values)
        weights = [state.weights[name] for name in WEIGHTED]
        if any(not isinstance(w, int | float) or not 0 <= w < math.inf for w in weights):
            raise ValueError(f"weights {state.weights} are not all finite numbers from 0 up")
        if sum(weights) == 0 and state.stage > 0:
            raise ValueError("weights sum to nothing")
        return state
