"""Progress on stderr: a live line on a terminal, one line every 10 seconds in a log."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """Counts rows; a context manager so that the live line is always cleared."""

    LOG_EVERY = 10.0  # seconds between lines where nobody watches
    DRAW_EVERY = 0.1

    def __init__(self, stage: str, stream: Any = None) -> None:
        self._stage = stage
        self._stream = stream or sys.stderr
        self._live = bool(getattr(self._stream, "isatty", lambda: False)())
        self._count = self._found = 0
        self._total: int | None = None
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def tick(self, rows: int = 1) -> None:
        """`rows` more rows are done."""
        self._count += rows
        now = time.monotonic()
        if now - self._shown < (self.DRAW_EVERY if self._live else self.LOG_EVERY):
            return
        self._shown = now
        text = f"{self._stage}: {self.line(now - self._started)}"
        self._stream.write(f"\r\x1b[2K{text}" if self._live else f"{text}\n")
        self._stream.flush()

    def found(self, rows: int) -> None:
        """`rows` more stood there before; they count as done, not as work of this run."""
        self._found += rows

    def expect(self, rows: int) -> None:
        """`rows` more will be done."""
        self._total = (self._total or 0) + rows

    def line(self, seconds: float) -> str:
        """Done, total, rate and time left after so many seconds of work."""
        rate, done = self._count / max(seconds, 1e-9), self._count + self._found
        per = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        if self._total is None or rate == 0:
            return f"{done:,} rows, {per}"
        left = max(0, self._total - done) / rate
        wait = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min" if left < 7200 else f"{left / 3600:.1f} h"
        return f"{done:,} of {self._total:,} rows, {per}, {wait} left"

    def __exit__(self, *_: Any) -> None:
        if self._live:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
