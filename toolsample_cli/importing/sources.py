"""Which raw files are meant: files, folders and `hf://` paths, each with the format of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, DataError, location
from toolsample_cli.importing import bfcl_questions
from toolsample_cli.importing.base import Format
from toolsample_cli.importing.formats import FORMATS, detect
from toolsample_cli.importing.hub import PREFIX, hub_files
from toolsample_cli.importing.raw_rows import SUFFIXES, raw_rows


@dataclass(frozen=True)
class Source:
    """One raw file, the name it was asked for by, the format of its rows, files that hold its answers."""

    path: Path
    label: str
    format: Format
    answers: tuple[Path, ...] = field(default=())


def expand(raw: list[str]) -> list[tuple[Path, str]]:
    """(file, label) of everything named; folders give their data files, sorted. Raises DataError."""
    found = []
    for name in raw:
        path = Path(name)
        if name.startswith(PREFIX):
            found += hub_files(name)
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if _is_data(file, path))
            inside = [file for file in inside if file.parent.name != "possible_answer"]
            if not inside:
                raise DataError(f"{path}: no data files in it", hint=f"looked for {', '.join(SUFFIXES)}")
            found += [(file, str(file)) for file in inside]
        elif path.exists():
            found.append((path, name))
        else:
            raise DataError(f"{name}: no such file or folder")
    return found


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return file.is_file() and file.name.endswith(SUFFIXES) and not hidden


def sources(raw: list[str], wanted: str, *, skip_broken: bool = False) -> list[Source]:
    """Every raw file with its format: `wanted`, or by the keys of its first row (the first one that can be read).

    Raises ConfigError or DataError.
    """
    if wanted != "auto" and wanted not in FORMATS:
        raise ConfigError(
            f"format = {wanted!r}: not one of auto, {', '.join(FORMATS)}", hint=nearest(wanted, ["auto", *FORMATS])
        )
    questions, answers = [], []
    for path, label in expand(raw):
        first = _first_row(path, skip_broken)
        if bfcl_questions.is_answer(first):
            answers.append(path)
        else:
            questions.append((path, label, FORMATS[wanted] if wanted != "auto" else _detected(path, first)))
    if answers and not questions:
        raise DataError(f"{answers[0]}: possible answers without their questions", hint="name the questions as well")
    return [Source(path, label, form, _answers(path, form, answers)) for path, label, form in questions]


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
