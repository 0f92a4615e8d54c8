"""The corpus as the curriculum sees it: 8 bytes per task in memory, everything else fetched when it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.hashing import hash_ids
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, open_folder
from toolsample_cli.shards.test_rows import refuse_test_rows
from toolsample_cli.stage import Options


def inside(hashes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which hashes occur in the sorted array `among`."""
    if not len(among):
        return np.zeros(len(hashes), bool)
    return among[np.minimum(np.searchsorted(among, hashes), len(among) - 1)] == hashes


LEAVE_OUT = "leave rows with split = test out of the corpus, or import them with --split train"


@dataclass(frozen=True)
class Corpus:
    """The zero-shot tasks to draw from.

    Tasks are told apart by 64-bit hashes of their ids, one array a shard: among 10 million, two share one with a
    chance of 3 in a million, and would then count as visited together.
    """

    folder: Folder
    hashes: tuple[np.ndarray, ...]
    allowed: pl.Series | None  # ids that --limit and --ids leave

    @classmethod
    def open(cls, path: Path, options: Options) -> Corpus:
        """Read the ids once. DataError for test data, few-shot forms and an empty corpus."""
        folder = open_folder(path, schema.TASKS)
        wanted, left = options.wanted_ids(), options.limit
        hashes, allowed = [], []
        for shard, frame in folder.frames(["task_id", "split", "parent_task_id"]):
            refuse_test_rows(shard.path, frame, hint=LEAVE_OUT)
            forms = frame.filter(pl.col("parent_task_id").is_not_null())
            if forms.height:
                raise DataError(
                    f"{shard.path} (task {forms['task_id'][0]}): a few-shot form, not a task of a corpus",
                    hint="give the imported tasks, not the tasks of a round",
                )
            hashes.append(hash_ids(frame["task_id"]))
            if wanted is not None:
                allowed.append(frame["task_id"].filter(frame["task_id"].is_in(list(wanted))))
            elif left is not None:
                allowed.append(frame["task_id"].head(left))
                left -= len(allowed[-1])
        if not sum(map(len, hashes)):
            raise DataError(f"{path}: no tasks to draw from")
        return cls(folder, tuple(hashes), pl.concat(allowed) if allowed else None)

    @property
    def rows(self) -> int:
        """Tasks in the corpus."""
        return sum(map(len, self.hashes))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Number of tasks and a fingerprint of their ids that no re-sharding changes."""
        total = sum(int(part.sum(dtype=np.uint64)) for part in self.hashes) % 2**64
        return {"tasks": self.rows, "fingerprint": f"{total:016x}"}

    @cached_property
    def known(self) -> np.ndarray:
        """All hashes, sorted."""
        return np.sort(np.concatenate(self.hashes))

    def refuse_foreign(self, path: Path, slots: pl.Series, hashes: np.ndarray) -> None:
        """DataError naming the first slot of a `groups` shard that is no task of this corpus."""
        foreign = slots.filter(pl.Series(~inside(hashes, self.known)))
        if len(foreign):
            raise DataError(
                f"{path} (task {foreign[0]}): not in the corpus {self.folder.path}, as {len(foreign)} in this shard",
                hint="groups and history must come from tasks of this corpus",
            )

    def fetch(self, ids: pl.Series) -> pl.DataFrame:
        """Whole rows of these tasks, sorted by id; reads only shards that hold one. DataError for a repeated id."""
        wanted = hash_ids(ids)
        order = np.argsort(wanted)
        frames = [pl.DataFrame(schema=schema.TASKS.schema)]
        for shard, hashes in zip(self.folder.shards, self.hashes, strict=True):
            here = np.zeros(len(ids), bool)
            hits = hashes[inside(hashes, wanted[order])]
            here[order[np.searchsorted(wanted[order], hits)]] = True
            if not len(hits):
                continue
            wanted_here = ids.filter(pl.Series(here)).implode()
            found = self.folder.scan(shard).filter(pl.col("task_id").is_in(wanted_here)).collect()
            frames.append(schema.check(schema.TASKS, found, str(shard.path)).select(list(schema.TASKS.schema)))
        rows = pl.concat(frames).sort("task_id")
        twice = rows["task_id"].filter(rows["task_id"].is_duplicated())
        if len(twice):
            message = f"{self.folder.path} (task {twice[0]}): occurs more than once"
            raise DataError(message, hint="import the corpus again")
        return rows
