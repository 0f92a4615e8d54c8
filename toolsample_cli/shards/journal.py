"""Records as they come in, one JSON line each with a checksum: what a killed run leaves, so that a rerun resumes there.

Every line begins with a checksum of its rest. A line that is torn or damaged, or whose record cannot be used, is as if
it had never been written: what it held is asked again. Errors are written too, but are no answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from toolsample_cli.errors import DataError, StageFailure
from toolsample_cli.json_types import Json, Row
from toolsample_cli.shards.disk import KEPT, in_words
from toolsample_cli.shards.made_from import refuse_changes

SYNC_EVERY = 64
"""Records between two syncs: a crash of the machine, not of the process, may cost so many."""

_HEAD = 20  # characters of {"crc32": "01234567"


def seal(value: Mapping[str, object]) -> bytes:
    """A line that holds `value` and its checksum."""
    body = json.dumps(value, ensure_ascii=True, allow_nan=False).encode("ascii")[1:]
    return b'{"crc32": "%08x"%b%b\n' % (zlib.crc32(body), b"" if body == b"}" else b", ", body)


def unseal(line: bytes) -> Row | None:
    """What a line of `seal` holds; None when it is torn or damaged."""
    head, body = line[:_HEAD], line[_HEAD:].removeprefix(b", ")
    if not body.endswith(b"\n") or head != b'{"crc32": "%08x"' % zlib.crc32(body[:-1]):
        return None
    value: Row = json.loads(b"{" + body)
    return value


def _anything(record: Row) -> bool:
    return True


class Journal:
    """Record id -> record with `id`; a context manager that keeps the file open for appending.

    The first line says what the records belong to: a file of another `identity` is refused, or replaced where
    `foreign` is "replace". Records that `usable` does not accept are left out.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Json],
        *,
        overwrite: bool = False,
        usable: Callable[[Row], bool] = _anything,
        foreign: str = "refuse",
    ) -> None:
        self.path = path
        self.identity: Row = json.loads(json.dumps(dict(identity)))
        self.records: dict[str, Row] = {}
        self._handle: BinaryIO | None = None
        self._usable, self._foreign = usable, foreign
        self._whole = self._unsynced = 0  # bytes of whole lines that are ours; records not yet synced
        if overwrite:
            path.unlink(missing_ok=True)
        if path.exists():
            self._read()

    def _read(self) -> None:
        with self.path.open("rb") as handle:
            lines = handle.readlines()
        if not lines or not lines[0].endswith(b"\n"):  # killed while it wrote the first line
            return
        head = unseal(lines[0])
        if head != self.identity:
            if self._foreign == "replace":
                return
            if head is None:
                hint = f"delete {self.path}, or give --overwrite: what it held is made again"
                raise DataError(f"{self.path}: its first line is damaged", hint=hint)
            refuse_changes(self.path.parent, head, self.identity)
        for record in map(unseal, lines[1:]):
            if record is not None and isinstance(record.get("id"), str) and self._usable(record):
                self.records[record["id"]] = record
        self._whole = sum(len(line) for line in lines if line.endswith(b"\n"))

    def __enter__(self) -> Journal:
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = self.path.open("ab", buffering=0)
            self._handle.truncate(self._whole)  # a torn last line, or all of a foreign file
            if not self._whole:
                self._append([self.identity])
                self.sync()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            if kind is None:
                with self._told():
                    self.sync()
            self._handle.close()
            self._handle = None

    def answered(self, entry_id: str) -> bool:
        """Whether there is an answer; an error is none."""
        record = self.records.get(entry_id)
        return record is not None and record.get("error") is None

    def add(self, *records: Row) -> None:
        """Take records {id, ...}: they survive a kill of the process from now on."""
        self.records.update((record["id"], record) for record in records)
        with self._told():
            self._append(records)
            self._unsynced += len(records)
            if self._unsynced >= SYNC_EVERY:
                self.sync()

    def _append(self, values: Iterable[Mapping[str, object]]) -> None:
        assert self._handle is not None
        data = memoryview(b"".join(map(seal, values)))
        while data:
            data = data[self._handle.write(data) :]

    def sync(self) -> None:
        """Make everything so far durable."""
        assert self._handle is not None
        os.fsync(self._handle.fileno())
        self._unsynced = 0

    def remove(self) -> None:
        """The journal has done its work."""
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = in_words(error, self.path)
            raise StageFailure(f"{self.path}: could not be written: {why}", hint=KEPT) from error


def count_records(path: Path) -> int:
    """Records in a journal, told from its whole lines without reading them."""
    with path.open("rb") as handle:
        return max(0, sum(line.endswith(b"\n") for line in handle) - 1)
