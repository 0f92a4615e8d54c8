"""Writing shards: atomic, resumable, and refusing to mix two configurations in one folder.

A shard is written in `<folder>.tmp/`, read back, synced, noted in a journal there and renamed, so that whatever stands
in the folder is whole and its digest is known before the manifest is written. Footers carry kind, version, config and
input digests. A rerun compares what is there with these digests and never takes new ones of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl

from toolsample_cli import __version__
from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.hashing import file_sums
from toolsample_cli.json_types import Json, Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import KEPT, in_words
from toolsample_cli.shards.journal import Journal
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.shards.made_from import ANEW, changed_keys, lineage, refuse_changes
from toolsample_cli.shards.manifest import Entry, Manifest, manifest_files, manifest_path, shard_number, verify
from toolsample_cli.shards.reading import (
    FOOTER_KEY,
    TornShard,
    numbered,
    read_footer,
    read_frame,
    refuse_nested,
    rows_of,
)
from toolsample_cli.shards.sealed import sync_folder
from toolsample_cli.shards.slice import Slice

ROW_GROUP = 4096
"""Rows in a row group: small enough that fetching one task reads little, large enough to compress (measured)."""


@dataclass
class Output:
    """A folder that one stage writes: opened, filled shard by shard, finished with a manifest.

    Use as a context manager. `config` and `inputs` (name -> digest) are compared with what stands there:
    equal shards are `done`, a difference is refused with the keys that differ unless `overwrite`. Keys in
    `may_change` (such as rollout's n) do not forbid going on; the stage then asks `existing`. `lock` False is for
    file systems without locks.
    """

    path: Path
    kind: schema.Kind
    config: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    overwrite: bool = False
    slice: Slice = Slice()
    may_change: Set[str] = frozenset()
    lock: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    _known: dict[str, list[Entry]] = field(default_factory=dict)  # what manifests and journals say of each shard
    _written: dict[str, Entry] = field(default_factory=dict)  # shards of this run's output
    _lock: FolderLock | None = None
    _journal: Journal | None = None

    def __enter__(self) -> Output:
        self.path = Path(self.path)
        if not self.path.name:  # `-o .`: companions are named after the folder
            self.path = self.path.resolve()
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path}: exists and is not a folder")
        refuse_nested(self.path)
        self._lock = FolderLock(self.path, self._beside, self.slice, enabled=self.lock)
        self._lock.take()
        try:
            with _as_failure(self.path):
                self._sweep()
                if self.overwrite:
                    self._clear()
                else:
                    self._known = self._recorded()
                    self._refuse_other_slices()
                    self._refuse_changes()
                self.path.mkdir(parents=True, exist_ok=True)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._journal is not None:
            self._journal.__exit__(kind, value, trace)
            if not self._journal.records:
                self._journal.remove()
        if kind is not None:
            with contextlib.suppress(OSError):  # only an empty folder goes: a stage that failed at once leaves nothing
                self.path.rmdir()
        assert self._lock is not None
        self._lock.release()

    @property
    def _beside(self) -> Path:
        return self.path.parent / f"{self.path.name}.tmp"

    @property
    def manifest_path(self) -> Path:
        """Where this slice's manifest stands once it is finished."""
        return manifest_path(self.path, self.slice.suffix)

    @property
    def _journal_path(self) -> Path:
        return self._beside / f"written{self.slice.suffix}.jsonl"

    def _recorded(self) -> dict[str, list[Entry]]:
        """What is known of the shards that are there: from manifests, and from the journals of killed runs.

        A shard that was being replaced when its run died has two entries, of which either may be there.
        """
        found = [entry for _, file in self._manifests() for entry in Manifest.read(file).shards]
        for file in sorted(self._beside.glob("written*.jsonl")):
            journal = Journal(file, {"kind": self.kind.name}, foreign="replace")
            found += [Entry.read(record["shard"], file) for record in journal.records.values()]
        known: dict[str, list[Entry]] = {}
        for entry in found:
            known.setdefault(entry.name, []).append(entry)
        return known

    def _note(self, *entries: Entry) -> None:
        """Let the journal know them before they are in the folder."""
        if self._journal is None:
            self._journal = Journal(self._journal_path, {"kind": self.kind.name}, foreign="replace").__enter__()
        self._journal.add(*({"id": _entry_id(entry), "shard": dataclasses.asdict(entry)} for entry in entries))

    def _sweep(self) -> None:
        """Take away half-written shards of a killed run."""
        for file in self._beside.glob("*.parquet"):
            if self._owns(file.name):
                file.unlink()
        (self.path.parent / f".{self.manifest_path.name}.tmp").unlink(missing_ok=True)
        if self.overwrite:
            self._journal_path.unlink(missing_ok=True)

    def _owns(self, name: str) -> bool:
        match = re.fullmatch(r"part-(\d+)\.parquet", name)
        return match is not None and self.slice.owns(int(match[1]))

    def _standing(self) -> list[tuple[int, Path]]:
        return numbered(self.path) if self.path.exists() else []

    def _clear(self) -> None:
        """Delete what this slice made before; never data of another kind, such as a stage's own input."""
        mine = [file for number, file in self._standing() if self.slice.owns(number)]
        for file in mine:
            try:
                self._refuse_other_kind(file, read_footer(file))
            except TornShard:
                continue
        self._remove_manifests()
        for file in mine:
            file.unlink()

    def _unfinish(self) -> None:
        """From now on the folder is unfinished: its manifests go before the first shard changes.

        What they say of other shards goes to the journal first, or a kill would leave shards of unknown digest.
        """
        if self._doomed():
            noted = self._journal.records if self._journal is not None else {}
            entries = (entry for known in self._known.values() for entry in known)
            self._note(*(entry for entry in entries if _entry_id(entry) not in noted))
            assert self._journal is not None
            self._journal.sync()
            self._remove_manifests()

    def _doomed(self) -> list[Path]:
        own, count = self.slice.suffix, self.slice.count
        return [
            file
            for suffix, file in self._manifests()
            if count == 1 or suffix == own or not suffix.endswith(f"-of-{count}")
        ]

    def _remove_manifests(self) -> None:
        for file in self._doomed():
            file.unlink(missing_ok=True)

    def _manifests(self) -> list[tuple[str, Path]]:
        return manifest_files(self.path)

    def _refuse_other_slices(self) -> None:
        """A slice may go on beside its equals only: the manifest of any other cut would be lost or contradict."""
        if self.slice.count == 1 or self.slice.joined:
            return
        for cut, _ in self._manifests():
            if not cut.endswith(f"-of-{self.slice.count}"):
                was = f"in slices of {cut.rpartition('-')[2]}" if cut else "as a whole"
                raise ConfigError(
                    f"{self.path}: was made {was}, now --slice {self.slice.index}/{self.slice.count}",
                    hint="give --overwrite to every slice to make it again, or choose another output folder",
                )

    def _refuse_other_kind(self, file: Path, footer: Row) -> None:
        if footer.get("kind") != self.kind.name:
            raise DataError(
                f"{file}: holds {footer.get('kind', 'foreign data')}, this stage writes {self.kind.name}",
                hint="choose another output folder",
            )

    def _refuse_changes(self) -> None:
        new = self._lineage()
        for _, file in self._standing():
            self._verified(file)
            footer = read_footer(file)
            self._refuse_other_kind(file, footer)
            refuse_changes(self.path, _made_from(footer), new, free=self.may_change, hint=ANEW)

    def _verified(self, file: Path) -> Entry | None:
        """The entry of a shard whose bytes are those that were written; None for one without a record."""
        entries = self._known.get(file.name, [])
        for entry in entries[:-1]:
            with contextlib.suppress(DataError):
                verify(file, entry)
                return entry
        if not entries:
            return None
        verify(file, entries[-1])
        return entries[-1]

    def _lineage(self) -> dict[str, Json]:
        return lineage(json.loads(json.dumps(dict(self.config))), self.inputs)

    @staticmethod
    def name(number: int) -> str:
        """File name of shard `number`."""
        return f"part-{number:05d}.parquet"

    def done(self, number: int) -> bool:
        """Whether this shard is there undamaged, made from the same config and inputs."""
        file = self.path / self.name(number)
        if not file.exists():
            return False
        entry = self._verified(file)
        if changed_keys(_made_from(read_footer(file)), self._lineage()):
            return False
        if file.name not in self._written:
            # without a record, as an older version left it or after that was deleted, it is taken as it is
            self._written[file.name] = entry or _measured(file, rows_of(file))
        return True

    def existing(self, number: int) -> pl.DataFrame | None:
        """The shard as it stands, for topping up; None when there is none."""
        file = self.path / self.name(number)
        if not file.exists():
            return None
        self._verified(file)
        return read_frame(file, self.kind)

    def write(self, number: int, data: pl.DataFrame) -> Path:
        """Write one shard: checked against the contract, read back, synced, renamed. Returns its path."""
        file = self.path / self.name(number)
        schema.check(self.kind, data, str(file))
        beside = self._beside / file.name
        try:
            self._unfinish()
            self._write_beside(beside, data)
            rows = rows_of(beside)
            if rows != data.height:
                raise StageFailure(f"{file}: wrote {data.height} rows, {rows} can be read back")
            entry = _measured(beside, rows)
            self._note(entry)
            beside.replace(file)
            sync_folder(self.path)
        except (OSError, pl.exceptions.PolarsError, TornShard) as error:
            why = in_words(error, self._beside)
            beside.unlink(missing_ok=True)
            raise StageFailure(f"{file}: could not be written: {why}", hint=KEPT) from error
        self._written[file.name] = entry
        self._known[file.name] = [entry]
        return file

    def _write_beside(self, beside: Path, data: pl.DataFrame) -> None:
        record = {
            "kind": self.kind.name,
            "schema_version": schema.VERSION,
            "version": __version__,
            "config": dict(self.config),
            "inputs": dict(self.inputs),
        }
        data.select(list(self.kind.schema)).write_parquet(
            beside,
            compression="zstd",
            compression_level=3,
            row_group_size=ROW_GROUP,
            metadata={FOOTER_KEY: json.dumps(record, sort_keys=True, allow_nan=False)},
        )
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())

    def finish(self) -> Path:
        """Write the manifest: from now on readers take the folder as finished. Returns its path."""
        shards = sorted(self._written.values(), key=lambda shard: shard_number(shard.name))
        with _as_failure(self.path):
            for number, file in self._standing():
                if self.slice.owns(number) and file.name not in self._written:
                    self._unfinish()
                    file.unlink()  # left from a run with more input
        config = json.loads(json.dumps(dict(self.config)))
        manifest = Manifest(self.kind.name, config, dict(self.inputs), dict(self.counts), tuple(shards))
        with _as_failure(self.manifest_path):
            for old in self._doomed():
                if old != self.manifest_path:
                    old.unlink()
            manifest.write(self.manifest_path)
            if self._journal is not None:
                self._journal.__exit__(None, None, None)
            self._journal = None
            if not self.slice.joined:  # other slices may need it until all of them are one
                self._journal_path.unlink(missing_ok=True)
            if self.slice.count == 1:
                for file in self._beside.glob("written*.jsonl"):
                    file.unlink(missing_ok=True)
        return self.manifest_path


def sweep_finished(out: Path, slice: Slice = Slice(), *, lock: bool = True) -> None:
    """Take away what a run that was killed right after it had finished a folder left beside it."""
    beside = out.parent / f"{out.name}.tmp"
    if beside.is_dir():
        with FolderLock(out, beside, slice, enabled=lock):
            (beside / f"written{slice.suffix}.jsonl").unlink(missing_ok=True)
            (out.parent / f".{manifest_path(out, slice.suffix).name}.tmp").unlink(missing_ok=True)


def _entry_id(entry: Entry) -> str:
    return f"{entry.name}:{entry.sha256}"


def _measured(file: Path, rows: int) -> Entry:
    sums = file_sums(file)
    return Entry(file.name, rows, sums.bytes, sums.sha256, sums.xxh3)


def _made_from(footer: Row) -> dict[str, Json]:
    return lineage(footer.get("config", {}), footer.get("inputs", {}))


@contextlib.contextmanager
def _as_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StageFailure(f"{path}: could not be written: {in_words(error, path.parent)}", hint=KEPT) from error
