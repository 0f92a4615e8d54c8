"""Reading shards: numerical order, explicit checks, and one clear error for whatever is missing or torn.

A folder holds `part-00000.parquet`, ... and nothing else; `<folder>.manifest.json` beside it says that the
stage finished. `output.py` is the writing side.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest, sha256
from toolsample_cli.shards import schema
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


@dataclass(frozen=True)
class Folder:
    """A readable folder (or single file) of shards of one kind, in numerical order."""

    path: Path
    kind: schema.Kind
    shards: tuple[Shard, ...]
    config: dict[str, Any]
    counts: dict[str, int]

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def digest(self) -> str:
        """16 hex digits that identify the content."""
        return digest([shard.sha256 for shard in self.shards])

    def read(self, shard: Shard, columns: list[str] | None = None) -> pl.DataFrame:
        """One shard, checked against the contract; `columns` reads (and checks) only those."""
        return read_frame(shard.path, self.kind, columns)

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


def read_footer(path: Path) -> dict[str, Any]:
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
    when its stage has not finished.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder", hint=f"expected a folder of {kind.name} shards")
    files = numbered(path)
    manifests = _manifests(path)
    _refuse_unfinished(path, manifests, files, kind)
    known = {entry["name"]: entry for manifest in manifests for entry in manifest["shards"]}
    shards = []
    for number, file in files:
        footer = read_footer(file)
        if footer.get("kind", kind.name) != kind.name:
            raise DataError(f"{file}: holds {footer['kind']}, expected {kind.name}")
        shards.append(_shard(number, file, known, bool(manifests)))
    if not shards and not manifests:
        raise DataError(f"{path}: no shards in it", hint=f"expected a folder of {kind.name} shards")
    counts: Counter[str] = Counter()
    for manifest in manifests:
        counts.update(manifest["counts"])
    config = manifests[0]["config"] if manifests else (read_footer(files[0][1]).get("config", {}) if files else {})
    return Folder(path, kind, tuple(shards), config, dict(counts))


def _shard(number: int, file: Path, known: dict[str, dict[str, Any]], listed: bool) -> Shard:
    entry, size = known.get(file.name), file.stat().st_size
    if entry is None and listed:
        raise DataError(f"{file}: not named in the manifest beside its folder", hint="rerun the stage, or move it away")
    if entry is None:
        rows = pl.scan_parquet(file, glob=False, hive_partitioning=False).select(pl.len()).collect().item()
        return Shard(file, number, rows, sha256(file))
    if entry["bytes"] != size:
        raise DataError(
            f"{file}: {size} bytes, its manifest says {entry['bytes']}", hint="rerun the stage that wrote it"
        )
    return Shard(file, number, entry["rows"], entry["sha256"])


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


def _manifests(path: Path) -> list[dict[str, Any]]:
    """The manifest of the whole folder, or those of all its slices. DataError when some are missing or disagree."""
    whole = path.parent / f"{path.name}.manifest.json"
    if whole.exists():
        return [_read_manifest(whole)]
    pattern = re.compile(re.escape(path.name) + r"\.manifest-(\d+)-of-(\d+)\.json")
    parts = [(match, file) for file in path.parent.iterdir() if (match := pattern.fullmatch(file.name))]
    counts = sorted({int(match[2]) for match, _ in parts})
    if len(counts) > 1:
        raise DataError(
            f"{path}: slices of {' and of '.join(map(str, counts))}",
            hint="rerun it with one --slice count, --overwrite",
        )
    if parts and len(parts) != counts[0]:
        raise DataError(
            f"{path}: only {len(parts)} of {counts[0]} slices are finished", hint="run the missing --slice i/n first"
        )
    manifests = [_read_manifest(file) for match, file in sorted(parts, key=lambda part: int(part[0][1]))]
    for manifest in manifests[1:]:
        for name in ("config", "inputs"):
            if manifest.get(name) != manifests[0].get(name):
                raise DataError(f"{path}: its slices were made with different {name}", hint="rerun it with --overwrite")
    return manifests


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(manifest, dict) or not {"kind", "config", "counts", "shards"} <= manifest.keys():
        raise DataError(f"{file}: not a manifest", hint="move it away and rerun the stage")
    return manifest


def _refuse_unfinished(
    path: Path, manifests: list[dict[str, Any]], files: list[tuple[int, Path]], kind: schema.Kind
) -> None:
    for manifest in manifests:
        if manifest.get("kind") != kind.name:
            raise DataError(f"{path}: a folder of {manifest.get('kind')} shards, expected {kind.name}")
    present = {file.name for _, file in files}
    missing = [entry["name"] for manifest in manifests for entry in manifest["shards"] if entry["name"] not in present]
    if missing:
        raise DataError(
            f"{path / missing[0]}: missing, though the manifest names it", hint="rerun the stage that wrote it"
        )
    if not manifests and any(read_footer(file).get("kind") for _, file in files[:1]) and path.is_dir():
        raise DataError(
            f"{path}: its stage has not finished (no manifest beside it)",
            hint="rerun that stage; it goes on where it stopped",
        )


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a small file in one step: beside it, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / f".{path.name}.tmp"
    with beside.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` of indented JSON with a final newline."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
