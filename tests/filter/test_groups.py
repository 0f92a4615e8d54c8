"""Group statistics: closed form, unequal and broken groups, the loop twin, and how a row grows over visits."""

from __future__ import annotations

import itertools
import math
import random

import polars as pl
import pytest
from support.curation_data import HALF, RIGHT, WRONG, score_frame, score_row

from toolsample_cli.errors import DataError
from toolsample_cli.filter import statistics
from toolsample_cli.shards import schema


def one(rows: list[dict]) -> dict:
    return statistics.statistics(schema.frame(schema.SCORES, rows)).row(0, named=True)


def test_statistics_worked_by_hand():
    """Four completions: 4, 4, 2.5 and -3; population variance, components over their maxima."""
    row = one([score_row("a", i, o) for i, o in enumerate([RIGHT, RIGHT, HALF, WRONG])])
    assert (row["n"], row["n_error"], row["n_exact"]) == (4, 0, 2)
    assert row["reward_mean"] == 1.875
    assert row["reward_var"] == pytest.approx((2 * 2.125**2 + 0.625**2 + 4.875**2) / 4)
    assert (row["name_mean"], row["name_var"]) == (0.75, 0.1875)
    assert (row["value_mean"], row["format_mean"]) == (pytest.approx(2.5 / 4), 0.75)


def test_errored_rollouts_count_nowhere_else():
    """Their zero-filled components do not pull any mean."""
    rows = [score_row("a", 0, RIGHT), score_row("a", 1, None, format=0.0, name=0.0), score_row("a", 2, None)]
    row = one(rows)
    assert (row["n"], row["n_error"], row["n_exact"], row["reward_mean"]) == (1, 2, 1, 4.0)
    assert (row["name_mean"], row["format_mean"]) == (1.0, 1.0)


def test_a_group_of_one_has_no_variance_and_an_empty_one_no_mean():
    """Null, never 0: a spread that was not seen is not a spread of nothing."""
    single, empty = one([score_row("a", 0, RIGHT)]), one([score_row("b", 0, None)])
    assert single["reward_var"] is None and single["name_var"] is None and single["reward_mean"] == 4.0
    assert empty["reward_mean"] is None and empty["reward_var"] is None and (empty["n"], empty["n_error"]) == (0, 1)


def test_equal_rewards_have_exactly_no_variance():
    """Also where the mean is no binary fraction, so that flat groups are recognised."""
    row = one([score_row("a", i, HALF, reward=7 / 3) for i in range(7)])
    assert row["reward_var"] == 0.0 and row["value_var"] == 0.0


def test_a_task_without_gold_call_has_no_components_but_format():
    """Their maxima are null or 0; the bounds are the task's own."""
    answer = dict(name=None, name_max=None, key=None, key_max=None, value=None, value_max=0.0)
    row = one([score_row("a", i, RIGHT, reward=1.0, reward_min=0.0, reward_max=1.0, **answer) for i in range(3)])
    assert row["name_mean"] is None and row["value_mean"] is None and row["format_mean"] == 1.0
    assert (row["reward_min"], row["reward_max"]) == (0.0, 1.0)


def twin(rows: list[dict]) -> dict:
    scored = [row for row in rows if row["reward"] is not None]
    found = {"n": len(scored), "n_error": len(rows) - len(scored), "n_exact": sum(row["exact"] for row in scored)}
    values = {"reward": [row["reward"] for row in scored]}
    for name in schema.COMPONENTS:
        values[name] = [row[name] / row[f"{name}_max"] for row in scored if row[f"{name}_max"]]
    for name, numbers in values.items():
        mean = sum(numbers) / len(numbers) if numbers else None
        found[f"{name}_mean"] = mean
        found[f"{name}_var"] = sum((x - mean) ** 2 for x in numbers) / len(numbers) if len(numbers) > 1 else None
    return found


def answers(rows: list[dict]) -> dict:
    """Best of n, majority and pass@k of one group, by counting."""
    scored = [row for row in rows if row["reward"] is not None]
    if not scored:
        return {"reward_best": None, "agreement": None, "majority_right": False}
    texts = [row["calls_json"] for row in scored]
    most = max(texts, key=texts.count)  # the first of equals
    found = {"reward_best": max(row["reward"] for row in scored), "agreement": texts.count(most) / len(texts)}
    found["majority_right"] = any(row["exact"] for row in scored if row["calls_json"] == most)
    for k in (2, 4, 8):
        draws = list(itertools.combinations([row["exact"] for row in scored], k))
        found[f"pass_at_{k}"] = sum(map(any, draws)) / len(draws) if draws else None
    return found


def test_random_groups_meet_the_loop_twin():
    """60 tasks of 1 to 9 completions, mixed with errors and tasks without arguments, in shuffled task order."""
    draw = random.Random(5)
    rows = {}
    for task in range(60):
        bare = dict(value=0.0, value_max=0.0) if draw.random() < 0.2 else {}
        outcomes = draw.choices([RIGHT, HALF, WRONG, None], k=draw.randint(1, 9))
        made = [score_row(f"t{task}", i, o, **bare) for i, o in enumerate(outcomes)]
        other = {RIGHT: "[0]", HALF: '[{"a":1}]', WRONG: "[]", None: "[]"}
        rows[f"t{task}"] = [{**row, "calls_json": other[o]} for row, o in zip(made, outcomes, strict=True)]
    frame = statistics.statistics(schema.frame(schema.SCORES, [row for task in rows.values() for row in task]))
    assert frame["task_id"].to_list() == list(rows)
    for row in frame.iter_rows(named=True):
        mine = rows[row["task_id"]]
        for name, expected in (twin(mine) | answers(mine)).items():
            assert (row[name] is None) == (expected is None), name
            assert expected is None or math.isclose(row[name], expected, rel_tol=1e-12, abs_tol=1e-12), name


class TestVisits:
    def grow(self, *visits: tuple[str, list]) -> dict:
        """Visits of one slot: (task id, outcomes) each round."""
        prior = None
        for round, (task, outcomes) in enumerate(visits):
            seen = statistics.visited(statistics.statistics(score_frame({task: outcomes}, round=round)), prior)
            prior = seen.select(statistics.PRIOR)
        return seen.row(0, named=True)

    def test_misses_add_up_until_a_right_one(self):
        assert self.grow(("a", [WRONG] * 8), ("a", [HALF] * 3))["misses"] == 11
        assert self.grow(("a", [WRONG] * 8), ("a", [RIGHT, WRONG]))["misses"] == 0

    def test_another_form_starts_its_own_count(self):
        row = self.grow(("a", [WRONG] * 8), ("a@2shot", [WRONG] * 4))
        assert (row["misses"], row["flat_visits"], row["visits"], row["shots"]) == (4, 1, 2, 2)

    def test_flat_visits_count_one_side_at_a_time(self):
        assert self.grow(("a", [RIGHT] * 4), ("a", [RIGHT] * 4))["flat_visits"] == 2
        assert self.grow(("a", [WRONG] * 4), ("a", [WRONG] * 4), ("a", [RIGHT] * 4))["flat_visits"] == 1
        assert self.grow(("a", [RIGHT] * 4), ("a", [WRONG] * 4))["flat_visits"] == 1
        assert self.grow(("a", [WRONG] * 4), ("a", [RIGHT, WRONG]))["flat_visits"] == 0

    def test_an_errored_visit_changes_no_count(self):
        row = self.grow(("a", [WRONG] * 4), ("a", [None] * 4))
        assert (row["misses"], row["flat_visits"], row["visits"], row["last_round"]) == (4, 1, 2, 1)

    def test_the_same_round_twice_is_refused(self):
        found = statistics.statistics(score_frame({"a": [RIGHT]}, round=3))
        prior = statistics.visited(found, None).select(statistics.PRIOR)
        with pytest.raises(DataError, match="task a: these scores are of round 3"):
            statistics.visited(found, prior)


def test_rows_keep_the_contract():
    """Statistics with a verdict are a `groups` shard; every column of both constants exists."""
    assert set(statistics.COLUMNS) <= set(schema.SCORES.schema)
    assert set(statistics.STATISTICS) | set(statistics.PRIOR) <= set(schema.GROUPS.schema)
    assert isinstance(statistics.statistics(pl.DataFrame(schema=schema.SCORES.schema)), pl.DataFrame)
