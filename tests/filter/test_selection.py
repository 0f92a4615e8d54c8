"""Every selection method: closed forms on the paper's four cells, its own loop twin, and the rules common to all."""

from __future__ import annotations

import math
import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolsample_cli.config import FilterConfig
from toolsample_cli.filter import decide as selection
from toolsample_cli.filter import statistics
from toolsample_cli.filter.decide import METHODS, decide
from toolsample_cli.filter.round_facts import round_facts
from toolsample_cli.filter.run_state import RoundFacts, RunState
from toolsample_cli.shards import schema

ON = RunState()

CELLS = {
    "mastered": [4.0] * 8,
    "unstable": [4.0] * 7 + [-3.0],
    "learnable": [-3.0] * 4 + [0.5, 0.5, 4.0, 4.0],
    "stuck": [-3.0] * 8,
}
"""Rewards of call items, eight completions each: means 4, 3.125, -0.375, -3; variances 0, 5.359375, 8.421875, 0."""


def frame(
    named: dict[str, list[float | None]], low: float = -3.0, high: float = 4.0, calls: list[str] | None = None
) -> pl.DataFrame:
    """Visited groups with these rewards; a reward at the upper bound counts as exactly right."""
    rows = []
    for task, rewards in named.items():
        for sample, reward in enumerate(rewards):
            share = None if reward is None else (reward - low) / (high - low)
            row = dict.fromkeys(schema.SCORES.schema)
            row |= dict(task_id=task, slot_id=task, shots=0, source="s", category="c", round=0, sample=sample)
            row |= dict(
                reward=reward, reward_min=low, reward_max=high, exact=None if reward is None else reward == high
            )
            row |= dict(format=None if reward is None else float(share > 0), format_max=1.0, name=share, name_max=1.0)
            row |= dict(calls_json=calls[sample] if calls else f"[{reward}, {sample if share != 1 else 0}]")
            rows.append(row)
    return statistics.visited(statistics.statistics(pl.DataFrame(rows, schema=schema.SCORES.schema)), None)


def verdicts(method: str, named=CELLS, standing=ON, low=-3.0, high=4.0, **changes) -> dict[str, dict]:
    config = FilterConfig(method=method, **changes)
    return {row["task_id"]: row for row in decide(frame(named, low, high), config, standing, 0).iter_rows(named=True)}


def importances(method: str, **changes) -> list[float]:
    return [round(row["importance"], 6) for row in verdicts(method, **changes).values()]


class TestClosedForms:
    """Order: mastered, unstable, learnable, stuck. State = (4 - mean) / 7: 0, 0.125, 0.625, 1.

    Potential = variance / 12.25: 0, 0.4375, 0.6875, 0.
    """

    def test_rds_is_the_mean_of_state_and_potential_plus_the_floor(self):
        assert importances("rds") == [0.05, 0.33125, 0.70625, 0.55]
        reasons = [row["reason"] for row in verdicts("rds", drop_flat=False).values()]
        assert list(verdicts("rds")) == reasons

    def test_lambda_one_is_the_state_and_lambda_zero_the_potential(self):
        assert importances("rds", state_weight=1.0, floor=0.0) == [0.0, 0.125, 0.625, 1.0]
        assert importances("rds", state_weight=0.0, floor=0.0) == [0.0, 0.4375, 0.6875, 0.0]

    def test_rds_cond_divides_by_the_variance_possible_at_that_mean(self):
        # unstable is binary, so 1; learnable: 8.421875 / (4.375 * 2.625) = 0.733333
        assert importances("rds-cond", floor=0.0) == [0.0, 0.5625, 0.679167, 0.5]

    def test_rds_mult_wants_both(self):
        assert importances("rds-mult", floor=0.0) == [0.0, 0.054688, 0.429688, 0.0]
        assert importances("rds-mult", floor=0.05)[3] == 0.1  # 1 * (0.05 + 0) + 0.05

    def test_rds_hard_rests_the_mastered(self):
        assert importances("rds-hard") == [0.05, 1.0, 1.0, 1.0]

    def test_rds_sub_averages_over_the_sub_tasks_there_are(self):
        # format and name only; unstable: format 7/8 (variance 7/64), name 7/8; learnable: format 1/2, name 0.375
        unstable = 0.5 * 0.125 + 0.5 * 0.4375
        learnable = (0.5 * 0.5 + 0.5 * 1 + 0.5 * (1 - 0.375) + 0.5 * 4 * 8.421875 / 49) / 2
        assert importances("rds-sub", floor=0.0) == [0.0, round(unstable, 6), round(learnable, 6), 0.5]

    @pytest.mark.parametrize(
        ("method", "kept"),
        [
            ("none", "mastered unstable learnable stuck"),
            ("dapo", "unstable learnable"),
            ("speed", "unstable learnable"),
            ("greso", "unstable learnable"),
            ("pools", "unstable learnable"),
            ("vcrl", "unstable learnable"),
            ("adarft", "unstable learnable"),
            ("pcl", "unstable learnable"),
            ("rds", "unstable learnable"),
        ],
    )
    def test_who_keeps_what(self, method, kept):
        assert " ".join(task for task, row in verdicts(method).items() if row["keep"]) == kept

    def test_vcrl_is_the_variance_of_k_of_n_over_its_largest(self):
        # 7 of 8: 7 / 16; 2 of 8: 12 / 16; kappa between them drops the first
        assert importances("vcrl", floor=0.0) == [0.0, 0.4375, 0.75, 0.0]
        assert verdicts("vcrl", kappa=0.5)["unstable"]["reason"] == "narrow"
        odd = verdicts("vcrl", {"t": [4.0, 4.0, -3.0]}, floor=0.0)["t"]  # 2 of 3 is the largest for an odd group
        assert odd["importance"] == 1.0

    def test_speed_and_pcl_prefer_the_half(self):
        assert importances("speed", floor=0.0) == [0.0, 0.4375, 0.75, 0.0]
        assert importances("pcl", floor=0.0) == [0.0, 0.25, 0.5, 0.0]

    def test_greso_halves_the_chance_with_every_flat_visit(self):
        assert importances("greso") == [0.5, 1.0, 1.0, 0.5]
        seen = frame(CELLS).with_columns(flat_visits=pl.Series([3, 0, 0, 9], dtype=pl.Int32))
        chances = decide(seen, FilterConfig(method="greso"), ON, 0)["importance"].to_list()
        assert chances == [0.125, 1.0, 1.0, 0.01]

    def test_adarft_wants_the_target_difficulty(self):
        assert importances("adarft", standing=RunState(adarft_target=60.0)) == [0.4, 0.525, 0.975, 0.6]

    def test_pools_weigh_easy_and_hard_at_a_tenth(self):
        assert importances("pools") == [0.1, 0.1, 1.0, 0.1]
        assert [row["reason"] for row in verdicts("pools", drop_flat=False).values()] == [
            "solved",
            "easy",
            "normal",
            "unsolved",
        ]

    def test_the_reward_as_metric(self):
        """A group with spread in the reward but nothing right counts as mixed only for the reward."""
        named = {"t": [-3.0, 0.5, 0.5, 0.5]}
        assert not verdicts("dapo", named)["t"]["keep"]
        assert verdicts("dapo", named, metric="reward")["t"]["keep"]
        assert verdicts("pcl", named, metric="reward", floor=0.0)["t"]["importance"] == pytest.approx(0.75)


def twin(method: str, rewards: list[float], low: float, high: float, config: FilterConfig, at: RunState):
    """(importance without the common floor, keep) of one scored group of two or more, in plain Python."""
    n, mean = len(rewards), sum(rewards) / len(rewards)
    var = sum((r - mean) ** 2 for r in rewards) / n
    right, span, share = sum(r == high for r in rewards), high - low, config.state_weight
    state, potential, p = (high - mean) / span, var / (span**2 / 4), right / n
    flat, easy, hard = right in (0, n), right == n, right == 0
    cond = var / max((high - mean) * (mean - low), 1e-6)
    scaled = [(r - low) / span for r in rewards]
    parts = [[float(s > 0) for s in scaled], scaled]  # the components that `frame` gives: format and name
    sub = [share * (1 - sum(x) / n) + (1 - share) * 4 * (sum(v * v for v in x) / n - (sum(x) / n) ** 2) for x in parts]
    chance = max(0.01, at.greso_easy if easy else at.greso_hard if hard else 1.0)
    return {
        "none": (1, True),
        "rds": (share * state + (1 - share) * potential, True),
        "rds-hard": (0.05 if mean >= high - 0.1 and var <= 0.01 else 1, True),
        "rds-mult": (state * (config.floor + potential), True),
        "rds-cond": (share * state + (1 - share) * cond, True),
        "rds-sub": (sum(sub) / 2, True),
        "dapo": (1, not flat),
        "vcrl": (right * (n - right) / (n * n // 4), right * (n - right) / (n * n // 4) >= config.kappa),
        "greso": (chance, not flat),
        "speed": (4 * p * (1 - p), not flat),
        "adarft": (1 - abs(100 * state - at.adarft_target) / 100, True),
        "pcl": (1 - 2 * abs(p - 0.5), True),
        "pools": (0.1 if p >= 0.8 or p <= 0.2 else 1, not flat),
    }[method]


@pytest.mark.parametrize("method", METHODS)
def test_random_groups_meet_the_loop_twin(method):
    """200 groups of 2 to 12 with rewards on the scale of either kind of item."""
    draw = random.Random(sum(map(ord, method)))
    standing = RunState(adarft_target=37.0, greso_easy=0.3, greso_hard=0.2)
    config = FilterConfig(method=method, state_weight=0.3, kappa=0.4)
    for low, high, steps in ((-3.0, 4.0, 7), (0.0, 1.0, 1)):
        values = [low + (high - low) * i / steps for i in range(steps + 1)]
        named = {f"t{i}": draw.choices(values, k=draw.randint(2, 12)) for i in range(100)}
        for row in decide(frame(named, low, high), config, standing, 0).iter_rows(named=True):
            importance, keep = twin(method, named[row["task_id"]], low, high, config, standing)
            floor = config.floor if METHODS[method].floored else 0.0
            assert math.isclose(row["importance"], importance + floor, rel_tol=1e-9, abs_tol=1e-9), row
            rewards = named[row["task_id"]]
            assert row["keep"] == (keep and (method == "none" or len(set(rewards)) > 1)), row


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7), st.floats(-3, 3.5), st.floats(0.01, 0.5))
def test_rds_cond_is_one_for_every_binary_reward(right, low, gap):
    """Two values at the bounds: the variance is all the mean allows, so only the mean decides."""
    high = low + gap
    row = verdicts("rds-cond", {"t": [high] * right + [low] * (8 - right)}, low=low, high=high)["t"]
    assert row["potential"] == pytest.approx(1.0, abs=2e-3)  # the denominator's guard of 1e-6 shows in tiny ranges


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 7), min_size=2, max_size=9))
def test_items_with_other_bounds_are_judged_alike(steps):
    """The same shares of [0, 1] and of [-3, 4] give the same state, potential and importance."""
    for method in ("rds", "rds-cond", "pcl", "vcrl"):
        call = verdicts(method, {"t": [-3.0 + s for s in steps]})["t"]
        text = verdicts(method, {"t": [s / 7 if s < 7 else 1.0 for s in steps]}, low=0.0, high=1.0)["t"]
        for column in ("state", "potential", "importance"):
            assert call[column] == pytest.approx(text[column], abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
class TestCommonRules:
    def test_every_verdict_keeps_the_contract(self, method):
        """Any mixture of groups gives a valid `groups` shard: no null verdict, no negative importance."""
        named = {**CELLS, "empty": [None, None], "single": [4.0], "alone": [-3.0, None], "pair": [0.5, 0.5]}
        found = decide(frame(named), FilterConfig(method=method), ON, 0)
        schema.check(schema.GROUPS, found, method)

    def test_errored_and_single_groups(self, method):
        found = verdicts(method, {"empty": [None] * 4, "single": [4.0], "alone": [-3.0, None]})
        assert [row["reason"] for row in found.values()] == ["errored", "single", "single"]
        assert not any(row["keep"] for row in found.values())
        fresh = selection.unvisited_importance(FilterConfig(method=method))
        assert found["empty"]["importance"] == fresh and found["single"]["importance"] <= fresh

    def test_drop_flat_drops_equal_rewards(self, method):
        found = verdicts(method, {**CELLS, "equal": [0.5] * 4}, drop_flat=True)
        if METHODS[method].whole:
            assert all(row["keep"] for row in found.values())
            return
        assert not any(found[task]["keep"] for task in ("mastered", "stuck", "equal"))
        assert found["equal"]["reason"] == "flat" and found["learnable"]["keep"]

    def test_a_task_of_an_earlier_round_is_absent(self, method):
        """It keeps its importance but has nothing to train on."""
        config = FilterConfig(method=method)
        now, later = (decide(frame(CELLS), config, ON, round) for round in (0, 1))
        assert later["reason"].unique().to_list() == ["absent"] and not later["keep"].any()
        assert later["importance"].equals(now["importance"])


def test_the_table_and_the_flag_agree():
    """Every method can be typed, and nothing else."""
    [choices] = [f.metadata["choices"] for f in FilterConfig.__dataclass_fields__.values() if f.name == "method"]
    assert list(choices) == list(METHODS)
    for method in METHODS.values():
        assert method.rule.__doc__


class TestRunState:
    def test_record_and_read_are_inverse(self):
        at = RunState(12.5, 0.4, 0.6)
        assert RunState.read(at.record()) == at and RunState.read({}) == RunState()

    def test_adarft_moves_its_target_by_tanh(self):
        moved = RunState().after(RoundFacts(0.9), first_epoch=True)
        assert moved.adarft_target == pytest.approx(50 * math.tanh(0.8))
        assert RunState().after(RoundFacts(0.1), first_epoch=True).adarft_target == 0.0

    def test_greso_adapts_after_the_first_epoch(self):
        crowded = RoundFacts(0.5, easy=0.25 / 3, hard=0.0)  # on its target: filter more, as the code does
        assert RunState().after(crowded, first_epoch=True).greso_easy == 0.5
        moved = RunState().after(crowded, first_epoch=False)
        assert (moved.greso_easy, moved.greso_hard) == (0.49, 0.51)

    def test_facts_of_a_round(self):
        """Errored groups count nowhere; one of ten right is neither solved nor unsolved."""
        named = {"a": [4.0], "b": [2.0] * 3, "x": [None], "c": [1.0], "d": [0.0], "e": [4.0, *[-3.0] * 9]}
        facts = round_facts(frame(named), FilterConfig())
        assert facts.easy == pytest.approx(1 / 5) and facts.hard == pytest.approx(3 / 5)
        assert round_facts(frame({"x": [None]}), FilterConfig()) == RoundFacts()


class TestVerdict:
    def verdict(self, rewards, calls=None):
        rows = frame({"t": rewards}, calls=calls).to_dicts()
        return rows[0]["verdict"]

    def test_four_words(self):
        assert self.verdict([4.0] * 4) == "mastered" and self.verdict([-3.0] * 4) == "hopeless"
        assert self.verdict([4.0, -3.0, 0.5]) == "train" and self.verdict([0.5, -3.0]) == "train"
        assert self.verdict([4.0]) == self.verdict([None, None]) == "doubtful"

    def test_agreement_on_another_call_casts_doubt_on_the_gold(self):
        assert self.verdict([-2.0] * 4, ['[{"name":"g"}]'] * 4) == "doubtful"
        assert self.verdict([-2.0] * 3 + [0.5], ['[{"name":"g"}]'] * 3 + ["[]"]) == "doubtful"
        assert self.verdict([-2.0] * 4, ["[]"] * 4) == "hopeless"  # silence is no answer of its own
        assert self.verdict([-2.0] * 2 + [0.5] * 2, ['[{"name":"g"}]'] * 2 + ['[{"name":"h"}]'] * 2) == "train"
        assert self.verdict([4.0, -2.0, -2.0, -2.0], ["[1]", "[2]", "[2]", "[2]"]) == "train"
