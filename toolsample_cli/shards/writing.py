"""Writing shards: atomic, resumable, and refusing to mix two configurations in one folder.

A shard is written in `<folder>.tmp/`, read back, fsynced and renamed, so that whatever stands in the folder is
whole. Footers carry kind, version, config and input digests: resuming needs nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli import __version__
from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.hashing import sha256
from toolsample_cli.shards import schema
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.shards.reading import (
    FOOTER_KEY,
    TornShard,
    glob_safe,
    numbered,
    read_footer,
    read_frame,
    refuse_nested,
    sync_folder,
    write_json,
)
from toolsample_cli.shards.slice import Slice

ROW_GROUP = 4096
"""Rows in a row group: small enough that fetching one task reads little, large enough to compress (measured)."""


@dataclass
class Output:
    """A folder that one stage writes: opened, filled shard by shard, finished with a manifest.

    Use as a context manager. `config` and `inputs` (name -> digest) are compared with what stands there:
    equal shards are `done`, a difference is refused with the keys that differ unless `overwrite`. Keys in
    `may_change` (such as rollout's n) do not forbid going on; the stage then asks `existing`.
    """

    path: Path
    kind: schema.Kind
    config: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    overwrite: bool = False
    slice: Slice = Slice()
    may_change: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)
    _written: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: Any = None

    def __enter__(self) -> Output:
        self.path = Path(self.path)
        if not self.path.name:  # `-o .`: companions are named after the folder
            self.path = self.path.resolve()
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path}: exists and is not a folder")
        refuse_nested(self.path)
        self._lock = FolderLock(self.path, self._beside, self.slice)
        self._lock.take()
        try:
            with _as_failure(self.path):
                self._sweep()
                if self.overwrite:
                    self._clear()
                else:
                    self._refuse_other_slices()
                    self._refuse_changes()
                self.path.mkdir(parents=True, exist_ok=True)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):  # only an empty folder goes: a stage that failed at once leaves nothing
                self.path.rmdir()
        self._lock.release()

    @property
    def _beside(self) -> Path:
        return self.path.parent / f"{self.path.name}.tmp"

    @property
    def manifest_path(self) -> Path:
        """Where this slice's manifest stands once it is finished."""
        return self.path.parent / f"{self.path.name}.manifest{self.slice.suffix}.json"

    def _sweep(self) -> None:
        """Take away half-written shards of a killed run."""
        for file in self._beside.glob("*.parquet"):
            if self._owns(file.name):
                file.unlink()

    def _owns(self, name: str) -> bool:
        match = re.fullmatch(r"part-(\d+)\.parquet", name)
        return bool(match) and self.slice.owns(int(match[1]))

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
        self._unfinish()
        for file in mine:
            file.unlink()

    def _unfinish(self) -> None:
        """From now on the folder is unfinished: its manifests go before the first shard changes."""
        for cut, manifest in self._manifests():
            if self.slice.count == 1 or cut == self.slice.suffix or not cut.endswith(f"-of-{self.slice.count}"):
                manifest.unlink(missing_ok=True)

    def _manifests(self) -> list[tuple[str, Path]]:
        """What stands beside the folder: ("" or "-0-of-3", file)."""
        prefix = f"{self.path.name}.manifest"
        found = self.path.parent.glob(f"{glob_safe(prefix)}*.json")
        return sorted((file.name.removeprefix(prefix).removesuffix(".json"), file) for file in found)

    def _refuse_other_slices(self) -> None:
        """A slice may go on beside its equals only: the manifest of any other cut would be lost or contradict."""
        if self.slice.count == 1 or self.slice.joined:
            return
        for cut, _ in self._manifests():
            if not cut.endswith(f"-of-{self.slice.count}"):
                was = f"in slices of {cut.rpartition('-')[2]}" if cut else "as a whole"
                raise ConfigError(
                    f"{self.path}: was made {was}, now --slice {self.slice.index}/{self.slice.count}",
                    hint="give --overwrite to every slice to make it anew, or another output folder",
                )

    def _refuse_other_kind(self, file: Path, footer: Mapping[str, Any]) -> None:
        if footer.get("kind") != self.kind.name:
            raise DataError(
                f"{file}: holds {footer.get('kind', 'foreign data')}, this stage writes {self.kind.name}",
                hint="choose another output folder",
            )

    def _refuse_changes(self) -> None:
        for _, file in self._standing():
            footer = read_footer(file)
            self._refuse_other_kind(file, footer)
            changed = sorted(key for key in self._differing(footer) if key not in self.may_change)
            if changed:
                changes = "; ".join(self._change(footer, key) for key in changed)
                raise ConfigError(
                    f"{self.path}: was made with other settings or inputs: {changes}",
                    hint="give --overwrite to make it anew, or another output folder",
                )

    def _differing(self, footer: Mapping[str, Any]) -> list[str]:
        old = {**footer.get("config", {}), **{f"input {k}": v for k, v in footer.get("inputs", {}).items()}}
        new = self._identity()
        return [key for key in {**old, **new} if old.get(key) != new.get(key)]

    def _identity(self) -> dict[str, Any]:
        return {**json.loads(json.dumps(dict(self.config))), **{f"input {k}": v for k, v in self.inputs.items()}}

    def _change(self, footer: Mapping[str, Any], key: str) -> str:
        old = {**footer.get("config", {}), **{f"input {k}": v for k, v in footer.get("inputs", {}).items()}}
        return f"{key} was {_brief(old.get(key))}, now {_brief(self._identity().get(key))}"

    @staticmethod
    def name(number: int) -> str:
        """File name of shard `number`."""
        return f"part-{number:05d}.parquet"

    def done(self, number: int) -> bool:
        """Whether this shard stands there, made from the same config and inputs."""
        file = self.path / self.name(number)
        if not file.exists() or self._differing(read_footer(file)):
            return False
        if file.name not in self._written:
            self._note(
                file, pl.scan_parquet(file, glob=False, hive_partitioning=False).select(pl.len()).collect().item()
            )
        return True

    def existing(self, number: int) -> pl.DataFrame | None:
        """The shard as it stands, for topping up; None when there is none."""
        file = self.path / self.name(number)
        return read_frame(file, self.kind) if file.exists() else None

    def write(self, number: int, data: pl.DataFrame) -> Path:
        """Write one shard: checked against the contract, read back, synced, renamed. Returns its path."""
        file = self.path / self.name(number)
        schema.check(self.kind, data, str(file))
        beside = self._beside / file.name
        record = {
            "kind": self.kind.name,
            "schema_version": schema.VERSION,
            "version": __version__,
            "config": dict(self.config),
            "inputs": dict(self.inputs),
        }
        self._unfinish()
        try:
            data.select(list(self.kind.schema)).write_parquet(
                beside,
                compression="zstd",
                compression_level=3,
                row_group_size=ROW_GROUP,
                metadata={FOOTER_KEY: json.dumps(record, sort_keys=True)},
            )
            with beside.open("rb") as handle:
                os.fsync(handle.fileno())
            rows = pl.scan_parquet(beside, glob=False, hive_partitioning=False).select(pl.len()).collect().item()
            if rows != data.height:
                raise StageFailure(f"{file}: wrote {data.height} rows, {rows} can be read back")
            beside.replace(file)
            sync_folder(self.path)
        except (OSError, pl.exceptions.PolarsError) as error:
            beside.unlink(missing_ok=True)
            raise StageFailure(
                f"{file}: could not be written: {error}", hint="what was finished before is kept; rerun to go on"
            ) from error
        self._note(file, data.height)
        return file

    def _note(self, file: Path, rows: int) -> None:
        self._written[file.name] = {
            "name": file.name,
            "rows": rows,
            "bytes": file.stat().st_size,
            "sha256": sha256(file),
        }

    def finish(self) -> Path:
        """Write the manifest: from now on readers take the folder as finished. Returns its path."""
        shards = sorted(self._written.values(), key=lambda shard: int(shard["name"][5:-8]))
        with _as_failure(self.path):
            for number, file in self._standing():
                if self.slice.owns(number) and file.name not in self._written:
                    file.unlink()  # left from a run with more input
            self._unfinish()
        manifest = {
            "kind": self.kind.name,
            "schema_version": schema.VERSION,
            "version": __version__,
            "complete": True,
            "config": dict(self.config),
            "inputs": dict(self.inputs),
            "rows": sum(shard["rows"] for shard in shards),
            "counts": dict(sorted(self.counts.items())),
            "shards": shards,
        }
        with _as_failure(self.manifest_path):
            write_json(self.manifest_path, manifest)
        return self.manifest_path


@contextlib.contextmanager
def _as_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StageFailure(
            f"{path}: could not be written: {error.strerror or error}",
            hint="what was finished before is kept; rerun to go on",
        ) from error


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
