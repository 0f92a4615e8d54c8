"""Answers as they come in, one JSON line each, synced: what a killed run leaves, so that a rerun goes on from there.

The first line says what the answers belong to; other settings are refused. A torn last line is dropped. Errors are
written too, but are no answers: a rerun asks again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolsample_cli.errors import ConfigError, DataError

SYNC_EVERY = 64
"""Answers between two syncs of a file that grows fast."""


class Journal:
    """Entry id -> record with `answer` or `error`; a context manager that keeps the file open for appending."""

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(dict(identity)))
        self.records: dict[str, dict[str, Any]] = {}
        self._unsynced = 0
        if overwrite:
            path.unlink(missing_ok=True)
        if path.exists():
            self._read()

    def _read(self) -> None:
        whole = []
        with self.path.open("rb") as handle:
            for line in handle:
                if not line.endswith(b"\n"):
                    break  # a line that was being written when the process died
                whole.append(line)
        if not whole:
            self.path.unlink()
            return
        try:
            head, *records = (json.loads(line) for line in whole)
        except ValueError as error:
            raise DataError(f"{self.path}: damaged: {error}", hint="delete it, or give --overwrite") from None
        changed = [key for key in {**head, **self.identity} if head.get(key) != self.identity.get(key)]
        if changed:
            detail = "; ".join(f"{key} was {head.get(key)!r}, now {self.identity.get(key)!r}" for key in changed)
            raise ConfigError(
                f"{self.path.parent}: was made with other settings or inputs: {detail}",
                hint="give --overwrite to make it anew, or another output folder",
            )
        self.records = {record["id"]: record for record in records}
        size = sum(len(line) for line in whole)
        if size != self.path.stat().st_size:
            os.truncate(self.path, size)

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        self._handle = self.path.open("ab")
        if fresh:
            self._append(self.identity)
            self._sync()
        return self

    def __exit__(self, *_: Any) -> None:
        self._sync()
        self._handle.close()

    def answered(self, entry_id: str) -> bool:
        """Whether an answer stands there; an error is none."""
        record = self.records.get(entry_id)
        return record is not None and record.get("error") is None

    def add(self, record: dict[str, Any]) -> None:
        """Take one record {id, ...}; it survives a kill at the latest after SYNC_EVERY more."""
        self.records[record["id"]] = record
        self._append(record)
        self._unsynced += 1
        if self._unsynced >= SYNC_EVERY:
            self._sync()

    def _append(self, value: Mapping[str, Any]) -> None:
        self._handle.write(json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n")

    def _sync(self) -> None:
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._unsynced = 0
