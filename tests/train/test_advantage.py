"""Advantages: numbers worked by hand, a loop twin, and what a small bonus may and may not do."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolsample_cli.train.advantage import ADVANTAGES, BONUS_MODES, advantages

ONE = np.zeros(4, dtype=int)


def test_group_std_by_hand():
    """Rewards 4, 4, 1, -2: mean 1.75, population variance (5.0625 * 2 + 0.5625 + 14.0625) / 4 = 6.1875."""
    got = advantages(np.array([4.0, 4, 1, -2]), ONE).value_R
    std = 6.1875**0.5 + 1e-6
    np.testing.assert_allclose(got, [2.25 / std, 2.25 / std, -0.75 / std, -3.75 / std], rtol=1e-14)


def test_group_mean_and_leave_one_out_by_hand():
    rewards = np.array([4.0, 4, 1, -2])
    np.testing.assert_allclose(advantages(rewards, ONE, method="group_mean").value_R, [2.25, 2.25, -0.75, -3.75])
    others = [(4 + 1 - 2) / 3, (4 + 1 - 2) / 3, (4 + 4 - 2) / 3, (4 + 4 + 1) / 3]
    np.testing.assert_allclose(advantages(rewards, ONE, method="leave_one_out").value_R, rewards - others)


def test_gdpo_keeps_apart_what_the_sum_confuses():
    """Scores (1, 0) and (0, 1) have one sum; normalised apart, the rarer success weighs more."""
    first, second = np.array([1.0, 0, 0, 0]), np.array([0.0, 1, 1, 0])
    rewards = first + second
    plain = advantages(rewards, ONE).value_R
    assert plain[0] == plain[1]
    ones = np.ones(4)
    got = advantages(rewards, ONE, method="gdpo", components={"a": (first, ones), "b": (second, ones)}).value_R
    a = (first - 0.25) / (0.1875**0.5 + 1e-6)
    b = (second - 0.5) / (0.5 + 1e-6)
    total = a + b
    np.testing.assert_allclose(got, (total - total.mean()) / (total.std() + 1e-6), rtol=1e-12)
    assert got[0] > got[1] > got[3]


def test_gdpo_takes_missing_components_as_absent():
    """A task without gold calls has no name, key and value; its rollouts are ranked by format alone."""
    group = np.array([0, 0, 1, 1])
    form, name = np.array([1.0, 0, 1, 1]), np.array([np.nan, np.nan, 1.0, 0.0])
    ones = np.ones(4)
    got = advantages(np.zeros(4), group, method="gdpo", components={"format": (form, ones), "name": (name, ones)})
    np.testing.assert_allclose(got.value_R, [1, -1, 1, -1], rtol=1e-4)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("literal", 0.005 / 0.005), ("excluded", 0.005), ("std_floor", 0.005 / 0.1)],
)
def test_bonus_in_a_tied_group(mode: str, expected: float):
    """Ten right answers, five with a bonus of 0.01: literal GRPO makes +-1 of it, the other modes keep it small."""
    bonus = np.array([0.01] * 5 + [0.0] * 5)
    got = advantages(4 + bonus, np.zeros(10, int), bonus_R=bonus, bonus_mode=mode)
    np.testing.assert_allclose(np.abs(got.value_R), expected, rtol=2e-3)
    assert got.dead_G.tolist() == [True]


@pytest.mark.parametrize("mode", BONUS_MODES)
def test_bonus_in_a_mixed_group_hardly_moves_anything(mode: str):
    rewards = np.array([4.0] * 5 + [-2.0] * 5)
    bonus = np.array([0.01] + [0.0] * 9)
    plain = advantages(rewards, np.zeros(10, int)).value_R
    got = advantages(rewards + bonus, np.zeros(10, int), bonus_R=bonus, bonus_mode=mode).value_R
    assert 0 < got[0] - plain[0] < 0.02


@given(
    st.lists(st.lists(st.floats(-3, 4, width=32), min_size=1, max_size=9), min_size=1, max_size=6),
    st.sampled_from([name for name in ADVANTAGES if name != "gdpo"]),
    st.randoms(use_true_random=False),
)
def test_equals_a_plain_loop(groups, method, random):
    """Groups of any size, rows in any order."""
    rows = [(number, reward) for number, rewards in enumerate(groups) for reward in rewards]
    random.shuffle(rows)
    got = advantages(np.array([r for _, r in rows]), np.array([g for g, _ in rows]), method=method)
    for (number, reward), value in zip(rows, got.value_R, strict=True):
        mean, std = statistics.fmean(groups[number]), statistics.pstdev(groups[number])
        size = len(groups[number])
        if method == "group_sample_std":
            std = statistics.stdev(groups[number]) if size > 1 else 0.0
        if method == "group_mean":
            expected = reward - mean
        elif method == "leave_one_out":
            expected = (reward - mean) * size / max(size - 1, 1)
        else:
            expected = (reward - mean) / (max(std, 0.1 if method == "group_std_floor" else 0) + 1e-6)
        assert value == pytest.approx(expected, rel=1e-6, abs=2e-3)
    sums = np.bincount([g for g, _ in rows], weights=got.value_R)
    np.testing.assert_allclose(sums, 0, atol=1e-3)


def test_equal_rewards_and_single_rollouts_have_no_advantage():
    """Also where the mean is not exact in binary."""
    got = advantages(np.array([0.1] * 7 + [2.5]), np.array([0] * 7 + [1]))
    assert got.value_R.tolist() == [0.0] * 8
    assert got.dead_G.tolist() == [True, True]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown advantage"):
        advantages(np.zeros(1), np.zeros(1, int), method="nope")


def test_sample_std_divides_as_verl_does():
    """(r - mean) / (std + 1e-6) with ddof 1; a group of one has no advantage."""
    reward = np.array([4.0, 2.5, -2.0, 4.0, 1.0])
    group = np.array([0, 0, 0, 0, 1])
    four = reward[:4]
    got = advantages(reward, group, method="group_sample_std").value_R
    np.testing.assert_allclose(got[:4], (four - four.mean()) / (four.std(ddof=1) + 1e-6), rtol=1e-12)
    assert got[4] == 0.0
