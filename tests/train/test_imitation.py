"""Rejection sampling: which answers are imitated, and that they become likelier."""

from __future__ import annotations

import polars as pl
import pytest
from support.training_runs import metric
from support.training_world import load, plain_logprobs, rollout_rows, write

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.schema import COMPONENTS
from toolsample_cli.stage import Options
from toolsample_cli.train.imitation import pick
from toolsample_cli.train.stage import run

CALL = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'


def answers(*rows: dict[str, object]) -> pl.DataFrame:
    """Right answers of one task, but for what a row says otherwise."""
    right = {"task_id": "t", "round": 0, "shots": 0, "exact": True, "parse_status": "ok", "schema_valid": True}
    right |= {"finish_reason": "stop", "text": CALL, "tokens": 9}
    return pl.DataFrame([{"rollout_id": f"t/0/{i}", **right, **row} for i, row in enumerate(rows)], strict=False)


@pytest.mark.parametrize(
    "fault",
    [
        {"exact": False},
        {"parse_status": "duplicate_key"},
        {"schema_valid": False},
        {"finish_reason": "length"},
        {"shots": 2},
    ],
)
def test_an_answer_with_a_fault_is_not_imitated(fault: dict[str, object]):
    """Exact is not enough: it must be cleanly read, fit its schema, have ended, and have had no demonstrations."""
    picked, counts = pick(answers(fault, {}), 4)
    assert picked["rollout_id"].to_list() == ["t/0/1"]
    assert counts["not right"] + counts["with demonstrations"] == 1


def test_no_call_without_a_schema_is_imitated():
    picked, _ = pick(answers({"parse_status": "no_call", "schema_valid": None, "text": "no"}), 1)
    assert picked.height == 1


def test_the_best_are_thoughtful_short_and_different():
    """One text counts once; thoughts come first, then the shorter answer; at most `per_task` of each task."""
    rows = answers(
        {"tokens": 5},
        {"tokens": 5},
        {"text": f"<think>why</think>\n{CALL}", "tokens": 30},
        {"text": f"<think>because</think>\n{CALL}", "tokens": 20},
        {"task_id": "u"},
    )
    assert pick(rows, 1)[0]["rollout_id"].to_list() == ["t/0/3", "t/0/4"]
    picked, counts = pick(rows, 2)
    assert picked["rollout_id"].to_list() == ["t/0/2", "t/0/3", "t/0/4"]
    assert (counts["same text"], counts["beyond the best of the task"]) == (1, 1)


def scored(rows: list[dict], right: set[str]) -> list[dict]:
    """Scores in which only those rollouts are right."""
    made = []
    for row in rows:
        parts = {name: 1.0 for component in COMPONENTS for name in (component, f"{component}_max")}
        made.append(
            {
                **{name: row[name] for name in ("rollout_id", "task_id", "round", "sample")},
                **{"slot_id": row["task_id"], "shots": 0, "source": "s", "category": "c", "parse_status": "ok"},
                **{"calls_json": "[]", "exact": row["rollout_id"] in right, "schema_valid": True, **parts},
                **{"self_example": False, "extra_json": "{}", "reward": 4.0, "reward_min": -3.0, "reward_max": 4.0},
            }
        )
    return made


def test_right_answers_become_likelier(world_of_rollouts, tmp_path):
    """Training imitates them token by token, also where they came without logprobs, and nothing else is forwarded."""
    model, rows = world_of_rollouts
    for row in rows:
        row["text"] = row["rollout_id"]
    rows[1]["logprobs"] = None
    right = {rows[1]["rollout_id"], rows[6]["rollout_id"]}
    rollouts = write(tmp_path / "rollouts", schema.ROLLOUTS, rows)
    scores = write(tmp_path / "scores", schema.SCORES, scored(rows, right))
    config = TrainConfig(objective="sft", lr=5e-3, steps=2, epochs=8)
    account = run(rollouts, scores, model=str(model), out=tmp_path / "ck", config=config, options=Options())
    assert (account.rows_in, account.dropped["not right"]) == (2, 10)
    imitated = [row for row in rows if row["rollout_id"] in right]
    assert sum(metric(tmp_path / "ck", "tokens")) == 8 * sum(len(row["completion_ids"]) for row in imitated)
    before, after = load(model), load(tmp_path / "ck")
    for row in imitated:
        old, new = (plain_logprobs(net, row["prompt_ids"], row["completion_ids"]).mean() for net in (before, after))
        assert new > old + 0.5
    none = write(tmp_path / "none", schema.SCORES, scored(rows, set()))
    with pytest.raises(DataError, match="worth imitating"):
        run(rollouts, none, model=str(model), out=tmp_path / "no", config=config, options=Options())


@pytest.fixture
def world_of_rollouts(tmp_path):
    """A tiny model and twelve rollouts of four tasks."""
    from support.tiny_model import tiny_model

    path = tiny_model(tmp_path)
    return path, rollout_rows(load(path), groups=4, samples=3)
