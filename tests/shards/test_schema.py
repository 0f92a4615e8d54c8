"""The contract itself: dtypes forced, faults named by file, row, column and value, documentation complete."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shard_data import rejects

from toolsample_cli.errors import DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.column_table import column_table

ROLLOUT = {
    "rollout_id": "t/0/0", "task_id": "t", "round": 0, "sample": 0, "policy": "p", "backend": "replay", "seed": 2**62,
    "prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-0.5, -1.0], "finish_reason": "stop",
    "ids_from_text": False, "text": "x", "error": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", schema.KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_is_sound(kind):
    names = [column.name for column in kind.columns]
    assert len(set(names)) == len(names) and set(kind.key) <= set(names)
    assert all(column.meaning and "|" not in column.meaning for column in kind.columns)
    assert not any(isinstance(column.dtype, pl.Struct) for column in kind.columns)
    empty = schema.frame(kind, [])
    assert schema.check(kind, empty, "x").schema == kind.schema
    table = column_table()
    assert all(f"| `{name}` |" in table for name in names) and f"**`{kind.name}`**" in table


def test_dtypes_never_depend_on_the_rows():
    first = schema.frame(schema.ROLLOUTS, [{**ROLLOUT, "logprobs": None, "finish_reason": None, "prompt_ids": []}])
    assert first.schema == schema.ROLLOUTS.schema
    assert pl.concat([first, schema.frame(schema.ROLLOUTS, [ROLLOUT])]).height == 2
    assert schema.frame(schema.ROLLOUTS, {name: [value] for name, value in ROLLOUT.items()}).equals(
        schema.frame(schema.ROLLOUTS, [ROLLOUT])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": None}, r"here row 2 \(task_id None\): column task_id = None, expected a value"),
        ({"sample": -1}, r"row 2 \(task_id t\): column sample = -1, expected a value and >= 0"),
        ({"text": None}, "column text = None"),
    ],
)
def test_faults_are_named(change, message):
    data = schema.frame(schema.ROLLOUTS, [ROLLOUT, {**ROLLOUT, **change}])
    with pytest.raises(DataError, match=message):
        schema.check(schema.ROLLOUTS, data, "here")


@pytest.mark.parametrize(("value", "fine"), [(0.5, True), (None, True), (1.5, False), (-0.1, False), (math.nan, False)])
def test_ranges_and_nan(value, fine):
    row = {
        "rollout_id": "r", "task_id": "t", "reward": 1.0, "base_reward": 1.0, "bonus": 0.0, "format": value,
        "exact": True, "weight_name": 1.0, "weight_key": 1.0, "weight_value": 1.0,
    }  # fmt: skip
    data = schema.frame(schema.BATCH, [row])
    if fine:
        schema.check(schema.BATCH, data, "x")
    else:
        with pytest.raises(DataError, match="column format"):
            schema.check(schema.BATCH, data, "x")


def test_missing_unknown_and_wrong_columns():
    data = rejects(0)
    with pytest.raises(DataError, match=r"missing column.*reason"):
        schema.check(schema.REJECTS, data.drop("reason"), "x")
    with pytest.raises(DataError, match=r"unknown column.*more"):
        schema.check(schema.REJECTS, data.with_columns(more=pl.lit(1)), "x")
    with pytest.raises(DataError, match="column row is Int32, expected Int64"):
        schema.check(schema.REJECTS, data.cast({"row": pl.Int32}), "x")


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(), max_size=20), st.lists(st.text(max_size=5), max_size=3))
def test_any_text_can_be_stored(text, ids):
    """Lone surrogates become U+FFFD, everything else stays."""
    row = {column.name: "" for column in schema.TASKS.columns} | {"extra_json": text, "demo_task_ids": [*ids, text]}
    data = schema.frame(schema.TASKS, [row])
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert data["extra_json"][0] == expected and data["demo_task_ids"].to_list() == [[*ids, expected]]


def test_lone_surrogates_explicitly():
    row = {column.name: "" for column in schema.TASKS.columns} | {"demo_task_ids": ["\udc00"], "gold_text": "a\ud800b"}
    data = schema.frame(schema.TASKS, [row])
    assert data["gold_text"][0] == "a\ufffdb" and data["demo_task_ids"].to_list() == [["\ufffd"]]


def test_wrong_types_are_not_coerced():
    with pytest.raises((TypeError, pl.exceptions.PolarsError)):
        schema.frame(schema.ROLLOUTS, [{**ROLLOUT, "text": 5}])
