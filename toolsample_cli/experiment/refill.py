"""DAPO's dynamic sampling (2503.14476): draw and roll out again until a round's batch is full of groups with a spread.

A round's further draws are the same draw made larger: the same state, groups and seed, and once, twice, three times as
many tasks; only tasks of slots not yet rolled out in this round are rolled out. What is left over of the last draw is
cut from the batch, but counted as rollouts and remembered in the groups, as in the paper's own code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.sealed import write_atomically
from toolsample_cli.shards.writing import Output

FOLDER = "draw-"


@dataclass
class Filling:
    """A round's batch being filled: `size` groups are wanted; `draws` are the folders of the draws made so far.

    `slots` were rolled out in this round, `kept` are the tasks whose groups were kept, in the order of their draws.
    """

    size: int
    draws: list[Path] = field(default_factory=list)
    slots: set[str] = field(default_factory=set)
    kept: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether as many groups were kept as the batch wants."""
        return len(self.kept) >= self.size

    def fresh(self, tasks: Path) -> list[str]:
        """The tasks of a draw whose slots this round has not rolled out; they count as rolled out from now on."""
        frame = open_folder(tasks, schema.TASKS).load(["task_id", "parent_task_id"])
        frame = frame.with_columns(slot=pl.coalesce("parent_task_id", "task_id"))
        frame = frame.filter(~pl.col("slot").is_in(sorted(self.slots)))
        self.slots.update(frame["slot"])
        return frame["task_id"].to_list()

    def take(self, draw: Path) -> None:
        """Count the groups of a scored and filtered draw."""
        groups = open_folder(draw / "groups", schema.GROUPS).load(["task_id", "keep"])
        self.kept += groups.filter(pl.col("keep"))["task_id"].to_list()
        self.draws.append(draw)

    def facts(self) -> dict[str, int | bool]:
        """For the round's metrics."""
        return {"draws": len(self.draws), "groups_trained": min(len(self.kept), self.size), "full": self.full}


def write_ids(path: Path, ids: Iterable[str]) -> Path:
    """A file for `--ids`: one per line."""
    write_atomically(path, "".join(f"{name}\n" for name in ids).encode("utf-8"))
    return path


def join(draws: Sequence[Path], name: str, kind: schema.Kind, out: Path) -> None:
    """The draws' folders `name` as one folder of the round, shard after shard, with the settings of the first."""
    parts = [open_folder(draw / name, kind) for draw in draws]
    made_from = {f"draw {number}": part.digest for number, part in enumerate(parts, 1)}
    shards = [(part, shard) for part in parts for shard in part.shards]
    with Output(out, kind, parts[0].config, made_from, overwrite=False) as output:
        for number, (part, shard) in enumerate(shards):
            if not output.done(number):
                output.write(number, part.read(shard))
        output.finish()


def wanted(method: str, most: int) -> bool:
    """Whether a round is filled: only where the method says that its batch is."""
    return method == "dapo" and most > 1


def leftovers(here: Path) -> Collection[Path]:
    """Folders of draws in a finished round, whose rollouts and scores the round holds once more."""
    return sorted(here.glob(f"{FOLDER}*"))
