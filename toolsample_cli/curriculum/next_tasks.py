"""Draws the next round's tasks from corpus and groups, streaming both; hard ones get their demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from toolsample_cli.config import CurriculumConfig, FilterConfig
from toolsample_cli.config.settings import nearest
from toolsample_cli.curriculum import hard_tasks
from toolsample_cli.curriculum.corpus import Corpus, inside
from toolsample_cli.curriculum.demonstrations import DemoSources, with_demonstrations
from toolsample_cli.curriculum.mastery import lag
from toolsample_cli.curriculum.sampling import Draw, Mix, race, task_uniforms, walk
from toolsample_cli.curriculum.state import State
from toolsample_cli.errors import ConfigError
from toolsample_cli.filter.decide import METHODS, unvisited_importance
from toolsample_cli.hashing import hash_ids
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder

TASKS_PER_SHARD = 4096


@dataclass(frozen=True)
class Drawn:
    """The next round's tasks, the state that knows which of them no demonstration fits, and how they came about."""

    rows: pl.DataFrame
    state: State
    counts: Counter[str] = field(default_factory=Counter)

    def shards(self) -> Iterator[pl.DataFrame]:
        """Frames of at most TASKS_PER_SHARD tasks."""
        for start in range(0, self.rows.height, TASKS_PER_SHARD):
            yield self.rows.slice(start, TASKS_PER_SHARD)


class DrawMode(NamedTuple):
    """How to draw (`epochs`, `skips`, `importance` or `rank`), and the importance of a task never visited."""

    draw: str
    fresh: float


def next_tasks(corpus: Corpus, sources: DemoSources, state: State, config: CurriculumConfig, mix: Mix | None) -> Drawn:
    """The tasks of round `state.round + 1`, sorted by slot, hard ones in few-shot form."""
    first = _waiting(corpus, state, config)
    mode = _mode(sources.groups, state, config)
    draw = Draw(config.tasks_per_round - len(first), mix)
    shut = pl.Series([*first, *state.dropped], dtype=pl.String).implode()
    values: set[str] = set()
    for candidates in _candidates(corpus, sources.groups, state, config, mix, mode):
        values.update(candidates[mix.column].unique() if mix else ())
        candidates = candidates.filter(~pl.col("task_id").is_in(shut))
        if corpus.allowed is not None:
            candidates = candidates.filter(pl.col("task_id").is_in(corpus.allowed.implode()))
        draw.offer(candidates)
    if mix:
        _refuse_absent(mix, values, corpus, config)
    best = draw.result()
    if mode.draw == "skips":
        state = replace(state, place=state.place.after(best["first"].to_numpy(), best["time"].to_numpy()))
    ids = pl.concat([pl.Series("task_id", first, dtype=pl.String), best["task_id"]])
    made = with_demonstrations(corpus.fetch(ids), ids.to_list(), sources, state, config)
    counts = (Counter({"waiting first": len(first)}) if first else Counter()) + made.facts
    return Drawn(made.rows, hard_tasks.with_fits(state, made.fitted, made.unfit), counts)


def _refuse_absent(mix: Mix, values: set[str], corpus: Corpus, config: CurriculumConfig) -> None:
    for name in sorted(mix.shares.keys() - values):
        raise ConfigError(
            f"mix = {config.mix!r}: no task of {corpus.folder.path} has the {mix.column} {name!r}",
            hint=nearest(name, values) or f"it has {', '.join(sorted(values)[:20])}",
        )


def _waiting(corpus: Corpus, state: State, config: CurriculumConfig) -> list[str]:
    """Hard tasks not yet seen with their demonstrations, at most `hard_share` of the round, in the round's order."""
    waiting = pl.Series(sorted(slot for slot, entry in state.hard.items() if entry.waiting), dtype=pl.String)
    if corpus.allowed is not None:
        waiting = waiting.filter(waiting.is_in(corpus.allowed.implode()))
    most = int(config.hard_share * config.tasks_per_round)
    order = np.argsort(task_uniforms(hash_ids(waiting), config.seed, state.round + 1), kind="stable")
    return waiting.gather(order[:most]).to_list()


def _candidates(
    corpus: Corpus, groups: Folder | None, state: State, config: CurriculumConfig, mix: Mix | None, mode: DrawMode
) -> Iterator[pl.DataFrame]:
    """Every task once, with its place in the order: visited ones from the groups, the others from the corpus."""
    further = [mix.column] if mix else []

    def placed(frame: pl.DataFrame, hashes: np.ndarray, importance: np.ndarray, visits: np.ndarray) -> pl.DataFrame:
        if mode.draw == "skips":
            first, times = walk(hashes, importance, config.seed, state.place)
        else:
            even = np.ones(len(hashes))
            first = {"epochs": visits, "rank": -importance, "importance": 0 * even}[mode.draw]
            times = race(hashes, importance if mode.draw == "importance" else even, config.seed, state.round + 1)
        return frame.with_columns(pl.Series("first", first.astype(np.float64)), pl.Series("time", times))

    visited = [np.empty(0, np.uint64)]
    if groups:
        columns = ["slot_id", "n", "importance", "visits", *further, *(f"{c}_mean" for c in schema.COMPONENTS)]
        for shard, frame in groups.frames(columns):
            hashes = hash_ids(frame["slot_id"])
            corpus.refuse_foreign(shard.path, frame["slot_id"], hashes)
            visited.append(hashes)
            if config.weighting == "sample":
                frame = frame.with_columns(pl.col("importance") * lag(state.mastery))
            ids = frame.select(pl.col("slot_id").alias("task_id"), *further)
            yield placed(ids, hashes, frame["importance"].to_numpy(), frame["visits"].to_numpy())
    seen = np.sort(np.concatenate(visited))
    for (_, frame), hashes in zip(corpus.folder.frames(["task_id", *further]), corpus.hashes, strict=True):
        new = ~inside(hashes, seen)
        if not new.all():
            frame, hashes = frame.filter(pl.Series(new)), hashes[new]
        yield placed(frame, hashes, np.full(frame.height, mode.fresh), np.zeros(frame.height))


def _mode(groups: Folder | None, state: State, config: CurriculumConfig) -> DrawMode:
    named = groups.config.get("method") if groups else "none"
    ours = named in METHODS
    method = str(named) if ours else "rds"  # groups of the user's own making: their importance is what counts
    made = FilterConfig(method=method, floor=groups.config.get("floor", FilterConfig.floor) if groups else 0.0)
    waiting = ours and METHODS[method].delayed and not state.active
    draw = config.draw if config.draw != "auto" else ("epochs" if waiting else METHODS[method].draw)
    return DrawMode(draw, unvisited_importance(made))
