"""Reading shards: numerical order, explicit checks, and one clear error for whatever is missing or torn.

A folder holds `part-00000.parquet`, ... and nothing else; `<folder>.manifest.json` beside it says that the
stage finished. `output.py` is the writing side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest, sha256
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.manifest import (
    MEND_SHARD,
    RESUME,
    Entry,
    Manifest,
    manifest_files,
    read_manifests,
    summed,
    verify,
)
from toolsample_cli.shards.slice import Slice

FOOTER_KEY = "toolsample"


class TornShard(DataError):
    """A file that is not a whole Parquet file."""


@dataclass(frozen=True)
class Shard:
    """One finished Parquet file."""

    path: Path
    number: int
    rows: int
    sha256: str
    entry: Entry | None = None  # what its manifest says; None for a file without one

    def verify(self) -> None:
        """DataError unless its bytes are those that its manifest recorded; once per process."""
        if self.entry is not None:
            verify(self.path, self.entry)


@dataclass(frozen=True)
class Folder:
    """A readable folder (or single file) of shards of one kind, in numerical order."""

    path: Path
    kind: schema.Kind
    shards: tuple[Shard, ...]
    config: Row
    counts: dict[str, float]

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def digest(self) -> str:
        """16 hex digits that identify the content."""
        return digest([shard.sha256 for shard in self.shards])

    def read(self, shard: Shard, columns: list[str] | None = None) -> pl.DataFrame:
        """One shard, checked against its manifest and the contract; `columns` reads only those.

        All bytes of the file are compared, also those of columns that are not read.
        """
        shard.verify()
        frame = read_frame(shard.path, self.kind, columns)
        if frame.height != shard.rows:
            raise DataError(f"{shard.path}: damaged: {frame.height} rows, expected {shard.rows}", hint=MEND_SHARD)
        return frame

    def scan(self, shard: Shard) -> pl.LazyFrame:
        """A lazy frame of one shard, whose bytes have been compared with its manifest."""
        shard.verify()
        return pl.scan_parquet(shard.path, glob=False, hive_partitioning=False)

    def frames(self, columns: list[str] | None = None, slice: Slice = Slice()) -> Iterator[tuple[Shard, pl.DataFrame]]:
        """Every shard of the slice in order, one in memory at a time."""
        for shard in self.shards:
            if slice.owns(shard.number):
                yield shard, self.read(shard, columns)

    def load(self, columns: list[str] | None = None) -> pl.DataFrame:
        """All shards in one frame; for what is known to be small."""
        frames = [frame for _, frame in self.frames(columns)]
        if frames:
            return pl.concat(frames)
        empty = pl.DataFrame(schema=self.kind.schema)
        return empty.select(columns) if columns else empty


def read_frame(path: Path, kind: schema.Kind, columns: list[str] | None = None) -> pl.DataFrame:
    """One Parquet file as a frame of this kind; DataError names the file and what is wrong with it."""
    footer = read_footer(path)
    found = footer.get("kind", kind.name)
    if found != kind.name:
        raise DataError(f"{path}: holds {found}, expected {kind.name}")
    if footer.get("schema_version", schema.VERSION) > schema.VERSION:
        raise DataError(
            f"{path}: written by a newer toolsample (schema {footer['schema_version']})", hint="upgrade toolsample"
        )
    try:
        data = pl.read_parquet(path, columns=columns, glob=False, hive_partitioning=False)
    except pl.exceptions.ColumnNotFoundError as error:
        raise DataError(f"{path}: not a {kind.name} shard: no column {error}") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if columns:
        kind = schema.Kind(kind.name, kind.meaning, tuple(c for c in kind.columns if c.name in columns), (columns[0],))
        return schema.check(kind, data.select(list(kind.schema)), str(path))
    return schema.check(kind, data, str(path)).select(list(kind.schema))


def read_footer(path: Path) -> Row:
    """The lineage record in a Parquet footer ({} when another program wrote the file)."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise TornShard(f"{path}: 0 bytes, the shard was lost", hint="delete it and rerun the stage that wrote it")
    try:
        metadata = pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TornShard(
            f"{path}: not a whole Parquet file: {error}", hint="delete it and rerun the stage that wrote it"
        ) from None
    try:
        footer = json.loads(metadata.get(FOOTER_KEY, "{}"))
    except ValueError:
        footer = None
    if not isinstance(footer, dict):
        raise DataError(f"{path}: its lineage record is not JSON")
    return footer


def refuse_nested(out: Path, *inputs: Path | str | None) -> None:
    """ConfigError when `out` would lie inside a folder of shards or an input folder: either could not be read again."""
    place = Path(out).resolve()
    for folder in place.parents:
        if any(folder.parent.glob(f"{glob_safe(folder.name)}.manifest*.json")):
            raise ConfigError(f"{out}: lies inside {folder}, a folder of shards", hint="choose a folder beside it")
    for given in inputs:
        source = Path(given).resolve() if given is not None else place
        if source.is_dir() and source in place.parents:
            raise ConfigError(f"{out}: lies inside its own input {given}", hint="choose a folder beside it")
        if place in source.parents:
            raise ConfigError(f"{out}: its own input {given} lies in it", hint="choose a folder beside it")


def glob_safe(name: str) -> str:
    """A file name as a glob pattern that matches nothing else."""
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def open_folder(path: Path, kind: schema.Kind) -> Folder:
    """Open finished shards for reading.

    Raises DataError when the folder is missing, holds something else, lacks a shard its manifest names, or
    when its stage has not finished. The content of a shard is compared with its manifest when it is first read.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder", hint=f"expected a folder of {kind.name} shards")
    if not path.name:
        path = path.resolve()
    files = numbered(path)
    manifests = read_manifests(path) if path.is_dir() else []
    listed = manifests if path.is_dir() else _manifests_around(path)
    for manifest in manifests:
        if manifest.kind != kind.name:
            raise DataError(f"{path}: a folder of {manifest.kind} shards, expected {kind.name}")
    _refuse_unfinished(path, manifests, files)
    entries = {entry.name: entry for manifest in listed for entry in manifest.shards}
    shards = tuple(_shard(number, file, kind, entries.get(file.name), bool(manifests)) for number, file in files)
    if not shards and not manifests:
        raise DataError(f"{path}: no shards in it", hint=f"expected a folder of {kind.name} shards")
    config = manifests[0].config if manifests else (read_footer(files[0][1]).get("config", {}) if files else {})
    return Folder(path, kind, shards, config, summed(manifests))


def _manifests_around(file: Path) -> list[Manifest]:
    """What is known about a single file: the manifests of its folder, should it be a shard in one."""
    return [Manifest.read(found) for _, found in manifest_files(file.absolute().parent)]


def _shard(number: int, file: Path, kind: schema.Kind, entry: Entry | None, listed: bool) -> Shard:
    size = file.stat().st_size
    if entry is None and listed:
        raise DataError(f"{file}: not named in the manifest beside its folder", hint="rerun the stage, or move it away")
    if entry is None or not listed or not size:
        footer = read_footer(file)
        if footer.get("kind", kind.name) != kind.name:
            raise DataError(f"{file}: holds {footer['kind']}, expected {kind.name}")
    if entry is None:
        return Shard(file, number, rows_of(file), sha256(file))
    if entry.bytes != size:
        raise DataError(f"{file}: damaged: {size} bytes, its manifest says {entry.bytes}", hint=MEND_SHARD)
    return Shard(file, number, entry.rows, entry.sha256, entry)


def rows_of(file: Path) -> int:
    """Rows of one Parquet file, from its metadata. DataError when it is torn."""
    read_footer(file)
    return int(pl.scan_parquet(file, glob=False, hive_partitioning=False).select(pl.len()).collect().item())


def numbered(path: Path) -> list[tuple[int, Path]]:
    """(number, file) of every shard, by number; a foreign file is an error, a hidden one is not a shard."""
    if path.is_file():
        return [(0, path)]
    found: dict[int, Path] = {}
    for file in path.iterdir():
        if file.name.startswith((".", "_")):
            continue
        match = re.fullmatch(r".*?(\d+)(?:-of-\d+)?\.parquet", file.name)
        if not match or not file.is_file():
            raise DataError(
                f"{file}: does not belong in a folder of shards",
                hint="move it away; shards are named part-00000.parquet",
            )
        number = int(match[1])
        if number in found:
            raise DataError(f"{file}: has the same number as {found[number].name}", hint="move one of them away")
        found[number] = file
    return sorted(found.items())


def _refuse_unfinished(path: Path, manifests: list[Manifest], files: list[tuple[int, Path]]) -> None:
    present = {file.name for _, file in files}
    missing = [entry.name for manifest in manifests for entry in manifest.shards if entry.name not in present]
    if missing:
        raise DataError(
            f"{path / missing[0]}: missing, though the manifest names it", hint="rerun the stage that wrote it"
        )
    if not manifests and any(read_footer(file).get("kind") for _, file in files[:1]) and path.is_dir():
        raise DataError(f"{path}: its stage has not finished (no manifest beside it)", hint=RESUME)
