"""What a path is, and which folders of shards stand near it: joins need no flags when a run lies in one place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import numbered, read_footer

NEAR = 2
"""Folders upwards in which companions are looked for."""


@dataclass(frozen=True)
class Place:
    """A folder of shards or one Parquet file, finished or not: `kind` is None for another program's file."""

    path: Path
    kind: str | None
    files: tuple[Path, ...]
    manifests: tuple[dict[str, Any], ...]

    @property
    def complete(self) -> bool | None:
        """Whether its stage finished; None for a file or another program's data."""
        if self.kind is None or self.path.is_file():
            return None
        return bool(self.manifests) and all(manifest.get("complete") for manifest in self.manifests)

    def rows(self) -> int:
        """Rows in all its files, from their footers."""
        return sum(rows_of(file) for file in self.files)


def rows_of(file: Path) -> int:
    """Rows of one Parquet file. DataError when it is torn."""
    read_footer(file)
    return pl.scan_parquet(file, glob=False, hive_partitioning=False).select(pl.len()).collect().item()


def look(path: Path) -> Place | None:
    """The shards at `path`, or None when the folder holds none of its own. DataError when there is nothing."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    manifests = tuple(read_manifest(file) for file in manifest_files(path))
    if path.is_dir() and not manifests and not any(path.glob("*.parquet")):
        return None
    if path.is_file() and path.suffix != ".parquet":
        raise DataError(f"{path}: not Parquet", hint="inspect takes shards, folders of shards and run folders")
    files = tuple(file for _, file in numbered(path))
    kind = manifests[0].get("kind") if manifests else None
    if kind is None and files:
        kind = read_footer(files[0]).get("kind") or _by_columns(files[0])
    return Place(path, kind if kind in schema.KINDS else None, files, manifests)


def manifest_files(path: Path) -> list[Path]:
    """The manifest of a folder, or those of its slices."""
    prefix = f"{path.name}.manifest"
    beside = path.resolve().parent
    return sorted(file for file in beside.iterdir() if file.name.startswith(prefix) and file.name.endswith(".json"))


def read_manifest(file: Path) -> dict[str, Any]:
    """One manifest. DataError when it is not one."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(value, dict) or "kind" not in value:
        raise DataError(f"{file}: not a manifest")
    return value


def _by_columns(file: Path) -> str | None:
    names = set(pl.read_parquet_schema(file))
    return next((kind.name for kind in schema.KINDS.values() if names == set(kind.schema)), None)


def companions(given: list[Place]) -> list[Place]:
    """The folders given, then those whose manifests stand beside or above the first one, nearest first."""
    found, seen = list(given), {place.path.resolve() for place in given}
    folder = given[0].path.resolve()
    for _ in range(NEAR):
        folder = folder.parent
        for manifest in sorted(folder.glob("*.manifest*.json")):
            path = folder / manifest.name.partition(".manifest")[0]
            if path.is_dir() and path.resolve() not in seen:
                seen.add(path.resolve())
                place = look(path)
                found += [place] if place is not None else []
    return found
