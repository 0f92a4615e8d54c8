"""Tokens of a round lie on disk: what is read back is what the shards hold, and memory does not grow with them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.training_world import batch_rows, write

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.train.data import TrainSet, scored_rollouts


def rows_of(groups: int, samples: int, prompt: int, completion: int) -> list[dict]:
    """Rollouts of random tokens, in an order that is not that of their ids; lengths from 0 up."""
    random = np.random.default_rng(0)
    rows = []
    for task in random.permutation(groups).tolist():
        ids = random.integers(0, 100, prompt + task).tolist()
        for sample in random.permutation(samples).tolist():
            length = int(random.integers(0, completion + 1))
            rows.append({
                "rollout_id": f"t{task:03d}/0/{sample}", "task_id": f"t{task:03d}", "round": 0, "sample": sample,
                "policy": "random", "backend": "none", "seed": sample, "prompt_ids": ids,
                "completion_ids": random.integers(0, 100, length).tolist(),
                "logprobs": [None if random.random() < 0.1 else -1.0 - sample for _ in range(length)],
                "finish_reason": "length" if sample == 0 else "stop", "ids_from_text": False, "text": "", "error": None,
            })  # fmt: skip
    return rows


def read(folder: Path, rows: list[dict], shards: int = 1, **settings) -> TrainSet:
    write(folder / "rollouts", schema.ROLLOUTS, rows, shards=shards)
    write(folder / "batch", schema.BATCH, batch_rows(rows)[::-1])
    batch = open_folder(folder / "batch", schema.BATCH).load()
    return scored_rollouts(open_folder(folder / "rollouts", schema.ROLLOUTS), batch, TrainConfig(**settings), 100)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("mask", [False, True])
def test_groups_are_what_the_shards_hold(tmp_path: Path, shards: int, mask: bool):
    """In the order of task and rollout, whatever the order of rows and shards; outlines say the same without tokens."""
    rows = rows_of(groups=7, samples=3, prompt=4, completion=9)
    data = read(tmp_path, rows, shards, mask_truncated=mask)
    expected = sorted(rows, key=lambda row: row["rollout_id"])
    assert data.facts["rollout_id"].to_list() == [row["rollout_id"] for row in expected]
    assert len(data.groups) == 7
    assert [r.row for group in data.groups for r in group.rollouts] == list(range(21))
    dropped = 0
    for number, group in enumerate(data.groups):
        outline = data.groups.outline(number)
        assert outline == group.outline(number)
        for rollout in group.rollouts:
            row = expected[rollout.row]
            assert group.prompt.tolist() == row["prompt_ids"]
            assert rollout.completion.tolist() == row["completion_ids"]
            known = [float("nan") if value is None else value for value in row["logprobs"]]
            hidden = mask and row["finish_reason"] == "length"
            np.testing.assert_array_equal(rollout.logprobs, [float("nan")] * len(known) if hidden else known)
            assert rollout.advantage == data.facts["advantage"][rollout.row]
            dropped += len(known) if hidden else row["logprobs"].count(None)
    assert data.counts["dropped_tokens"] == dropped > 0


def test_memory_does_not_grow_with_the_tokens(tmp_path: Path):
    """What is held is a small part of the tokens, twelve bytes each when read."""
    rows = rows_of(groups=30, samples=4, prompt=500, completion=3000)
    tokens = sum(len(row["completion_ids"]) for row in rows)
    tracemalloc.start()
    data = read(tmp_path, rows, shards=6)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert int(data.groups.tokens_R.sum()) == tokens
    assert held < 0.1 * 12 * tokens


def test_a_rollout_named_twice_is_refused(tmp_path: Path):
    """It would weigh double, or train on what is not there."""
    rows = rows_of(groups=2, samples=2, prompt=3, completion=3)
    read(tmp_path, rows)
    rollouts = open_folder(tmp_path / "rollouts", schema.ROLLOUTS)
    batch = open_folder(tmp_path / "batch", schema.BATCH).load()
    with pytest.raises(DataError, match=r"names rollout t00./0/. more than once"):
        scored_rollouts(rollouts, pl.concat([batch, batch[:1]]), TrainConfig(), 100)
    twice = write(tmp_path / "twice", schema.ROLLOUTS, [*rows, rows[0]])
    with pytest.raises(DataError, match=f"rollout {rows[0]['rollout_id']} occurs twice"):
        scored_rollouts(open_folder(twice, schema.ROLLOUTS), batch, TrainConfig(), 100)


def test_a_null_token_is_named(tmp_path: Path):
    rows = rows_of(groups=2, samples=2, prompt=3, completion=3)
    rows[2]["prompt_ids"] = [5, None, 7]
    with pytest.raises(DataError, match=r"row 3 \(task t00.\): prompt token 2 is null"):
        read(tmp_path, rows)


def test_places_of_a_column_are_kept(tmp_path: Path):
    """Written anew in the middle, the rest stays."""
    from toolsample_cli.train.token_store import TokenFile

    column = TokenFile(np.float32)
    assert column.append(np.arange(5)) == 0 and column.append(np.zeros(0)) == 5 and column.append(np.arange(2)) == 5
    column.write(2, np.array([9.0, 8.0]))
    assert column.read(0, 7).tolist() == [0, 1, 9, 8, 4, 0, 1]
    with pytest.raises(OSError, match="cut short"):
        column.read(6, 2)
