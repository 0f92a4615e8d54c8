"""One record with everything that belongs to it: its task, completion, score and group, joined by id."""

from __future__ import annotations

import json

import polars as pl

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.inspection.shard_folders import ShardFolder, rows_of
from toolsample_cli.json_types import Row

IDS = ("rollout_id", "task_id", "slot_id", "entry_id")
SHORTEST = 4
"""Shortest beginning of an id that is looked up."""
_JOIN = {"rollouts": "rollout_id", "scores": "rollout_id", "batch": "rollout_id", "records": "rollout_id"}


def by_number(place: ShardFolder, number: int) -> Row:
    """Row `number` from 1 over all shards; negative numbers count from the end. ConfigError when there is none."""
    total = place.rows()
    at = number - 1 if number > 0 else total + number
    if number == 0 or not 0 <= at < total:
        raise ConfigError(
            f"-i {number}: {place.path} has rows 1 to {total}", hint="negative numbers count from the end"
        )
    for file in place.files:
        rows = rows_of(file)
        if at < rows:
            return place.scan(file).slice(at, 1).collect().row(0, named=True)
        at -= rows
    raise AssertionError("rows were counted")


def by_id(place: ShardFolder, wanted: str) -> Row:
    """The row with this id, or the only one whose id begins so, or whose source called it so. DataError if none."""
    names = [name for name in IDS if name in pl.read_parquet_schema(place.files[0])] if place.files else []
    if not names:
        raise DataError(f"{place.path}: its rows have no id", hint="give -i N instead")
    tests = [pl.any_horizontal(pl.col(name) == wanted for name in names)]
    if len(wanted) >= SHORTEST:
        tests.append(pl.any_horizontal(pl.col(name).str.starts_with(wanted) for name in names))
    if place.kind == "tasks":
        quoted = json.dumps(wanted, ensure_ascii=False)
        tests.append(pl.col("extra_json").str.contains(f'"id":{quoted}', literal=True))
    for test in tests:
        rows = find(place, test, 5)
        if len(rows) == 1 or (rows and test is tests[0]):
            return rows[0]
        if rows:
            some = ", ".join(str(row[names[0]]) for row in rows)
            raise ConfigError(f"--id {wanted}: several ids begin like this: {some}", hint="give more of the id")
    raise DataError(f"{place.path}: no row with the id {wanted!r}", hint=f"looked in {', '.join(names)}")


def find(place: ShardFolder, test: pl.Expr, most: int) -> list[Row]:
    """The first rows that pass, in order; nothing but matching row groups is decoded in full."""
    found: list[Row] = []
    for file in place.files:
        found += place.scan(file).filter(test).head(most - len(found)).collect(engine="streaming").to_dicts()
        if len(found) >= most:
            break
    return found


def related(row: Row, kind: str | None, places: list[ShardFolder]) -> Row:
    """{kind: row} of the row itself and of what belongs to it in the other places; `samples` for a group."""
    found: Row = {kind or "row": row}
    task_id = row.get("task_id") or _task_of(row.get("rollout_id"))
    for place in places:
        if place.kind is None or place.kind in found or not place.files:
            continue
        key = _JOIN.get(place.kind)
        if key and row.get("rollout_id"):
            test = pl.col(key) == row["rollout_id"]
            if place.kind in ("rollouts", "scores"):  # the task's statistics let whole row groups be skipped
                test &= pl.col("task_id") == task_id
        elif place.kind in ("tasks", "groups") and task_id:
            test = pl.col("task_id") == task_id
        elif place.kind == "scores" and kind in ("tasks", "groups") and task_id:
            rows = find(place, pl.col("task_id") == task_id, 64)
            if rows:
                found["samples"] = rows
            continue
        else:
            continue
        rows = find(place, test, 1)
        if rows:
            found[place.kind] = rows[0]
    return found


def _task_of(rollout_id: str | None) -> str | None:
    """The task that a rollout_id (task_id/round/sample) begins with; rows of records have no column for it."""
    return rollout_id.rsplit("/", 2)[0] if rollout_id else None


def opened(row: Row) -> Row:
    """The row with its `*_json` columns decoded, for `--json`; text that is no JSON stays text."""
    return {name: _decoded(name, value) for name, value in row.items()}


def _decoded(name: str, value: object) -> object:
    if name.endswith("_json") and isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
