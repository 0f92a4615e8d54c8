"""Answers as they come in, one JSON line each, synced: what a killed run leaves, so that a rerun goes on from there.

Every line begins with a checksum of its rest. A line that is torn or damaged, or whose record cannot be used, is as if
it had never been written: what it held is asked again. Errors are written too, but are no answers.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.json_types import Row

SYNC_EVERY = 64
"""Answers between two syncs of a file that grows fast."""

_HEAD = 20  # characters of {"crc32": "01234567"


def seal(value: Mapping[str, object]) -> bytes:
    """A line that holds `value` and its checksum."""
    body = json.dumps(value, ensure_ascii=True).encode("ascii")[1:]
    return b'{"crc32": "%08x"%b%b\n' % (zlib.crc32(body), b"" if body == b"}" else b", ", body)


def unseal(line: bytes) -> Row | None:
    """What a line of `seal` holds; None when it is torn or damaged."""
    head, body = line[:_HEAD], line[_HEAD:].removeprefix(b", ")
    if not body.endswith(b"\n") or head != b'{"crc32": "%08x"' % zlib.crc32(body[:-1]):
        return None
    return json.loads(b"{" + body)


def _anything(record: Row) -> bool:
    return True


class Journal:
    """Entry id -> record with `answer` or `error`; a context manager that keeps the file open for appending.

    The first line says what the answers belong to; other settings are refused. Records that `usable` does not accept
    are left out.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, object],
        *,
        overwrite: bool = False,
        usable: Callable[[Row], bool] = _anything,
    ) -> None:
        self.path = path
        self.identity: Row = json.loads(json.dumps(dict(identity)))
        self.records: dict[str, Row] = {}
        self._usable = usable
        self._unsynced = 0
        if overwrite:
            path.unlink(missing_ok=True)
        if path.exists():
            self._read()

    def _read(self) -> None:
        with self.path.open("rb") as handle:
            lines = handle.readlines()
        if not lines or not lines[0].endswith(b"\n"):  # killed while it wrote the first line
            self.path.unlink()
            return
        head = unseal(lines[0])
        if head is None:
            raise DataError(f"{self.path}: its first line is damaged", hint="delete it, or give --overwrite")
        changed = [key for key in {**head, **self.identity} if head.get(key) != self.identity.get(key)]
        if changed:
            detail = "; ".join(f"{key} was {head.get(key)!r}, now {self.identity.get(key)!r}" for key in changed)
            raise ConfigError(
                f"{self.path.parent}: was made with other settings or inputs: {detail}",
                hint="give --overwrite to make it anew, or another output folder",
            )
        for line in lines[1:]:
            record = unseal(line)
            if record is not None and isinstance(record.get("id"), str) and self._usable(record):
                self.records[record["id"]] = record
        if not lines[-1].endswith(b"\n"):
            os.truncate(self.path, sum(map(len, lines[:-1])))

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        self._handle: BinaryIO = self.path.open("ab")
        if fresh:
            self._handle.write(seal(self.identity))
            self._sync()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._sync()
        self._handle.close()

    def answered(self, entry_id: str) -> bool:
        """Whether there is an answer; an error is none."""
        record = self.records.get(entry_id)
        return record is not None and record.get("error") is None

    def add(self, record: Row) -> None:
        """Take one record {id, ...}; it survives a kill at the latest after SYNC_EVERY more."""
        self.records[record["id"]] = record
        self._handle.write(seal(record))
        self._unsynced += 1
        if self._unsynced >= SYNC_EVERY:
            self._sync()

    def _sync(self) -> None:
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._unsynced = 0
