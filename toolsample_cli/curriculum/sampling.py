"""Draws tasks without replacement: the same tasks from the same seed, however the corpus is cut into shards.

Every task gets an exponential variate from a hash of (seed, round, task id), divided by its importance; the k
smallest win. That is an exponential race, in distribution equal to Gumbel top-k and to drawing one by one with
probabilities proportional to importance. A stratum, such as a category, can be given a share of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from toolsample_cli.errors import ConfigError
from toolsample_cli.hashing import splitmix64


def task_uniforms(hashes: np.ndarray, seed: int, round: int) -> np.ndarray:
    """One float64 in (0, 1) an id hash, fresh for every (seed, round)."""
    salt = splitmix64(
        splitmix64(np.array([seed & (2**64 - 1)], np.uint64)) ^ np.array([round & (2**64 - 1)], np.uint64)
    )
    return ((splitmix64(hashes ^ salt) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def race(hashes: np.ndarray, importance: np.ndarray, seed: int, round: int) -> np.ndarray:
    """Finishing time of every task: Exp(1) / importance; infinite where the importance is 0."""
    with np.errstate(divide="ignore"):
        return -np.log(task_uniforms(hashes, seed, round)) / importance


class EpochPlace(NamedTuple):
    """How far a walk through shuffled epochs has come: the epoch, and the key of the last task taken in it."""

    epoch: int = 0
    key: float = 0.0

    def after(self, first: np.ndarray, key: np.ndarray) -> EpochPlace:
        """The place once tasks with these `walk` values were taken."""
        begun = key[first == 1]
        if len(begun):
            return EpochPlace(self.epoch + 1, float(begun.max()))
        taken = key[first == 0]
        return EpochPlace(self.epoch, float(taken.max())) if len(taken) else self


def walk(hashes: np.ndarray, chance: np.ndarray, seed: int, place: EpochPlace) -> tuple[np.ndarray, np.ndarray]:
    """(first, key) of a walk through shuffled epochs that skips each task with probability 1 - chance, by its own coin.

    `first` is 0 for tasks still to come in this epoch, 1 for those of the next, 2 for tasks that are skipped in both;
    `key` is a task's place within its epoch, in (0, 1).
    """
    here, later = (task_uniforms(hashes, seed, -1 - 2 * epoch) for epoch in (place.epoch, place.epoch + 1))
    coin, later_coin = (task_uniforms(hashes, seed, -2 - 2 * epoch) for epoch in (place.epoch, place.epoch + 1))
    now = (here > place.key) & (coin < chance)
    return np.where(now, 0.0, np.where(later_coin < chance, 1.0, 2.0)), np.where(now, here, later)


@dataclass(frozen=True)
class Mix:
    """Shares of the draw by one column of `tasks`: `column` in {source, category}, value -> share in (0, 1]."""

    column: str
    shares: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Mix | None:
        """`column:value=share,...`; None for the empty text.

        Shares above a sum of 1 are weights and are scaled to 1; below it the rest of the draw is free.
        Raises ConfigError for anything else, also for shares that sum to nothing.
        """
        if not text:
            return None
        column, colon, rest = text.partition(":")
        if not colon or column not in ("source", "category"):
            raise ConfigError(f"mix = {text!r}: expected source: or category: first", hint="category:simple=0.5")
        shares: dict[str, float] = {}
        for item in rest.split(","):
            name, _, number = item.rpartition("=")
            try:
                share = float(number)
            except ValueError:
                share = math.nan
            if not name or not 0 <= share < math.inf or name.strip() in shares:
                raise ConfigError(f"mix = {text!r}: cannot read {item!r}", hint="category:simple=0.5,parallel=0.2")
            shares[name.strip()] = share
        total = sum(shares.values())
        if total <= 0:
            raise ConfigError(f"mix = {text!r}: the shares sum to nothing")
        return cls(column, {name: share / max(total, 1.0) for name, share in shares.items()})

    def quotas(self, size: int) -> dict[str, int]:
        """Tasks of each named value in a draw of `size`: largest remainder, ties to the name that sorts first."""
        exact = {name: share * size for name, share in self.shares.items()}
        quotas = {name: math.floor(value) for name, value in exact.items()}
        missing = round(sum(exact.values())) - sum(quotas.values())
        for name in sorted(exact, key=lambda n: (quotas[n] - exact[n], n))[:missing]:
            quotas[name] += 1
        return quotas


ORDER = ("first", "time", "task_id")
FREE = ""  # the stratum of everything without a share of its own


@dataclass
class Shortlist:
    """The `size` best candidates of a stream: `best` in order, then `newer` ones that may still be among them."""

    size: int
    best: pl.DataFrame | None = None
    newer: list[pl.DataFrame] = field(default_factory=list)

    def offer(self, frame: pl.DataFrame) -> None:
        """Take in candidates; most of a long stream ends at the first comparison."""
        if self.best is not None and self.best.height == self.size:
            last = self.best.row(-1, named=True)
            level, early = pl.col("first") == last["first"], pl.col("time") <= last["time"]
            frame = frame.filter((pl.col("first") < last["first"]) | (level & early))
        self.newer.append(frame)
        if sum(part.height for part in self.newer) >= self.size:
            self.settle()

    def settle(self) -> pl.DataFrame:
        """The best so far, in order."""
        parts = [*([] if self.best is None else [self.best]), *self.newer]
        columns = parts[0].columns
        self.best = pl.concat([part.select(columns) for part in parts]).sort(*ORDER).head(self.size)
        self.newer = []
        return self.best


@dataclass
class Draw:
    """The best `size` tasks of a stream of frames, in all and in each stratum; memory is bounded by the draw.

    A candidate is ordered by (`first`, `time`, task_id), smallest first: `first` is 0 or the number of visits for
    drawing in epochs (or what `walk` gives), `time` its race (or its key).
    """

    size: int
    mix: Mix | None = None
    _lists: dict[str, Shortlist] = field(default_factory=dict)

    def offer(self, candidates: pl.DataFrame) -> None:
        """Take in candidates with task_id, first, time and, when there is a mix, its column."""
        if self.size <= 0:
            return
        if self.mix is None:
            self._lists.setdefault(FREE, Shortlist(self.size)).offer(candidates)
            return
        for (value,), frame in candidates.group_by(self.mix.column, maintain_order=True):
            stratum = str(value) if value in self.mix.shares else FREE
            self._lists.setdefault(stratum, Shortlist(self.size)).offer(frame)

    def result(self) -> pl.DataFrame:
        """The drawn candidates, best first: the quota of each stratum, then the best of what is left.

        A stratum with fewer tasks than its quota leaves the rest to the others; a corpus with fewer than `size`
        tasks is drawn whole.
        """
        lists = {name: kept.settle() for name, kept in sorted(self._lists.items())}
        if not lists:
            return pl.DataFrame(schema={"task_id": pl.String, "first": pl.Float64, "time": pl.Float64})
        quotas = self.mix.quotas(self.size) if self.mix else {}
        chosen = [kept.head(quotas[name]) for name, kept in lists.items() if name in quotas]
        taken = sum(frame.height for frame in chosen)
        rest = pl.concat([kept.slice(quotas.get(name, 0)) for name, kept in lists.items()])
        chosen.append(rest.sort(*ORDER).head(self.size - taken))
        return pl.concat(chosen).sort(*ORDER)
