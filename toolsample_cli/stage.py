"""What every stage shares: the options a user may give to any of them, and the account it renders at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.shards.slice import Slice

FEWER = "give no more slices than there are shards"
"""What helps where a stage's shards are those of its input."""


def silent(_: object) -> None:
    """Nobody watches."""
    return None


_piped: dict[Path, frozenset[str]] = {}


@dataclass(frozen=True)
class Options:
    """Options common to all stages.

    `lock` False writes where the file system has no locks. `expect(k)` says that k more rows are to come, `tick(k)`
    that k of them are done, `found(k)` that k were there before; `phase(text)` names what is being done until the next
    rows are, as in "loading the model".
    """

    overwrite: bool = False
    dry_run: bool = False
    limit: int | None = None
    ids: Path | None = None
    slice: Slice = Slice()
    lock: bool = True
    tick: Callable[[int], None] = silent
    found: Callable[[int], None] = silent
    expect: Callable[[int], None] = silent
    phase: Callable[[str], None] = silent

    def wanted_ids(self) -> frozenset[str] | None:
        """Task ids from the `--ids` file (one per line), or None for all."""
        if self.ids is None:
            return None
        if self.ids in _piped:
            return _piped[self.ids]
        hint = "--ids takes a text file with one task id per line"
        try:
            lines = self.ids.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise DataError(f"{self.ids}: no such file", hint=hint) from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.ids}: cannot be read: {error}", hint=hint) from None
        found = frozenset(line.strip() for line in lines if line.strip())
        if not self.ids.is_file():  # a pipe, as in --ids <(toolsample inspect ... --ids), gives its lines once
            _piped[self.ids] = found
        return found

    def refuse_slice(self, stage: str, hint: str) -> None:
        """ConfigError for `--slice` given to a stage whose work cannot be cut."""
        if self.slice.count > 1:
            raise ConfigError(f"--slice is not for {stage}", hint=hint)

    def idle_slice(self, shards: int, hint: str) -> dict[str, str]:
        """A line for the account when this slice has nothing to do because there are fewer shards than slices."""
        if self.slice.index < shards:
            return {}
        return {"nothing in this slice": f"{shards} shard(s) for {self.slice.count} slices, {hint}"}

    def selection(self) -> dict[str, Any]:
        """The part of the options that decides what is in the output, for its config record."""
        wanted = self.wanted_ids()
        return {"limit": self.limit, "ids": None if wanted is None else sorted(wanted)}


@dataclass
class Account:
    """What a stage did: rows in and out, drops by reason, seconds, where it wrote."""

    stage: str
    rows_in: int = 0
    rows_out: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    wrote: Path | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    left_out: str = "dropped"  # what the rows under `dropped` are called
    exit_code: int = 0
    report: str = ""  # what a user came for, printed on stdout unless --json is given
    started: float = field(default_factory=time.monotonic)

    def line(self) -> str:
        """The closing line on stderr."""
        drops = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())) or "none"
        facts = "".join(f"; {key} {value}" for key, value in self.extra.items() if not isinstance(value, dict | list))
        place = f" -> {self.wrote}" if self.wrote else ""
        seconds = time.monotonic() - self.started
        counts = f"in {self.rows_in:,}, out {self.rows_out:,}, {self.left_out}: {drops}{facts}"
        return f"{self.stage}: {counts}; {seconds:.1f} s{place}"

    def record(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "stage": self.stage,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted(self.dropped.items())),
            **self.extra,
            "seconds": round(time.monotonic() - self.started, 3),
            "wrote": str(self.wrote) if self.wrote else None,
        }
