"""When a task becomes hard and what is done about it (Dynamic Multi-Round Hard Sampling, arXiv 2510.07737).

The paper replaces a prompt by few-shot demonstrations after 10 rollouts without a correct one. Our reading
(docs/methods.md 2.3): completions without a correct one are counted over visits, so that groups of 8 reach 10 as
well; the few-shot form comes with the next draw; a task that is right often enough gives its demonstrations back
step by step; and hard sampling ends, for all tasks, at the end of the pass over the corpus in which fewer than 1 %
of it are still hard, or after so many passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from toolsample_cli.config import CurriculumConfig
from toolsample_cli.curriculum.state import HardTask, State
from toolsample_cli.json_types import Row


def update(state: State, groups: pl.DataFrame, config: CurriculumConfig) -> tuple[State, Row]:
    """The hard tasks after one round's groups, and the transitions for the log.

    Transitions: `hard` {slot: shots it now gets}, `faded` {slot: shots left}, `dropped` [slots], `stuck`: how
    many hard tasks already have all the demonstrations they can get.
    """
    after = replace(state, hard=dict(state.hard), dropped=dict(state.dropped))
    moves: Row = {"hard": {}, "faded": {}, "dropped": [], "stuck": 0}
    if state.hard_ended:
        return after, {}
    for row in groups.filter(pl.col("n") > 0).sort("slot_id").iter_rows(named=True):
        slot, entry, shown = row["slot_id"], after.hard.get(row["slot_id"]), row["shots"] > 0
        if entry is not None:
            entry = replace(entry, waiting=entry.waiting and not shown, unsolved=row["n_exact"] == 0)
            after.hard[slot] = entry
        if row["misses"] >= config.hard_after:
            if entry is None or shown:
                _harden(slot, after, config, moves)
            elif entry.unfit:
                moves["stuck"] += 1
        elif entry is not None and row["n_exact"] / row["n"] >= config.fade_at:
            _fade(slot, entry, shown, after, config, moves)
    return after, {name: move for name, move in moves.items() if move}


def _harden(slot: str, state: State, config: CurriculumConfig, moves: Row) -> None:
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
            state.hard[slot] = HardTask(shots, state.round)
            moves["hard"][slot] = shots


def _fade(slot: str, entry: HardTask, shown: bool, state: State, config: CurriculumConfig, moves: Row) -> None:
    """Take demonstrations from a task that is solved with them; solved without any, it is no longer hard."""
    shots = max(0, entry.shots - config.shots_step) if shown else 0
    moves["faded"][slot] = shots
    if shots:
        state.hard[slot] = replace(entry, shots=shots, since=state.round)
    else:
        del state.hard[slot]


def end_of_pass(before: State, after: State, config: CurriculumConfig) -> State:
    """Hard sampling's stop rule, asked where a pass over the corpus ends: `after` with all tasks back in zero-shot
    form once fewer than `hard_stop` of the corpus are hard and unsolved, or `hard_passes` passes are over."""
    if config.hard not in ("fewshot", "hint") or after.hard_ended or int(after.passes) == int(before.passes):
        return after
    if not after.hard and not any(entry.get("hard") for entry in after.log):
        return after  # no task has had the completions yet that could make it hard
    left = sum(entry.unsolved for entry in after.hard.values())
    if left / after.corpus_tasks < config.hard_stop:
        reason = f"{left} hard tasks, under {config.hard_stop:g} of the corpus"
    elif config.hard_passes and int(after.passes) >= config.hard_passes:
        reason = f"{config.hard_passes} passes over the corpus"
    else:
        return after
    return replace(after, hard={}, hard_ended=reason)


def with_fits(state: State, fitted: Collection[str], unfit: Collection[str]) -> State:
    """The state once a draw has found demonstrations for `fitted` and none for `unfit` slots.

    An unfit task waits no longer: it is drawn as any other and looked up again each time.
    """
    found = {slot: replace(state.hard[slot], unfit=False) for slot in fitted}
    found |= {slot: replace(state.hard[slot], unfit=True, waiting=False) for slot in unfit}
    return replace(state, hard={**state.hard, **found})
