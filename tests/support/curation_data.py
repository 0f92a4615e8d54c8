"""Small corpora and scores for the tests of filter and curriculum: written in words, not sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output

RIGHT, HALF, WRONG = "right", "half", "wrong"  # reward 4, 1.75, -3 for a task with one call and two arguments


def score_row(task: str, sample: int, outcome: str | None, *, round: int = 0, shots: int = 0, **changes) -> dict:
    """One row of `scores`: a call with two arguments by `outcome` (None: errored)."""
    name, key, value = {RIGHT: (1.0, 1.0, 2.0), HALF: (1.0, 1.0, 1.0), WRONG: (0.0, 0.0, 0.0)}.get(outcome, (None,) * 3)
    reward = None if outcome is None else 1 + (6 * (name + key + value) / 4 - 3)
    if outcome == WRONG:
        reward = -3.0  # without the format point either
    row = {
        "rollout_id": f"{task}/{round}/{sample}",
        "task_id": task,
        "round": round,
        "sample": sample,
        "slot_id": task.split("@")[0],
        "shots": shots,
        "source": "made",
        "category": "simple",
        "parse_status": "ok" if outcome else "error",
        "calls_json": "[]",
        "format": None if outcome is None else float(outcome != WRONG),
        "format_max": 1.0,
        "name": name,
        "name_max": 1.0,
        "key": key,
        "key_max": 1.0,
        "value": value,
        "value_max": 2.0,
        "exact": None if outcome is None else outcome == RIGHT,
        "schema_valid": None,
        "self_example": None,
        "extra_json": "{}",
        "reward": reward,
        "reward_min": -3.0,
        "reward_max": 4.0,
    }
    return {**row, **changes}


def score_frame(tasks: dict[str, Sequence[str | None]], *, round: int = 0) -> pl.DataFrame:
    """Scores of whole groups: task -> outcomes; `slot@2shot` counts as a form with two demonstrations."""
    rows = []
    for task, outcomes in tasks.items():
        shots = int(task.split("@")[1].removesuffix("shot")) if "@" in task else 0
        rows += [score_row(task, i, outcome, round=round, shots=shots) for i, outcome in enumerate(outcomes)]
    return schema.frame(schema.SCORES, rows)


def task_row(task: str, *, tool: str | None = None, value: str | None = None, **changes) -> dict:
    """One row of `tasks`: a request whose gold answer calls `tool` with one value; every task offers its own tool."""
    tool = tool or "find_train"
    gold = [{"arguments": {"city": value or task}, "name": tool}]
    row = {
        "task_id": task,
        "source": "made",
        "split": "train",
        "category": "simple",
        "protocol": "hermes",
        "messages_json": json.dumps([{"content": f"please {tool} for {value or task}", "role": "user"}]),
        "tools_json": json.dumps([{"description": "a tool", "name": tool, "parameters": {"type": "object"}}]),
        "gold_json": json.dumps(gold, separators=(",", ":")),
        "gold_kind": "calls",
        "gold_text": None,
        "gold_issues_json": "[]",
        "demos_json": "[]",
        "demo_task_ids": [],
        "parent_task_id": None,
        "license": "none",
        "extra_json": "{}",
    }
    return {**row, **changes}


def write(kind: schema.Kind, folder: Path, frames: list[pl.DataFrame], config: dict | None = None) -> Path:
    """A finished folder with one shard a frame."""
    with Output(folder, kind, config or {}) as output:
        for number, frame in enumerate(frames):
            output.write(number, frame)
        output.finish()
    return folder
