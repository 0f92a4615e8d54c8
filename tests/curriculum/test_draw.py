"""The draw: probabilities, repeatability, independence of the layout, shares, and ids of any kind."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolsample_cli.curriculum.sampling import Draw, Mix, race, task_uniforms
from toolsample_cli.errors import ConfigError
from toolsample_cli.hashing import hash_ids

PINNED = [
    "6e789e6aa1b965f4",
    "8507f39e610a2cc8",
    "76a43da370687c03",
    "2251a9bd553258e4",
    "4afa2b73054c8f3a",
    "3350fd2490f4f7d8",
    "95e99ca7059f8500",
]


def candidates(weights: dict[str, float], seed: int, round: int, **columns) -> pl.DataFrame:
    ids = pl.Series("task_id", list(weights), dtype=pl.String)
    times = race(hash_ids(ids), np.array(list(weights.values())), seed, round)
    return pl.DataFrame({"task_id": ids, "first": np.zeros(len(ids)), "time": times, **columns})


def drawn(frames: list[pl.DataFrame], size: int, mix: Mix | None = None) -> list[str]:
    draw = Draw(size, mix)
    for frame in frames:
        draw.offer(frame)
    return draw.result()["task_id"].to_list()


def test_first_places_match_the_importance():
    """Chi-squared over 20,000 rounds: p_i = w_i / sum w. 4 degrees of freedom, 18.47 is the 0.1 % point."""
    weights = {"a": 0.1, "b": 0.2, "c": 0.4, "d": 1.0, "e": 2.3}
    ids, values = pl.Series(list(weights)), np.array(list(weights.values()))
    rounds = 20_000
    counts = np.zeros(5)
    hashes = hash_ids(ids)
    for round in range(rounds):
        counts[np.argmin(race(hashes, values, 7, round))] += 1
    expected = rounds * values / values.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 18.47


def test_pairs_match_drawing_one_by_one():
    """Chi-squared over ordered pairs: p_ij = w_i / S * w_j / (S - w_i). 11 degrees of freedom, 31.26 is 0.1 %."""
    weights = {"a": 0.5, "b": 1.0, "c": 1.5, "d": 3.0}
    names, total, rounds = list(weights), sum(weights.values()), 12_000
    counts = dict.fromkeys([(i, j) for i in names for j in names if i != j], 0)
    hashes, values = hash_ids(pl.Series(names)), np.array(list(weights.values()))
    for round in range(rounds):
        order = np.argsort(race(hashes, values, 1, round))
        counts[names[order[0]], names[order[1]]] += 1
    statistic = 0.0
    for (i, j), count in counts.items():
        expected = rounds * weights[i] / total * weights[j] / (total - weights[i])
        statistic += (count - expected) ** 2 / expected
    assert statistic < 31.26


def test_uniforms_are_uniform_and_independent_over_rounds_and_seeds():
    """256 cells each by chi-squared (0.1 % point of 255 degrees: 330.5), and no correlation between streams."""
    hashes = hash_ids(pl.Series([f"task-{i}" for i in range(40_000)]))
    streams = [task_uniforms(hashes, seed, round) for seed, round in ((0, 0), (0, 1), (1, 0), (2**63 - 1, 9))]
    for stream in streams:
        counts = np.bincount((stream * 256).astype(int), minlength=256)
        assert ((counts - 156.25) ** 2 / 156.25).sum() < 330.5
        assert stream.min() > 0 and stream.max() < 1
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 4 / math.sqrt(40_000)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(0, 20), st.lists(st.integers(1, 19), max_size=4))
def test_the_layout_of_the_corpus_does_not_matter(seed, size, cuts):
    """However 20 tasks are cut into shards and in whatever order these come, the draw is the same list."""
    weights = {f"t{i}": 0.1 + i / 10 for i in range(20)}
    whole = candidates(weights, seed, 3)
    bounds = sorted({0, *cuts, 20})
    parts = [whole[a:b] for a, b in itertools.pairwise(bounds)]
    random.Random(seed).shuffle(parts)
    assert drawn([whole], size) == drawn(parts, size)
    assert len(drawn([whole], size)) == size == len(set(drawn([whole], size)))


def test_the_same_seed_repeats_and_another_differs():
    weights = {f"t{i}": 1.0 for i in range(1000)}
    first = drawn([candidates(weights, 5, 0)], 50)
    assert first == drawn([candidates(weights, 5, 0)], 50)
    assert first != drawn([candidates(weights, 6, 0)], 50) and first != drawn([candidates(weights, 5, 1)], 50)


def test_hashes_are_pinned():
    """A stored run must draw the same tasks with next year's polars: these numbers never change."""
    ids = pl.Series(["", "a", "task-00000001", "übung", "x" * 40, "a\0", "0123456789abcdef"])
    assert [f"{h:016x}" for h in hash_ids(ids)] == PINNED
    assert [f"{h:016x}" for i in range(len(ids)) for h in hash_ids(ids[i : i + 1])] == PINNED
    assert len(hash_ids(pl.Series([], dtype=pl.String))) == 0


def test_importance_zero_comes_last_and_only_when_needed():
    weights = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1e-9}
    assert set(drawn([candidates(weights, 0, 0)], 2)) == {"b", "d"}
    assert len(drawn([candidates(weights, 0, 0)], 9)) == 4


def test_fewer_visits_come_first_whatever_the_race_says():
    """Drawing in epochs: `first` holds the visits."""
    frame = candidates({f"t{i}": 1.0 for i in range(10)}, 0, 0).with_columns(first=pl.Series([2.0] * 5 + [1.0] * 5))
    assert set(drawn([frame[:7], frame[7:]], 5)) == {f"t{i}" for i in range(5, 10)}


UNREADABLE = [
    *("category", "colour:a=1", "source:", "source:a", "source:a=x", "source:a=-1", "source:a=nan", "source:a=inf"),
    *("source:=1", "source:a=1,a=2", "source:a=0"),
]


class TestMix:
    def frame(self, sizes: dict[str, int], seed: int = 0) -> pl.DataFrame:
        names = [f"{value}{i}" for value, count in sizes.items() for i in range(count)]
        values = [value for value, count in sizes.items() for _ in range(count)]
        return candidates(dict.fromkeys(names, 1.0), seed, 0, category=values)

    def counts(self, text: str, sizes: dict[str, int], size: int) -> dict[str, int]:
        frame = self.frame(sizes)
        names = drawn([frame[::2], frame[1::2]], size, Mix.parse(text))
        assert len(set(names)) == len(names) == min(size, frame.height)
        return {value: sum(name.startswith(value) for name in names) for value in sizes}

    def test_named_shares_are_met_exactly(self):
        assert self.counts("category:a=0.5,b=0.3,c=0.2", {"a": 90, "b": 90, "c": 90}, 20) == {"a": 10, "b": 6, "c": 4}

    def test_what_is_not_named_shares_the_rest(self):
        counts = self.counts("category:a=0.5", {"a": 100, "b": 1000, "c": 1000}, 40)
        assert counts["a"] >= 20 and counts["b"] + counts["c"] == 40 - counts["a"]

    def test_a_short_stratum_leaves_its_place_to_the_others(self):
        assert self.counts("category:a=0.9,b=0.1", {"a": 3, "b": 50}, 10) == {"a": 3, "b": 7}

    def test_weights_above_one_are_scaled(self):
        assert Mix.parse("source:x=3,y=1").quotas(64) == {"x": 48, "y": 16}
        assert Mix.parse("source:a=1,b=1,c=1").quotas(64) == {"a": 22, "b": 21, "c": 21}
        assert Mix.parse("") is None

    @pytest.mark.parametrize("text", UNREADABLE)
    def test_what_cannot_be_read_is_refused(self, text):
        with pytest.raises(ConfigError, match="mix = "):
            Mix.parse(text)


def test_importance_decides_over_many_rounds():
    """Inclusion in draws of 3 of 6 follows the order of importance, and the smallest is never starved."""
    weights = {"a": 0.05, "b": 0.2, "c": 0.4, "d": 0.6, "e": 0.8, "f": 1.05}
    hits = dict.fromkeys(weights, 0)
    for round in range(600):
        for name in drawn([candidates(weights, 3, round)], 3):
            hits[name] += 1
    assert list(hits.values()) == sorted(hits.values()) and hits["a"] > 20
