"""Rollouts of other trainers, row by row: which form a row is in follows from its keys, never from a version.

Nothing is invented: what a file does not say is None. Files are JSON lines or Parquet; rows of no known form and
broken ones are counted, not errors, since dumps hold other things too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from toolsample_cli.bridges.incoming_forms import FORMS, Incoming
from toolsample_cli.errors import DataError, location
from toolsample_cli.hashing import digest

LONGEST_LINE = 256 * 1024 * 1024
"""Bytes in one line of a dump; batched rows of some trainers hold a whole step."""
LARGEST_ID = 2**31 - 1
"""Of a token."""


class Met(NamedTuple):
    """One row of a file, from 1, and its completions; `fault` says why there are none: unknown_form or broken."""

    file: Path
    number: int
    completions: list[Incoming]
    fault: str = ""


def incoming(files: Sequence[Path], form: str) -> Iterator[Met]:
    """Every row of these files in order. TRL logs a generation again at each of its steps: the repeats are marked."""
    last = ""
    for file in files:
        for block in _blocks(file):
            mark = "" if _step(block[0][1]) is None else _mark([row for _, row in block])
            repeated = bool(mark) and mark == last
            last = mark
            for number, row in block:
                completions, fault = _read(row, form)
                if repeated:
                    completions = [replace(one, repeated=True) for one in completions]
                yield Met(file, number, completions, fault)


def dump_files(paths: Sequence[Path]) -> list[Path]:
    """The files that are given and those in given folders, by the numbers in their names. DataError for none."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        inside = [path] if path.is_file() else [one for one in path.rglob("*") if one.suffix in (".jsonl", ".parquet")]
        if not inside:
            raise DataError(f"{path}: no .jsonl or .parquet file in it")
        found += sorted(inside, key=_by_numbers)
    return found


def _by_numbers(file: Path) -> tuple[str, int, str]:
    """Dumps are named after their step: 9.jsonl comes before 10.jsonl."""
    digits = "".join(c for c in file.stem if c.isdigit())
    return str(file.parent), int(digits or 0), file.name


def _rows(file: Path) -> Iterator[tuple[int, object]]:
    if file.suffix == ".parquet":
        try:
            frame = pl.read_parquet(file, glob=False, hive_partitioning=False)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{file}: cannot be read: {error}") from None
        yield from enumerate(frame.iter_rows(named=True), 1)
        return
    with file.open("rb") as handle:
        for number, line in enumerate(iter(lambda: handle.readline(LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                raise DataError(f"{location(file, row=number)}: a line of more than {LONGEST_LINE >> 20} MiB")
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(
                        f"{location(file, row=number)}: not valid JSON: {error}",
                        hint="a file that is still being written ends in half a line; wait for its trainer",
                    ) from None


def _blocks(file: Path) -> Iterator[list[tuple[int, object]]]:
    """Rows of one step of TRL's completions together, any other row alone."""
    block: list[tuple[int, object]] = []
    for number, row in _rows(file):
        if block and (_step(row) is None or _step(row) != _step(block[0][1])):
            yield block
            block = []
        block.append((number, row))
    if block:
        yield block


def _step(row: object) -> object:
    """The step of a row of TRL's completions, whose generations may be logged again; None for any other row."""
    logged = isinstance(row, Mapping) and row.keys() >= {"step", "prompt", "completion"}
    return row["step"] if isinstance(row, Mapping) and logged else None


def _mark(block: Sequence[object]) -> str:
    """What the rows of one step say, but for the step."""
    texts = [
        json.dumps({key: value for key, value in row.items() if key != "step"}, sort_keys=True, default=str)
        for row in block
        if isinstance(row, Mapping)
    ]
    return digest(texts)


def _read(row: object, form: str) -> tuple[list[Incoming], str]:
    if not isinstance(row, Mapping):
        return [], "unknown_form"
    for known in FORMS:
        if form == known.name or (form == "auto" and row.keys() >= known.keys):
            try:
                return [_sound(one) for one in known.read(dict(row))], ""
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                return [], "broken"
    return [], "unknown_form"


def _sound(one: Incoming) -> Incoming:
    """The completion with values of the right types, as columns hold them; ValueError for anything else."""
    texts = (one.text, one.task_id, one.finish_reason, one.policy)
    if not all(value is None or isinstance(value, str) for value in texts):
        raise ValueError("not a text")
    if one.sample is not None and (type(one.sample) is not int or not 0 <= one.sample <= LARGEST_ID):
        raise ValueError("not a number of a sample")
    if one.prompt is not None and not isinstance(one.prompt, str):
        for turn in one.prompt:
            if not isinstance(turn, Mapping):
                raise ValueError("not messages")
    for ids in (one.prompt_ids, one.completion_ids):
        if ids is not None and not all(type(i) is int and 0 <= i <= LARGEST_ID for i in ids):
            raise ValueError("not token ids")
    if one.logprobs is not None:
        one = replace(one, logprobs=[float(value) for value in one.logprobs])
    return one
