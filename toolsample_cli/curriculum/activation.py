"""When the draw begins to go by importance (the delayed activation of DSCL), in a unit that fits every corpus.

One digest of the paper says: once the mean reward exceeded 1.0 for 7 consecutive batches. In the setting that is
inferred for it (batches of 512, 3,920 tasks) 7 batches are one pass over the corpus, or 3,584 tasks; so the streak
is counted in tasks and must reach one pass, or 3,584 tasks where a pass is longer (our reading, docs/methods.md 1.3).
"""

from __future__ import annotations

import math
from dataclasses import replace

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum.state import State


def wanted_streak(config: CurriculumConfig, corpus_tasks: int) -> int:
    """Task visits in rounds in a row with a mean reward above the activation mean; 0: active from the start."""
    return math.ceil(min(config.activation_passes * corpus_tasks, config.activation_tasks))


def after_round(state: State, mean: float | None, tasks: int, config: CurriculumConfig) -> State:
    """The state once a round of `tasks` visits with this mean base reward is known. Active once, active for good:
    a deactivation is described nowhere. A round without a scored rollout (mean None) changes nothing."""
    if mean is None:
        return state
    streak = state.streak + tasks if mean > config.activation_mean else 0
    active = state.active or streak >= wanted_streak(config, state.corpus_tasks)
    return replace(state, streak=streak, active=active)


def earliest_round(config: CurriculumConfig, corpus_tasks: int) -> int:
    """The first round whose draw can go by importance: 1 is the round of the first rollouts."""
    size = min(config.tasks_per_round, corpus_tasks)
    return 1 + max(1, math.ceil(wanted_streak(config, corpus_tasks) / size))


def describe(config: CurriculumConfig, corpus_tasks: int) -> str:
    """When selection can begin, in one line."""
    size, streak = min(config.tasks_per_round, corpus_tasks), wanted_streak(config, corpus_tasks)
    if not streak:
        return "selection begins with round 2"
    share = streak / corpus_tasks
    return (
        f"selection can begin with round {earliest_round(config, corpus_tasks)}: after {streak:,} tasks in a row "
        f"({share:.0%} of a pass, {size} per round) with a mean reward above {config.activation_mean:g}"
    )
