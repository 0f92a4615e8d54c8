"""Completions of an unfinished shard, appended as they come, so that a killed run loses at most the line it wrote.

One JSON line a completion under a header that says what it belongs to; a spool of another run is not used. Floats
are written so that they come back bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from toolsample_cli.errors import StageFailure
from toolsample_cli.rollout.types import Completion

HINT = "what was finished before is kept; rerun to go on"


class Spool:
    """A context manager around one file; `found` holds what an earlier run left there."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self._identity = path, identity
        self.found: dict[tuple[str, int], Completion] = {}
        self._file: Any = None

    def __enter__(self) -> Spool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            size = self._load() if self.path.exists() else 0
            self._file = self.path.open("ab")
            self._file.truncate(size)  # a torn last line, or all of a foreign spool
            if size == 0:
                self._file.write(_line({"identity": self._identity}))
                self._file.flush()
        except OSError as error:
            raise StageFailure(f"{self.path}: could not be written: {error}", hint=HINT) from error
        return self

    def _load(self) -> int:
        """Read finished completions; returns how many bytes of the file are whole and ours."""
        size = 0
        with self.path.open("rb") as handle:
            for number, line in enumerate(handle):
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:  # torn by a crash of the machine: what follows cannot be trusted either
                    record = None
                if record is None:
                    break
                if number == 0 and record != {"identity": self._identity}:
                    return 0
                if number > 0:
                    done = Completion(*record)
                    self.found[done.key, done.sample] = done
                size += len(line)
        return size

    def add(self, completions: Iterable[Completion]) -> None:
        """Append completions and hand them to the operating system."""
        try:
            self._file.write(b"".join(_line(_record(done)) for done in completions))
            self._file.flush()
        except OSError as error:
            raise StageFailure(f"{self.path}: could not be written: {error}", hint=HINT) from error

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """The shard stands: the spool has done its work."""
        self.path.unlink(missing_ok=True)


def _record(done: Completion) -> list[Any]:
    logprobs = None if done.logprobs is None else list(done.logprobs)
    ids = list(done.completion_ids)
    return [done.key, done.sample, ids, logprobs, done.finish_reason, done.ids_from_text, done.text, done.error]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
