"""What a finished folder of shards holds: `<folder>.manifest.json`, or one for each slice, with a digest per shard.

A manifest is sealed (`sealed.py`): a changed setting, count or digest in it is noticed. `verify` compares a shard's
bytes with it, all of them and once per process, whatever columns are read afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolsample_cli import __version__
from toolsample_cli.errors import DataError
from toolsample_cli.hashing import sha256, xxh3
from toolsample_cli.json_types import Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.sealed import SEAL, read_json, unsealed, write_sealed

MEND = "move it away and rerun the stage that wrote it; its shards are kept as they are"
MEND_SHARD = "delete that file and rerun the stage that wrote it: this shard alone is made anew"
RESUME = "rerun that stage; it resumes where it stopped"
SETTLED_NS = 2_000_000_000
"""A file that changed less than this ago is read again next time: its clock may be that coarse."""


@dataclass(frozen=True)
class Entry:
    """One shard in a manifest; `xxh3` is None where an older version wrote it."""

    name: str
    rows: int
    bytes: int
    sha256: str
    xxh3: str | None = None

    @classmethod
    def read(cls, value: object, where: Path) -> Entry:
        """From JSON. DataError for a missing field or a wrong type."""
        return cls(**_checked(value, _ENTRY, {"xxh3"}, where))


@dataclass(frozen=True)
class Manifest:
    """Kind, settings, inputs (name to digest), counts and shards of a finished folder, or of one slice of it."""

    kind: str
    config: Row
    inputs: dict[str, str]
    counts: dict[str, float]
    shards: tuple[Entry, ...]
    schema_version: int = schema.VERSION
    version: str = __version__
    complete: bool = True

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return sum(shard.rows for shard in self.shards)

    def write(self, file: Path) -> None:
        """Replace the file in one step."""
        head: Row = {"kind": self.kind, "schema_version": self.schema_version, "version": self.version}
        head |= {"complete": self.complete, "config": self.config, "inputs": self.inputs, "rows": self.rows}
        shards = [dataclasses.asdict(shard) for shard in self.shards]
        write_sealed(file, {**head, "counts": dict(sorted(self.counts.items())), "shards": shards})

    @classmethod
    def read(cls, file: Path) -> Manifest:
        """One manifest. DataError when it is damaged, of a newer version, or says that the stage has not finished."""
        value = read_json(file, hint=MEND)
        if isinstance(value, dict) and SEAL not in value and value.keys() == _MANIFEST.keys():
            content = value  # written before manifests were sealed; any other set of keys is damage
        else:
            content = unsealed(value, file, hint=MEND)
        fields = _checked(content, _MANIFEST, set(), file)
        rows = fields.pop("rows")
        fields["shards"] = tuple(Entry.read(shard, file) for shard in fields["shards"])
        manifest = cls(**fields)
        if manifest.schema_version > schema.VERSION:
            newer = f"written by a newer toolsample (schema {manifest.schema_version})"
            raise DataError(f"{file}: {newer}", hint="upgrade toolsample")
        if not manifest.complete:
            raise DataError(f"{file}: says that its stage has not finished", hint=RESUME)
        if rows != manifest.rows or len({shard.name for shard in manifest.shards}) < len(manifest.shards):
            raise DataError(f"{file}: damaged: its shards do not add up to {rows} rows", hint=MEND)
        return manifest


_MANIFEST: dict[str, type | tuple[type, ...]] = {
    **{"kind": str, "schema_version": int, "version": str, "complete": bool, "config": dict, "inputs": dict},
    **{"rows": int, "counts": dict, "shards": list},
}
_ENTRY: dict[str, type | tuple[type, ...]] = {"name": str, "rows": int, "bytes": int, "sha256": str, "xxh3": str}


def _checked(value: object, fields: Mapping[str, type | tuple[type, ...]], optional: set[str], where: Path) -> Row:
    """The value itself if it is an object of exactly these fields and types."""
    if not isinstance(value, dict) or not fields.keys() - optional <= value.keys() <= fields.keys():
        raise DataError(f"{where}: damaged: not a manifest", hint=MEND)
    for name, item in value.items():
        if not isinstance(item, fields[name]) or (isinstance(item, bool) and fields[name] is not bool):
            raise DataError(f"{where}: damaged: {name} is {type(item).__name__}", hint=MEND)
    return value


def manifest_path(folder: Path, suffix: str = "") -> Path:
    """Where the manifest of a folder, or of its slice with this suffix (`-0-of-3`), stands."""
    return folder.parent / f"{folder.name}.manifest{suffix}.json"


def manifest_files(folder: Path) -> list[tuple[str, Path]]:
    """(suffix, file) of every manifest beside a folder; the suffix of the whole folder's is empty."""
    pattern = re.compile(re.escape(folder.name) + r"\.manifest(|-\d+-of-\d+)\.json")
    parent = folder.resolve().parent
    if not parent.is_dir():
        return []
    found = ((pattern.fullmatch(file.name), folder.parent / file.name) for file in parent.iterdir())
    return sorted((match[1], file) for match, file in found if match)


def read_manifests(folder: Path) -> list[Manifest]:
    """The manifest of the whole folder, or those of all its slices; none when the stage has not finished.

    Raises DataError when slices are missing or disagree.
    """
    files = dict(manifest_files(folder))
    if "" in files:
        return [Manifest.read(files[""])]
    cuts = sorted(tuple(int(number) for number in re.findall(r"\d+", suffix)) for suffix in files)
    counts = sorted({count for _, count in cuts})
    if len(counts) > 1:
        raise DataError(
            f"{folder}: slices of {' and of '.join(map(str, counts))}",
            hint="rerun it with one --slice count, --overwrite",
        )
    if cuts and len(cuts) != counts[0]:
        raise DataError(
            f"{folder}: only {len(cuts)} of {counts[0]} slices are finished", hint="run the missing --slice i/n first"
        )
    manifests = [Manifest.read(files[f"-{index}-of-{count}"]) for index, count in cuts]
    for manifest in manifests[1:]:
        for name in ("config", "inputs"):
            if getattr(manifest, name) != getattr(manifests[0], name):
                raise DataError(
                    f"{folder}: its slices were made with different {name}", hint="rerun it with --overwrite"
                )
    return manifests


def merge_slices(folder: Path) -> Path:
    """The manifests of all slices as the one that a single run would have written; they are removed."""
    whole = manifest_path(folder)
    slices = [file for suffix, file in manifest_files(folder) if suffix]
    if not slices:
        return whole
    manifests = read_manifests(folder)
    shards = sorted((shard for one in manifests for shard in one.shards), key=lambda shard: shard_number(shard.name))
    dataclasses.replace(manifests[0], counts=summed(manifests), shards=tuple(shards)).write(whole)
    for file in slices:
        file.unlink()
    for file in (folder.parent / f"{folder.name}.tmp").glob("written*.jsonl"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (folder.parent / f"{folder.name}.tmp").rmdir()
    return whole


def summed(manifests: Sequence[Manifest]) -> dict[str, float]:
    """Counts of all slices together."""
    counts: Counter[str] = Counter()
    for manifest in manifests:
        counts.update(manifest.counts)
    return dict(counts)


def shard_number(name: str) -> int:
    """The number in a shard's file name."""
    match = re.fullmatch(r".*?(\d+)(?:-of-\d+)?\.parquet", name)
    return int(match[1]) if match else -1


def verify_below(root: Path) -> None:
    """Compare every finished shard in a tree of folders with its manifest. DataError for the first that differs."""
    for file in sorted(root.rglob("*.manifest*.json")):
        folder = file.parent / file.name.partition(".manifest")[0]
        for entry in Manifest.read(file).shards:
            verify(folder / entry.name, entry)


_verified: dict[Path, tuple[int, int, int, str]] = {}
_lock = threading.Lock()


def verify(file: Path, entry: Entry, *, hint: str = MEND_SHARD) -> None:
    """Compare all bytes of a shard with its manifest, once per process for a file that stays as it is.

    Raises DataError naming the file.
    """
    try:
        now = file.stat()
    except FileNotFoundError:
        raise DataError(f"{file}: missing, though it was written", hint=hint) from None
    mark = (now.st_size, now.st_mtime_ns, now.st_ino, entry.xxh3 or entry.sha256)
    if _verified.get(file) == mark:
        return
    if now.st_size != entry.bytes:
        raise DataError(f"{file}: damaged: {now.st_size} bytes, written were {entry.bytes}", hint=hint)
    same = sha256(file) == entry.sha256 if entry.xxh3 is None else xxh3(file) == entry.xxh3
    if not same:
        raise DataError(f"{file}: damaged: its bytes differ from those that were written", hint=hint)
    if time.time_ns() - now.st_mtime_ns > SETTLED_NS:
        with _lock:
            _verified[file] = mark
