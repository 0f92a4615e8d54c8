"""Which tasks a rollout takes, and how they lie in its output shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import DataError
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, open_folder
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Options

COLUMNS = ["task_id", "protocol", "messages_json", "tools_json", "demos_json", "gold_text"]


@dataclass(frozen=True)
class TaskPlan:
    """The selected tasks, in order; `chunks` gives their rows, one output shard at a time."""

    folder: Folder
    ids: pl.Series
    wanted: frozenset[str] | None
    size: int

    @property
    def shards(self) -> int:
        """Output shards in all."""
        return -(-len(self.ids) // self.size)

    def rows(self, slice: Slice) -> int:
        """Tasks in the output shards of a slice."""
        return sum(min(self.size, len(self.ids) - k * self.size) for k in range(self.shards) if slice.owns(k))

    def chunks(self) -> Iterator[tuple[int, list[Row]]]:
        """(output shard number, its task rows); one input shard and one output shard in memory."""
        number, rows, left = 0, [], len(self.ids)
        for _, frame in self.folder.frames(COLUMNS):
            if self.wanted is not None:
                frame = frame.filter(pl.col("task_id").is_in(self.wanted))
            for row in frame.head(left).iter_rows(named=True):
                rows.append(row)
                left -= 1
                if len(rows) == self.size or left == 0:
                    yield number, rows
                    number, rows = number + 1, []
            if left == 0:
                return


def plan_tasks(tasks: Path, config: RolloutConfig, options: Options) -> TaskPlan:
    """The tasks of a folder that the options select; DataError when an id occurs twice."""
    folder = open_folder(tasks, schema.TASKS)
    ids, wanted = folder.load(["task_id"])["task_id"], options.wanted_ids()
    repeated = ids.filter(ids.is_duplicated())
    if len(repeated):
        raise DataError(f"{tasks}: task {repeated[0]} occurs twice", hint="task ids must be unique; import again")
    if wanted is not None:
        ids = ids.filter(ids.is_in(wanted))
    return TaskPlan(
        folder, ids.head(options.limit) if options.limit is not None else ids, wanted, config.tasks_per_shard
    )
