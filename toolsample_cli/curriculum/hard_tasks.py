"""When a task becomes hard and what is done about it (Dynamic Multi-Round Hard Sampling, arXiv 2510.07737).

The paper replaces a prompt by few-shot demonstrations after 10 rollouts without a correct one. Our reading
(methods 2.3): completions without a correct one are counted over visits, so that groups of 8 reach 10 as well; a
task that is right often enough gives its demonstrations back step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum.mastery import Hard, State


def update(state: State, groups: pl.DataFrame, config: CurriculumConfig) -> tuple[State, dict[str, Any]]:
    """The hard tasks after one round's groups, and the transitions for the log.

    Transitions: `hard` {slot: shots it now gets}, `faded` {slot: shots left}, `dropped` [slots], `stuck`: how
    many hard tasks already have all the demonstrations they can get.
    """
    after = replace(state, hard=dict(state.hard), dropped=dict(state.dropped))
    moves: dict[str, Any] = {"hard": {}, "faded": {}, "dropped": [], "stuck": 0}
    for row in groups.filter(pl.col("n") > 0).sort("slot_id").iter_rows(named=True):
        slot, entry = row["slot_id"], after.hard.get(row["slot_id"])
        if entry is not None and entry.waiting:
            entry = after.hard[slot] = replace(entry, waiting=False)
        if row["misses"] >= config.hard_after:
            _harden(slot, after, config, moves)
        elif entry is not None and row["shots"] > 0 and row["n_exact"] / row["n"] >= config.fade_at:
            shots = max(0, entry.shots - config.shots_step)
            moves["faded"][slot] = shots
            if shots:
                after.hard[slot] = Hard(shots, state.round, waiting=False)
            else:
                del after.hard[slot]
    return after, {name: move for name, move in moves.items() if move}


def _harden(slot: str, state: State, config: CurriculumConfig, moves: dict[str, Any]) -> None:
    """Do to one hard slot what the config says, in `state` and `moves`."""
    if config.hard == "drop":
        state.dropped[slot] = state.round
        moves["dropped"].append(slot)
    elif config.hard == "keep":
        moves["hard"][slot] = 0
    else:
        entry = state.hard.get(slot)
        most, step = (1, 1) if config.hard == "hint" else (config.shots_max, config.shots_step)
        shots = min((entry.shots if entry else 0) + step, most)
        if entry and shots == entry.shots:
            moves["stuck"] += 1
        else:
            state.hard[slot] = Hard(shots, state.round)
            moves["hard"][slot] = shots
