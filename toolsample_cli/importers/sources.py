"""Which raw files are meant: files, folders and `hf://` paths, each with the format of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolsample_cli.config import nearest
from toolsample_cli.errors import ConfigError, DataError, location
from toolsample_cli.importers import FORMATS, Format, detect
from toolsample_cli.importers.reading import SUFFIXES, raw_rows


@dataclass(frozen=True)
class Source:
    """One raw file, the name it was asked for by, and the format of its rows."""

    path: Path
    label: str
    format: Format


def expand(raw: list[str]) -> list[tuple[Path, str]]:
    """(file, label) of everything named; folders give their data files, sorted. Raises DataError."""
    found = []
    for name in raw:
        path = Path(name)
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if _is_data(file, path))
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


def sources(raw: list[str], wanted: str) -> list[Source]:
    """Every raw file with its format: `wanted`, or by the keys of its first row. Raises ConfigError or DataError."""
    if wanted != "auto" and wanted not in FORMATS:
        raise ConfigError(
            f"format = {wanted!r}: not one of auto, {', '.join(FORMATS)}", hint=nearest(wanted, ["auto", *FORMATS])
        )
    return [
        Source(path, label, FORMATS[wanted] if wanted != "auto" else _detected(path)) for path, label in expand(raw)
    ]


def _detected(path: Path) -> Format:
    first = next(raw_rows(path), None)
    if first is None:
        raise DataError(f"{path}: no rows in it")
    if first.fault is not None:
        raise DataError(f"{location(path, row=first.number)}: {first.fault}")
    found = detect(first.value)
    if found is None:
        raise DataError(
            f"{path}: unknown format: {_shape(first.value)}", hint=f"give --format, one of {', '.join(FORMATS)}"
        )
    return found


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return f"rows have the keys {', '.join(map(str, list(value)[:12]))}"
    return f"rows are {type(value).__name__}, expected objects"
