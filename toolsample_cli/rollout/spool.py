"""Completions of an unfinished shard, appended as they come, so that a killed run loses at most the line it wrote.

One record per completion in a journal; a spool of another run is not used, nor is a line that is damaged. Floats come
back bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Annotated

import msgspec

from toolsample_cli.json_types import Row
from toolsample_cli.rollout.types import Completion
from toolsample_cli.shards.journal import Journal


class _Line(msgspec.Struct):
    """A completion as the file has it, all types checked when it is read."""

    key: str
    sample: int
    completion_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]
    logprobs: list[float | None] | None
    finish_reason: str | None
    ids_from_text: bool
    text: str | None
    error: str | None


class Spool:
    """A context manager around one file; `found` holds what an earlier run left there, by (task, sample)."""

    def __init__(self, path: Path, identity: str) -> None:
        self._journal = Journal(path, {"identity": identity}, foreign="replace")
        self.found: dict[tuple[str, int], Completion] = {}

    def __enter__(self) -> Spool:
        self._journal.__enter__()
        held = filter(None, map(_completion, self._journal.records.values()))
        self.found = {(done.key, done.sample): done for done in held}
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._journal.__exit__(kind, value, trace)

    def add(self, completions: Iterable[Completion]) -> None:
        """Append completions and hand them to the operating system."""
        self._journal.add(*map(_record, completions))


def _record(done: Completion) -> Row:
    # JSON has no NaN, which is a logprob that a server did not give
    logprobs = None if done.logprobs is None else [None if p != p else p for p in done.logprobs]
    ids = list(done.completion_ids)
    fields = [done.key, done.sample, ids, logprobs, done.finish_reason, done.ids_from_text, done.text, done.error]
    return {"id": f"{done.key}/{done.sample}", "done": fields}


def _completion(record: Row) -> Completion | None:
    try:
        read = msgspec.convert(dict(zip(_Line.__struct_fields__, record["done"], strict=True)), _Line)
    except (KeyError, TypeError, ValueError):
        return None
    if read.logprobs is not None:
        read.logprobs = [math.nan if p is None else p for p in read.logprobs]
    return Completion(**msgspec.structs.asdict(read))
