"""Rewards of a group to advantages.

GRPO, Dr.GRPO (no std), leave-one-out, and GDPO (each component normalised in its group before the sum). A group
is all rollouts of one task and round, of any size. Variance is the population variance (ddof 0), epsilon 1e-6;
`group_sample_std` divides by the sample's (ddof 1), as veRL and ToolRL do.
Self-exemplifying bonus (ToolExpander; our reading, the paper's treatment of the std is not public to us): in a
group that is otherwise tied a bonus of 0.01 divided by its own std would weigh as much as a right answer, hence
`bonus_mode`: literal | excluded (std without the bonus; 1 where that is 0) | std_floor (std at least 0.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

EPSILON = 1e-6
BONUS_STD_FLOOR = 0.1
DEAD = 1e-9
"""A group whose rewards without bonus spread no more than this is dead: it teaches nothing but the bonus."""

ADVANTAGES = ("group_std", "group_sample_std", "group_std_floor", "group_mean", "leave_one_out", "gdpo")
BONUS_MODES = ("literal", "excluded", "std_floor")


@dataclass(frozen=True)
class Advantages:
    """`value_R`, one per rollout; `std_G`, population std of each group's reward without bonus; `dead_G`."""

    value_R: np.ndarray
    std_G: np.ndarray
    dead_G: np.ndarray


def advantages(
    reward_R: np.ndarray,
    group_R: np.ndarray,
    *,
    method: str = "group_std",
    bonus_R: np.ndarray | None = None,
    bonus_mode: str = "std_floor",
    components: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> Advantages:
    """Advantages of R rollouts; `group_R` numbers their groups 0..G-1, `reward_R` contains `bonus_R`.

    `components` (gdpo only): name -> (score_R in [0, 1] with NaN where the task has no such sub-task, weight_R).
    Example: rewards 4, 4, 1, -2 of one group have mean 1.75 and std 2.487, so the first advantage is 0.905.
    Raises ValueError for an unknown method or mode.
    """
    reward_R = np.asarray(reward_R, dtype=np.float64)
    group_R = np.asarray(group_R, dtype=np.int64)
    bonus_R = np.zeros_like(reward_R) if bonus_R is None else np.asarray(bonus_R, dtype=np.float64)
    if method not in ADVANTAGES or bonus_mode not in BONUS_MODES:
        raise ValueError(f"unknown advantage {method!r} or bonus mode {bonus_mode!r}")
    if not reward_R.shape == group_R.shape == bonus_R.shape:
        raise ValueError(f"{reward_R.shape} rewards, {group_R.shape} groups, {bonus_R.shape} bonuses")
    n_groups = int(group_R.max()) + 1 if group_R.size else 0
    std_G = _std(reward_R - bonus_R, group_R, n_groups)
    dead_G = std_G <= DEAD
    if method == "gdpo":
        value_R = _gdpo(reward_R, bonus_R, group_R, n_groups, components or {})
    elif method == "group_mean":
        value_R = _centred(reward_R, group_R, n_groups)
    elif method == "leave_one_out":
        size_R = np.bincount(group_R, minlength=n_groups)[group_R]
        value_R = _centred(reward_R, group_R, n_groups) * size_R / np.maximum(size_R - 1, 1)
    else:
        floor = BONUS_STD_FLOOR if method == "group_std_floor" else 0.0
        divisor_G = _divisor(reward_R, bonus_R, group_R, n_groups, bonus_mode)
        if method == "group_sample_std":
            size_G = np.bincount(group_R, minlength=n_groups)
            divisor_G = divisor_G * np.sqrt(size_G / np.maximum(size_G - 1, 1))
        value_R = _centred(reward_R, group_R, n_groups) / (np.maximum(divisor_G, floor) + EPSILON)[group_R]
    return Advantages(value_R, std_G, dead_G)


def _divisor(
    reward_R: np.ndarray, bonus_R: np.ndarray, group_R: np.ndarray, n_groups: int, bonus_mode: str
) -> np.ndarray:
    std_G = _std(reward_R, group_R, n_groups)
    has_bonus_G = np.bincount(group_R, weights=bonus_R != 0, minlength=n_groups) > 0
    if bonus_mode == "std_floor":
        return np.where(has_bonus_G, np.maximum(std_G, BONUS_STD_FLOOR), std_G)
    if bonus_mode == "excluded":
        base_G = _std(reward_R - bonus_R, group_R, n_groups)
        return np.where(has_bonus_G, np.where(base_G <= DEAD, 1.0, base_G), std_G)
    return std_G


def _gdpo(
    reward_R: np.ndarray,
    bonus_R: np.ndarray,
    group_R: np.ndarray,
    n_groups: int,
    components: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    total_R = _centred(bonus_R, group_R, n_groups)  # a bonus is never divided by its own std here
    for score_R, weight_R in components.values():
        here_R = ~np.isnan(score_R)
        filled_R = np.where(here_R, score_R, 0.0)
        normal_R = _centred(filled_R, group_R, n_groups) / (_std(filled_R, group_R, n_groups) + EPSILON)[group_R]
        total_R = total_R + np.where(here_R, normal_R * weight_R, 0.0)
    if not components:
        total_R = _centred(reward_R, group_R, n_groups)
    spread = total_R.std() if total_R.size else 0.0
    return (total_R - total_R.mean()) / (spread + EPSILON) if total_R.size else total_R


def _centred(value_R: np.ndarray, group_R: np.ndarray, n_groups: int) -> np.ndarray:
    size_G = np.maximum(np.bincount(group_R, minlength=n_groups), 1)
    mean_G = np.bincount(group_R, weights=value_R, minlength=n_groups) / size_G
    centred_R = value_R - mean_G[group_R]
    # rounding of the mean must not turn a tie into an advantage
    return np.where(np.abs(centred_R) <= DEAD, 0.0, centred_R)


def _std(value_R: np.ndarray, group_R: np.ndarray, n_groups: int) -> np.ndarray:
    size_G = np.maximum(np.bincount(group_R, minlength=n_groups), 1)
    return np.sqrt(np.bincount(group_R, weights=_centred(value_R, group_R, n_groups) ** 2, minlength=n_groups) / size_G)
