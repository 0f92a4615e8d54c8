"""Drives the project's own decisions over simulated worlds: draw, filter, weigh, harden, learn, round by round."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from simulated_world import SUB, Settings, World

from toolsample_cli.config import CurriculumConfig, FilterConfig
from toolsample_cli.curriculum import hard_tasks, mastery, reweighting
from toolsample_cli.curriculum.sampling import EpochPlace, race, walk
from toolsample_cli.curriculum.state import EVEN, WEIGHTED, State
from toolsample_cli.filter import decide as selection
from toolsample_cli.filter import statistics
from toolsample_cli.filter.round_facts import round_facts
from toolsample_cli.filter.run_state import RunState
from toolsample_cli.hashing import hash_ids


@dataclass(frozen=True)
class Arm:
    """One way of spending a rollout budget: settings of filter and curriculum that differ from the defaults."""

    filter: dict = field(default_factory=dict)
    curriculum: dict = field(default_factory=dict)


@dataclass
class Fleet:
    """One arm on many worlds in lockstep: their tasks share the frames, told apart by `source` and by their ids.

    Everything is decided world by world; the frames are joint because a polars call costs the same for one world
    as for twenty.
    """

    arm: Arm
    seeds: Sequence[int]
    settings: Settings
    per_round: int = 64
    n: int = 8

    def __post_init__(self) -> None:
        self.worlds = [World(self.settings, seed) for seed in self.seeds]
        self.filter = FilterConfig(**self.arm.filter)
        self.config = CurriculumConfig(**{"tasks_per_round": self.per_round, **self.arm.curriculum})
        self.names = [f"world {seed}" for seed in self.seeds]
        size = self.settings.tasks
        self.ids = pl.Series("slot_id", [f"{seed:03d}-{i:06d}" for seed in self.seeds for i in range(size)])
        self.source = pl.Series("source", np.repeat(self.names, size))
        self.hashes = hash_ids(self.ids)
        self.history: pl.DataFrame | None = None
        first = mastery.first_weights(self.config)
        self.states = [State({}, weights=first) for _ in self.seeds]  # mastery and weights, one a world
        self.hard = State({})  # hard and dropped slots of all worlds
        self.run_states = [RunState() for _ in self.seeds]
        self.places = [EpochPlace() for _ in self.seeds]
        self.number = -1

    def go(self, rounds: int) -> list[dict[str, list[float]]]:
        """Of each world: its value before each round and after the last, the share of dead groups of each round."""
        tracks: list[dict[str, list[float]]] = [{"value": [world.value()], "dead": []} for world in self.worlds]
        for _ in range(rounds):
            dead = self.round()
            for track, world, share in zip(tracks, self.worlds, dead, strict=True):
                track["dead"].append(float(share))
                track["value"].append(world.value())
        return tracks

    def round(self) -> np.ndarray:
        """Draw, roll out, filter, weigh, learn. Returns the share of groups that carry no advantage, a world each."""
        rows = self._draw()  # (world, task) positions in `ids`
        self.number += 1
        tasks = rows % self.settings.tasks
        shots = np.array([self.hard.hard[i].shots if i in self.hard.hard else 0 for i in self._names(rows)])
        shots = shots.reshape(tasks.shape)
        rolled = [w.roll(t, s, self.n) for w, t, s in zip(self.worlds, tasks, shots, strict=True)]
        scores = self._scores(rows, shots, [parts for parts, _ in rolled])
        found = statistics.statistics(scores)
        now = self._decide(found)
        reward = self._rewards(scores, now).reshape(len(self.seeds), self.per_round, self.n)
        spread = reward.std(axis=2, keepdims=True)
        advantage = (reward - reward.mean(axis=2, keepdims=True)) / (spread + 1e-6)
        keep = now["keep"].to_numpy().reshape(tasks.shape)
        for i, world in enumerate(self.worlds):
            world.learn(tasks[i][keep[i]], shots[i][keep[i]], advantage[i][keep[i]], rolled[i][1][keep[i]])
        if self.config.hard != "keep":
            self.hard, _ = hard_tasks.update(replace(self.hard, round=self.number), now, self.config)
        return (spread[..., 0] == 0).mean(axis=1)

    def _names(self, rows: np.ndarray) -> list[str]:
        return self.ids.gather(rows.reshape(-1)).to_list()

    def _decide(self, found: pl.DataFrame) -> pl.DataFrame:
        """Merge with the history and judge; returns this round's groups in their order."""
        prior = None if self.history is None else self.history.select(statistics.PRIOR)
        seen = statistics.visited(found, prior)
        if self.history is not None:
            rest = self.history.join(seen.select("slot_id"), on="slot_id", how="anti").select(seen.columns)
            seen = pl.concat([seen, rest])
        parts = [(pl.lit(True), found, 0)]
        if self.filter.method in ("adarft", "greso"):  # their numbers move: judge each world by its own
            parts = [(pl.col("source") == name, found.filter(source=name), i) for i, name in enumerate(self.names)]
        judged = []
        for mine, facts, i in parts:
            facts = round_facts(facts, self.filter)
            first_epoch = bool((seen.filter(mine, last_round=self.number)["visits"] == 1).all())
            self.run_states[i] = self.run_states[i].after(facts, first_epoch)
            judged.append(selection.decide(seen.filter(mine), self.filter, self.run_states[i], self.number))
        self.history = pl.concat(judged)
        return found.select("slot_id").join(self.history, on="slot_id", how="left", maintain_order="left")

    def _rewards(self, scores: pl.DataFrame, now: pl.DataFrame) -> np.ndarray:
        """Training rewards under the weights in force, which then move on with this round's mastery."""
        if self.config.weighting == "none":
            return reweighting.batch(scores, EVEN, 0.0)["reward"].to_numpy()
        table = pl.DataFrame({f"w_{name}": [s.weights[name] for s in self.states] for name in WEIGHTED})
        each = scores.hstack(table[np.repeat(np.arange(len(self.seeds)), self.per_round * self.n)])
        weights = {name: pl.col(f"w_{name}") for name in WEIGHTED}
        reward = reweighting.batch(each, weights, 0.0)["reward"].to_numpy()
        measured = now.group_by("source", maintain_order=True).agg(**mastery.measures()).drop("source")
        for i, row in enumerate(measured.iter_rows(named=True)):
            known = {name: mean for name, mean in row.items() if mean is not None}
            self.states[i] = mastery.advance(self.states[i], known, self.config)
        return reward

    def _draw(self) -> np.ndarray:
        """Positions in `ids` of the next tasks, (world, task): the same race as `draw`, all worlds at once."""
        importance = np.full(len(self.ids), selection.unvisited_importance(self.filter))
        visits = np.zeros(len(self.ids))
        method = selection.METHODS[self.filter.method]
        if self.history is not None:
            where = self._rows(self.history["slot_id"])
            importance[where] = self.history["importance"].to_numpy()
            visits[where] = self.history["visits"].to_numpy()
        even = np.ones(len(self.ids))
        if method.draw == "skips":
            first, time = self._walk(importance)
        else:
            first = {"epochs": visits, "rank": -importance, "importance": 0 * even}[method.draw]
            time = race(self.hashes, importance if method.draw == "importance" else even, 0, self.number + 1)
        first = first.astype(float)
        first[self._rows(pl.Series(self._waiting(), dtype=pl.String))] = -np.inf
        first[self._rows(pl.Series(list(self.hard.dropped), dtype=pl.String))] = np.inf
        shape = (len(self.seeds), self.settings.tasks)
        best = np.lexsort((time.reshape(shape), first.reshape(shape)))[:, : self.per_round]
        rows = best + self.settings.tasks * np.arange(len(self.seeds))[:, None]
        if method.draw == "skips":
            self.places = [place.after(first[mine], time[mine]) for place, mine in zip(self.places, rows, strict=True)]
        return rows

    def _walk(self, importance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`walk` of every world from its own place."""
        shape = (len(self.seeds), self.settings.tasks)
        each = zip(self.hashes.reshape(shape), importance.reshape(shape), self.places, strict=True)
        walked = [walk(hashes, chance, 0, place) for hashes, chance, place in each]
        return np.concatenate([first for first, _ in walked]), np.concatenate([key for _, key in walked])

    def _waiting(self) -> list[str]:
        """Hard tasks that come first, at most the configured share of each world's draw."""
        most, chosen = int(self.config.hard_share * self.per_round), []
        waiting = sorted(slot for slot, entry in self.hard.hard.items() if entry.waiting)
        for _, slots in itertools.groupby(waiting, key=lambda slot: slot[:3]):
            chosen += list(slots)[:most]
        return chosen

    def _rows(self, slots: pl.Series) -> np.ndarray:
        world = slots.str.slice(0, 3).cast(pl.Int64).to_numpy() - self.seeds[0]
        return world * self.settings.tasks + slots.str.slice(4).cast(pl.Int64).to_numpy()

    def _scores(self, rows: np.ndarray, shots: np.ndarray, rolled: list[dict[str, np.ndarray]]) -> pl.DataFrame:
        where = np.repeat(rows.reshape(-1), self.n)
        call = np.concatenate([world.has_call for world in self.worlds])[where]
        wanted = np.concatenate([world.arguments for world in self.worlds])[where].astype(float)
        flat = {name: np.concatenate([parts[name].reshape(-1) for parts in rolled]) for name in SUB}
        total = flat["name"] + flat["key"] + flat["value"]
        right = (flat["format"] == 1) & (~call | (total == 2 + wanted))
        reward = np.where(call, flat["format"] + (6 * total / (2 + wanted) - 3), flat["format"])
        most = {"format": np.ones(len(where)), "name": np.ones(len(where)), "key": np.ones(len(where)), "value": wanted}
        ids = self.ids.gather(where)
        columns = {"rollout_id": ids, "task_id": ids, "slot_id": ids, "source": self.source.gather(where)}
        columns |= {"shots": np.repeat(shots.reshape(-1), self.n).astype(np.int32), "exact": right, "reward": reward}
        columns |= {"round": np.full(len(where), self.number, np.int32)}
        columns |= {"reward_min": np.where(call, -3.0, 0.0), "reward_max": np.where(call, 4.0, 1.0)}
        for name in SUB:
            absent = ~call & (name != "format")
            columns[name] = pl.Series(np.where(absent, np.nan, flat[name]), nan_to_null=True)
            columns[f"{name}_max"] = pl.Series(np.where(absent, np.nan, most[name]), nan_to_null=True)
        return pl.DataFrame(columns).with_columns(
            category=pl.lit("made"), self_example=pl.lit(None, pl.Boolean), calls_json=pl.col("exact").cast(pl.String)
        )
