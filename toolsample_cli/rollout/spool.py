"""Completions of an unfinished shard, appended as they come, so that a killed run loses at most the line it wrote.

One line per completion under a header that says what it belongs to; a spool of another run is not used, nor is a line
that is damaged. Floats are written so that they come back bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO

import msgspec

from toolsample_cli.errors import StageFailure
from toolsample_cli.rollout.types import Completion
from toolsample_cli.shards.journal import seal, unseal

HINT = "what was finished before is kept; rerun to go on"


class _Line(msgspec.Struct):
    """A completion as the file has it, all types checked when it is read."""

    key: str
    sample: int
    completion_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]
    logprobs: list[float] | None
    finish_reason: str | None
    ids_from_text: bool
    text: str | None
    error: str | None


class Spool:
    """A context manager around one file; `found` holds what an earlier run left there."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self._identity = path, identity
        self.found: dict[tuple[str, int], Completion] = {}
        self._file: BinaryIO

    def __enter__(self) -> Spool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            size = self._load() if self.path.exists() else 0
            self._file = self.path.open("ab")
            self._file.truncate(size)  # a torn last line, or all of a foreign spool
            if size == 0:
                self._file.write(seal({"identity": self._identity}))
                self._file.flush()
        except OSError as error:
            raise StageFailure(f"{self.path}: could not be written: {error}", hint=HINT) from error
        return self

    def _load(self) -> int:
        """Read finished completions; returns how many bytes of the file are whole lines of ours."""
        with self.path.open("rb") as handle:
            if unseal(handle.readline()) != {"identity": self._identity}:
                return 0
            size = handle.tell()
            for line in handle:
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                if (done := _completion(line)) is not None:
                    self.found[done.key, done.sample] = done
        return size

    def add(self, completions: Iterable[Completion]) -> None:
        """Append completions and hand them to the operating system."""
        try:
            self._file.write(b"".join(seal(_record(done)) for done in completions))
            self._file.flush()
        except OSError as error:
            raise StageFailure(f"{self.path}: could not be written: {error}", hint=HINT) from error

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _record(done: Completion) -> dict[str, object]:
    logprobs = None if done.logprobs is None else list(done.logprobs)
    ids = list(done.completion_ids)
    return {
        "done": [done.key, done.sample, ids, logprobs, done.finish_reason, done.ids_from_text, done.text, done.error]
    }


def _completion(line: bytes) -> Completion | None:
    try:
        fields = (unseal(line) or {})["done"]
        read = msgspec.convert(dict(zip(_Line.__struct_fields__, fields, strict=True)), _Line)
    except (KeyError, TypeError, ValueError):
        return None
    return Completion(**msgspec.structs.asdict(read))
