"""What a path is, and which folders of shards stand near it: joins need no flags when a run lies in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.manifest import Entry, Manifest, manifest_files, read_manifests, verify
from toolsample_cli.shards.reading import numbered, read_footer, rows_of

NEAR = 2
"""Folders upwards in which companions are looked for."""


@dataclass(frozen=True)
class ShardFolder:
    """A folder of shards or one Parquet file, finished or not: `kind` is None for another program's file."""

    path: Path
    kind: str | None
    files: tuple[Path, ...]
    manifests: tuple[Manifest, ...]

    @property
    def complete(self) -> bool | None:
        """Whether its stage finished; None for a file or another program's data."""
        if self.kind is None or self.path.is_file():
            return None
        return bool(self.manifests)

    @property
    def entries(self) -> dict[str, Entry]:
        """What the manifests say of each shard, by file name."""
        return {entry.name: entry for manifest in self.manifests for entry in manifest.shards}

    def verify(self, file: Path) -> None:
        """DataError when a shard is not what its manifest recorded."""
        entry = self.entries.get(file.name)
        if entry is not None:
            verify(file, entry)

    def scan(self, file: Path) -> pl.LazyFrame:
        """A lazy frame of one shard, whose bytes have been compared with its manifest."""
        self.verify(file)
        read_footer(file)  # names a torn file before polars does
        return pl.scan_parquet(file, glob=False, hive_partitioning=False)

    def rows(self) -> int:
        """Rows in all its files, from their footers."""
        return sum(rows_of(file) for file in self.files)


def look(path: Path) -> ShardFolder | None:
    """The shards at `path`, or None when the folder holds none of its own. DataError when there is nothing."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    manifests = _manifests(path)
    if path.is_dir() and not manifests and not any(path.glob("*.parquet")):
        return None
    if path.is_file() and path.suffix != ".parquet":
        raise DataError(f"{path}: not Parquet", hint="inspect takes shards, folders of shards and run folders")
    files = tuple(file for _, file in numbered(path))
    kind = manifests[0].kind if manifests else None
    if kind is None and files:
        kind = read_footer(files[0]).get("kind") or _by_columns(files[0])
    return ShardFolder(path, kind if kind in schema.KINDS else None, files, manifests)


def _manifests(path: Path) -> tuple[Manifest, ...]:
    """Those of a finished folder; none where slices are still missing."""
    files = [file for _, file in manifest_files(path)]
    manifests = [Manifest.read(file) for file in files]
    try:
        return tuple(read_manifests(path))
    except DataError:
        if len(manifests) < 2 and not any(file.name == f"{path.name}.manifest.json" for file in files):
            return ()
        raise


def _by_columns(file: Path) -> str | None:
    names = set(pl.read_parquet_schema(file))
    return next((kind.name for kind in schema.KINDS.values() if names == set(kind.schema)), None)


def companions(given: list[ShardFolder]) -> list[ShardFolder]:
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
