"""Whether shards keep the contract in full: what reading checks, and what would be too dear to check on each read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.inspection.shard_folders import ShardFolder, look
from toolsample_cli.shards import schema
from toolsample_cli.shards.folder_sums import verify_folder
from toolsample_cli.shards.manifest import Entry
from toolsample_cli.shards.reading import read_frame
from toolsample_cli.shards.sealed import read_sealed

MOST = 20
"""Faults that are listed of one shard."""
SLACK = 1e-9


def faults(place: ShardFolder) -> Iterator[str]:
    """Every breach of the contract as one sentence naming the file, row and id; nothing for sound shards.

    One shard is in memory at a time, plus 8 bytes for each row of the folder. DataError when the data is not ours.
    """
    if place.kind is None:
        raise DataError(f"{place.path}: not one of toolsample's kinds, so there is nothing to check it against")
    kind, listed = schema.KINDS[place.kind], place.entries
    yield from _manifest_faults(place, listed)
    seen: set[int] = set()
    for file in place.files:
        try:
            place.verify(file)
            data = read_frame(file, kind)
        except DataError as error:
            yield str(error)
            continue
        if file.name in listed and listed[file.name].rows != data.height:
            yield f"{file}: {data.height} rows, its manifest says {listed[file.name].rows}"
        for number, fault in enumerate(_shard_faults(kind, data, file, seen)):
            if number == MOST:
                yield f"{file}: and more"
                break
            yield fault


def _manifest_faults(place: ShardFolder, listed: Mapping[str, Entry]) -> Iterator[str]:
    present = {file.name for file in place.files}
    for name in sorted(listed.keys() - present):
        yield f"{place.path / name}: missing, though the manifest names it"
    if place.manifests:
        for name in sorted(present - listed.keys()):
            yield f"{place.path / name}: not named in the manifest"
    elif place.path.is_dir():
        yield f"{place.path}: no manifest beside it: its stage has not finished"


def _shard_faults(kind: schema.Kind, data: pl.DataFrame, file: Path, seen: set[int]) -> Iterator[str]:
    yield from _key_faults(kind, data, file, seen)
    for column in data.columns:
        if column.endswith("_json"):
            yield from _json_faults(kind, data, column, file)
    if kind is schema.ROLLOUTS:
        ragged = pl.col("logprobs").list.len() != pl.col("completion_ids").list.len()
        yield from _where(kind, data, file, ragged, "as many logprobs as completion tokens were expected")
        yield from _where(kind, data, file, _error_and_text(), "an errored rollout holds tokens")
    if kind is schema.SCORES:
        reward, low, high = (pl.col(name) for name in ("reward", "reward_min", "reward_max"))
        outside = (reward < low - SLACK) | (reward > high + SLACK)
        yield from _where(kind, data, file, outside, "reward lies outside [reward_min, reward_max]")
        for name in schema.COMPONENTS:
            above = pl.col(name) > pl.col(f"{name}_max") + SLACK
            yield from _where(kind, data, file, above, f"{name} exceeds {name}_max")


def _error_and_text() -> pl.Expr:
    return pl.col("error").is_not_null() & (pl.col("completion_ids").list.len() > 0)


def _key_faults(kind: schema.Kind, data: pl.DataFrame, file: Path, seen: set[int]) -> Iterator[str]:
    keys = data.select(kind.key).hash_rows(seed=0).to_list()
    for row, key in enumerate(keys):
        if key in seen:
            yield f"{_row(kind, data, file, row)}: {', '.join(kind.key)} came before"
        seen.add(key)
    if kind.key == ("task_id", "sample"):
        task, sample = data["task_id"], data["sample"]
        follows = (task > task.shift()) | ((task == task.shift()) & (sample > sample.shift()))
        groups = data.select((pl.col("task_id") != pl.col("task_id").shift()).fill_null(True).sum()).item()
        if groups != task.n_unique():
            yield f"{file}: the samples of a task are not adjacent"
        elif not bool(((task != task.shift()) | follows).fill_null(True).all()):
            yield f"{file}: the samples of a task are not in order"


def _json_faults(kind: schema.Kind, data: pl.DataFrame, column: str, file: Path) -> Iterator[str]:
    for row, text in enumerate(data[column]):
        if text is None:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield f"{_row(kind, data, file, row)}: {column} is not JSON: {error}"
            continue
        if not isinstance(value, dict if column == "extra_json" else list) and kind is not schema.REJECTS:
            yield f"{_row(kind, data, file, row)}: {column} holds {type(value).__name__}"


def _where(kind: schema.Kind, data: pl.DataFrame, file: Path, bad: pl.Expr, what: str) -> Iterator[str]:
    for row in data.select(bad.fill_null(False).arg_true()).to_series().head(MOST + 1):
        yield f"{_row(kind, data, file, row)}: {what}"


def _row(kind: schema.Kind, data: pl.DataFrame, file: Path, row: int) -> str:
    return f"{file} row {row + 1} ({kind.key[0]} {data[kind.key[0]][row]})"


def run_faults(root: Path) -> Iterator[str]:
    """Every fault below a run folder: shards, checkpoints, states, and what `run` writes about itself."""
    for folder in sorted(path for path in [root, *root.rglob("*")] if path.is_dir()):
        if folder.name.endswith(".tmp") or folder.name == "trainer" or any(p.startswith(".") for p in folder.parts[1:]):
            continue
        try:
            verify_folder(folder)
            for name in ("state.json", "round.json", "plan.json"):
                if (folder / name).is_file():
                    read_sealed(folder / name, hint="rerun the stage that wrote it")
            place = look(folder)
        except DataError as error:
            yield str(error)
            continue
        if place is not None and place.kind is not None:
            yield from faults(place)
