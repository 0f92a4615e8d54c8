"""Which raw files are meant: files, folders and `hf://` paths, each with the format of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, DataError, location
from toolsample_cli.importing import bfcl_questions
from toolsample_cli.importing.base import Format
from toolsample_cli.importing.columns import ColumnMap, llamafactory_files
from toolsample_cli.importing.formats import FORMATS, detect
from toolsample_cli.importing.hub import PREFIX, hub_files
from toolsample_cli.importing.raw_rows import SUFFIXES, raw_rows

METADATA = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json")
"""Files beside a data set that hold no rows."""


@dataclass(frozen=True)
class Source:
    """One raw file, the name it was asked for by, the format of its rows, files that hold its answers, a column map."""

    path: Path
    label: str
    format: Format
    answers: tuple[Path, ...] = ()
    columns: ColumnMap | None = None


@dataclass(frozen=True)
class Sources:
    """What is read, and the files of folders that were passed over."""

    files: list[Source]
    passed_over: list[str]


@dataclass(frozen=True)
class _File:
    path: Path
    label: str
    in_folder: bool = False
    columns: ColumnMap | None = None


def expand(raw: list[str], columns: ColumnMap | None = None) -> tuple[list[_File], list[str]]:
    """Every data file that is named, and what of the folders is none; folders give theirs sorted. Raises DataError."""
    found: list[_File] = []
    passed: list[str] = []
    for name in raw:
        path = Path(name)
        if name.startswith(PREFIX):
            found += [_File(file, label, columns=columns) for file, label in hub_files(name)]
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file, path))
            inside = [file for file in inside if file.parent.name != "possible_answer"]
            data = [file for file in inside if file.name.endswith(SUFFIXES) and file.name not in METADATA]
            if not data:
                raise DataError(f"{path}: no data files in it", hint=f"looked for {', '.join(SUFFIXES)}")
            found += [_File(file, str(file), True, columns) for file in data]
            passed += [str(file) for file in inside if file not in data]
        elif not path.exists():
            raise DataError(f"{name}: no such file or folder")
        elif (described := llamafactory_files(path)) is not None:
            if not described:
                raise DataError(f"{path}: none of its tool-calling sets is there", hint="looked for files beside it")
            found += [_File(file, str(file), columns=columns) for file, columns in described]
        else:
            found.append(_File(path, name, columns=columns))
    return found, passed


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def sources(raw: list[str], wanted: str, *, skip_broken: bool = False, columns: ColumnMap | None = None) -> Sources:
    """Every raw file with its format: `wanted`, or by the keys of its first row (the first one that can be read).

    A folder's file in no known format is passed over, if it has others. Raises ConfigError or DataError.
    """
    if wanted != "auto" and wanted not in FORMATS:
        raise ConfigError(
            f"format = {wanted!r}: not one of auto, {', '.join(FORMATS)}", hint=nearest(wanted, ["auto", *FORMATS])
        )
    files, passed = expand(raw, columns)
    questions: list[tuple[_File, Format]] = []
    answers: list[Path] = []
    unknown: DataError | None = None
    for file in files:
        if file.columns is not None:
            questions.append((file, FORMATS[file.columns.format]))
            continue
        try:
            first = _first_row(file.path, skip_broken)
            if bfcl_questions.is_answer(first):
                answers.append(file.path)
            else:
                questions.append((file, FORMATS[wanted] if wanted != "auto" else _detected(file.path, first)))
        except DataError as error:
            if not file.in_folder:
                raise
            unknown = unknown or error
            passed.append(file.label)
    if answers and not questions:
        raise DataError(f"{answers[0]}: possible answers without their questions", hint="name the questions as well")
    if unknown is not None and not questions:
        raise unknown
    made = [
        Source(file.path, file.label, form, _answers(file.path, form, answers), file.columns)
        for file, form in questions
    ]
    return Sources(made, passed)


def _answers(path: Path, form: Format, given: list[Path]) -> tuple[Path, ...]:
    beside = bfcl_questions.answers_beside(path) if form is bfcl_questions.FORMAT else None
    return (*given, *([beside] if beside is not None and beside not in given else []))


def _first_row(path: Path, skip_broken: bool) -> Any:
    first = None
    for first in raw_rows(path):
        if first.fault is None:
            return first.value
        if not skip_broken:
            break
    if first is None:
        raise DataError(f"{path}: no rows in it")
    raise DataError(
        f"{location(path, row=first.number)}: {first.fault}", hint="mend it; --broken reject skips broken rows"
    )


def _detected(path: Path, first: Any) -> Format:
    found = detect(first)
    if found is None:
        raise DataError(f"{path}: unknown format: {_shape(first)}", hint=f"give --format, one of {', '.join(FORMATS)}")
    return found


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f"rows have the keys {', '.join(map(str, list(value)[:12]))}"
    return f"rows are {type(value).__name__}, expected objects"
