"""Draws the next round's tasks from corpus and groups, streaming both; hard ones get their demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toolsample_cli import schema
from toolsample_cli.config import CurriculumConfig, FilterConfig
from toolsample_cli.curriculum import State, lag
from toolsample_cli.draw import Draw, Mix, hash_ids, race, uniforms
from toolsample_cli.errors import DataError
from toolsample_cli.selection import METHODS, unvisited_importance
from toolsample_cli.shards import Folder, open_folder
from toolsample_cli.stages.common import Options
from toolsample_cli.stages.demonstrations import Sources, with_demonstrations

TASKS_PER_SHARD = 4096


@dataclass(frozen=True)
class Corpus:
    """The zero-shot tasks to draw from: hashes of their ids, and an identity that no re-sharding changes."""

    folder: Folder
    hashes: np.ndarray  # sorted
    identity: dict[str, Any]
    allowed: pl.Series | None  # ids that --limit and --ids leave

    @property
    def rows(self) -> int:
        """Tasks in the corpus."""
        return len(self.hashes)

    @classmethod
    def open(cls, path: Path, options: Options, mix: Mix | None) -> Corpus:
        """Read the ids once. DataError for test data, few-shot forms and an empty corpus."""
        folder = open_folder(path, schema.TASKS)
        wanted, left = options.wanted_ids(), options.limit
        hashes, allowed = [], []
        for shard, frame in folder.frames(["task_id", "split", "parent_task_id"]):
            cls.refuse_test(shard.path, frame)
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
        every = np.sort(np.concatenate(hashes))
        total = int(every.sum(dtype=np.uint64))
        identity = {"tasks": len(every), "fingerprint": f"{total:016x}"}
        return cls(folder, every, identity, pl.concat(allowed) if allowed else None)

    @staticmethod
    def refuse_test(path: Path, frame: pl.DataFrame) -> None:
        """DataError naming the first row that is marked as benchmark test data."""
        test = frame.with_row_index("row").filter(pl.col("split") == "test")
        if test.height:
            raise DataError(
                f"{path} row {test['row'][0] + 1} (task {test['task_id'][0]}): benchmark test data is not trained on",
                hint="leave rows with split = test out of the corpus, or import them with --split train",
            )


@dataclass(frozen=True)
class Drawn:
    """The next round's tasks and how they came about."""

    rows: pl.DataFrame
    counts: Counter[str] = field(default_factory=Counter)

    def shards(self) -> Iterator[pl.DataFrame]:
        """Frames of at most TASKS_PER_SHARD tasks."""
        for start in range(0, self.rows.height, TASKS_PER_SHARD):
            yield self.rows.slice(start, TASKS_PER_SHARD)


def next_tasks(corpus: Corpus, sources: Sources, state: State, config: CurriculumConfig, mix: Mix | None) -> Drawn:
    """The tasks of round `state.round + 1`, sorted by slot, hard ones in few-shot form."""
    groups = sources.groups
    first = _waiting(corpus, state, config)
    draw = Draw(config.tasks_per_round - len(first), mix)
    shut = pl.Series([*first, *state.dropped], dtype=pl.String).implode()
    for candidates in _candidates(corpus, groups, state, config, mix):
        candidates = candidates.filter(~pl.col("task_id").is_in(shut))
        if corpus.allowed is not None:
            candidates = candidates.filter(pl.col("task_id").is_in(corpus.allowed.implode()))
        draw.offer(candidates)
    ids = pl.concat([pl.Series("task_id", first, dtype=pl.String), draw.result()["task_id"]])
    rows = _rows(corpus, ids)
    counts = Counter({"waiting first": len(first)}) if first else Counter()
    return Drawn(with_demonstrations(rows, sources, state, config, counts), counts)


def _waiting(corpus: Corpus, state: State, config: CurriculumConfig) -> list[str]:
    waiting = pl.Series(sorted(slot for slot, entry in state.hard.items() if entry.waiting), dtype=pl.String)
    if corpus.allowed is not None:
        waiting = waiting.filter(waiting.is_in(corpus.allowed.implode()))
    most = int(config.hard_share * config.tasks_per_round)
    order = np.argsort(uniforms(hash_ids(waiting), config.seed, state.round + 1), kind="stable")
    return waiting.gather(order[:most]).to_list()


def _candidates(
    corpus: Corpus, groups: Folder | None, state: State, config: CurriculumConfig, mix: Mix | None
) -> Iterator[pl.DataFrame]:
    """Every task once, with its place in the order: visited ones from the groups, the others from the corpus."""
    mode, fresh = _mode(groups, config)
    further = [mix.column] if mix else []

    def order(ids: pl.Series, importance: np.ndarray, visits: np.ndarray) -> dict[str, np.ndarray]:
        even = np.ones(len(ids))
        first = {"epochs": visits, "rank": -importance, "importance": 0 * even}[mode]
        times = race(hash_ids(ids), importance if mode == "importance" else even, config.seed, state.round + 1)
        return {"first": first.astype(np.float64), "time": times}

    visited = []
    if groups:
        columns = ["slot_id", "n", "importance", "visits", *further, *(f"{c}_mean" for c in schema.COMPONENTS)]
        for shard, frame in groups.frames(columns):
            visited.append(hash_ids(frame["slot_id"]))
            _refuse_foreign(shard.path, frame["slot_id"], visited[-1], corpus)
            if config.weighting == "sample":
                frame = frame.with_columns(pl.col("importance") * lag(state.mastery))
            places = order(frame["slot_id"], frame["importance"].to_numpy(), frame["visits"].to_numpy())
            yield frame.select(pl.col("slot_id").alias("task_id"), *further).with_columns(
                pl.Series(name, values) for name, values in places.items()
            )
    seen = np.sort(np.concatenate(visited)) if visited else np.empty(0, np.uint64)
    for _, frame in corpus.folder.frames(["task_id", *further]):
        frame = frame.filter(pl.Series(~_inside(hash_ids(frame["task_id"]), seen)))
        places = order(frame["task_id"], np.full(frame.height, fresh), np.zeros(frame.height))
        yield frame.with_columns(pl.Series(name, values) for name, values in places.items())


def _mode(groups: Folder | None, config: CurriculumConfig) -> tuple[str, float]:
    """How to draw, and the importance of a task never visited."""
    method = groups.config.get("method") if groups else "none"
    if method not in METHODS:
        method = "rds"  # groups of the user's own making: their importance is what counts
    made = FilterConfig(method=method, floor=groups.config.get("floor", FilterConfig.floor) if groups else 0.0)
    waiting = METHODS[method].delayed and groups is not None and not groups.counts.get("active", 1)
    mode = config.draw if config.draw != "auto" else ("epochs" if waiting else METHODS[method].draw)
    return mode, unvisited_importance(made)


def _inside(hashes: np.ndarray, among: np.ndarray) -> np.ndarray:
    if not len(among):
        return np.zeros(len(hashes), bool)
    return among[np.minimum(np.searchsorted(among, hashes), len(among) - 1)] == hashes


def _refuse_foreign(path: Path, slots: pl.Series, hashes: np.ndarray, corpus: Corpus) -> None:
    foreign = slots.filter(pl.Series(~_inside(hashes, corpus.hashes)))
    if len(foreign):
        raise DataError(
            f"{path} (task {foreign[0]}): not in the corpus {corpus.folder.path}, as {len(foreign)} in this shard",
            hint="groups and history must come from tasks of this corpus",
        )


def _rows(corpus: Corpus, ids: pl.Series) -> pl.DataFrame:
    frames = []
    for shard in corpus.folder.shards:
        scan = pl.scan_parquet(shard.path, glob=False, hive_partitioning=False)
        found = scan.filter(pl.col("task_id").is_in(ids.implode())).collect()
        frames.append(schema.check(schema.TASKS, found, str(shard.path)).select(list(schema.TASKS.schema)))
    rows = pl.concat(frames).sort("task_id")
    twice = rows["task_id"].filter(rows["task_id"].is_duplicated())
    if len(twice):
        raise DataError(
            f"{corpus.folder.path} (task {twice[0]}): occurs more than once", hint="import the corpus again"
        )
    return rows
