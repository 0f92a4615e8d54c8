"""The tasks of a folder made ready for scoring: looked up by id, one scorer per task."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import DataError, location
from toolsample_cli.score.scorer import Gold, Limits, Rules, Scorer
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tools import toolbox

KNOWN = ("auto", *PROTOCOLS)
COPIED = ["parent_task_id", "source"]


class TaskRow(NamedTuple):
    """The columns of a task that scoring reads."""

    task_id: str
    protocol: str
    tools_json: str
    gold_json: str
    gold_kind: str
    demos_json: str
    category: str
    extra_json: str = "{}"


@dataclass(frozen=True)
class Taken:
    """Tasks made ready: row of each id, and by row its scorer and the columns that scores copy from it."""

    rows: dict[str, int]
    scorers: list[Scorer]
    columns: pl.DataFrame


class TaskScorers:
    """The tasks folder, looked up by id: only the ids are held, rows are read when a shard of rollouts needs them."""

    def __init__(self, folder: Folder, rules: Rules) -> None:
        self._folder, self._rules = folder, rules
        self._read = [name for name in TaskRow._fields if rules.extras or name != "extra_json"]
        self._shard_of: dict[str, int] = {}
        for at, shard in enumerate(folder.shards):
            ids = folder.read(shard, ["task_id"])["task_id"].to_list()
            before = len(self._shard_of)
            self._shard_of.update(dict.fromkeys(ids, at))
            if len(self._shard_of) != before + len(ids):
                raise DataError(
                    f"{shard.path}: a task of this shard occurs more than once in the folder",
                    hint="every task may occur once; import the folder again or remove the copies",
                )

    def take(self, ids: list[str], where: str) -> Taken:
        """The named tasks; DataError for one that the folder lacks or that breaks its own contract."""
        needed: dict[int, list[str]] = {}
        for task_id in dict.fromkeys(ids):
            if task_id not in self._shard_of:
                raise DataError(
                    f"{location(where, row=ids.index(task_id) + 1, task=task_id)}: no such task in {self._folder.path}",
                    hint="score needs the tasks that the rollouts were made from",
                )
            needed.setdefault(self._shard_of[task_id], []).append(task_id)
        frames: list[pl.DataFrame] = []
        scorers: list[Scorer] = []
        shots: list[int] = []
        for at, wanted in needed.items():
            shard = self._folder.shards[at]
            frame = self._folder.read(shard, [*self._read, *COPIED]).with_row_index("row")
            frame = frame.filter(pl.col("task_id").is_in(wanted))
            frames.append(frame)
            for at_row, *record in frame.select("row", *self._read).iter_rows():
                scorer, demos = self._ready(TaskRow(*record), shard.path, at_row)
                scorers.append(scorer)
                shots.append(demos)
        return _taken(frames, scorers, shots)

    def _ready(self, task: TaskRow, file: Path, row: int) -> tuple[Scorer, int]:
        """Scorer and number of demonstrations of one task."""

        def fault(what: str, hint: str | None = None) -> DataError:
            return DataError(f"{location(file, row=row + 1, task=task.task_id)}: {what}", hint=hint)

        protocol = task.protocol if self._rules.config.protocol == "task" else self._rules.config.protocol
        if protocol not in KNOWN:
            raise fault(f"unknown protocol {protocol!r}", hint=nearest(protocol, KNOWN))
        try:
            gold = Gold.of(task.gold_json, task.gold_kind)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise fault(f"gold_json is not a list of {{name, arguments}}: {error!r}") from None
        try:
            tools = toolbox(task.tools_json)
            shots = 0 if task.demos_json == "[]" else len(json.loads(task.demos_json))
            allowed = None if task.extra_json == "{}" else json.loads(task.extra_json).get("possible_answer")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise fault(f"tools_json, demos_json or extra_json is not what it should be: {error!r}") from None
        if isinstance(allowed, list) and len(allowed) == len(gold.calls):
            gold = replace(gold, allowed=tuple(allowed))
        return Scorer(gold, protocol, self._rules, tools, task.category), shots


def _taken(frames: list[pl.DataFrame], scorers: list[Scorer], shots: list[int]) -> Taken:
    tasks = pl.concat(frames) if frames else pl.DataFrame(schema=schema.TASKS.schema)
    parent = pl.col("parent_task_id")
    kinds = {name: schema.SCORES.schema[name] for name in Limits._fields}
    limits = pl.DataFrame([scorer.limits for scorer in scorers], schema=kinds, orient="row")
    columns = tasks.select(
        pl.when(parent != "").then(parent).otherwise("task_id").alias("slot_id"),
        pl.Series("shots", shots, schema.SCORES.schema["shots"]),
        "source",
        "category",
        *limits.get_columns(),
    )
    return Taken({task_id: row for row, task_id in enumerate(tasks["task_id"].to_list())}, scorers, columns)
