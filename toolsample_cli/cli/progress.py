"""Progress on stderr: a live line on a terminal, one line every 30 seconds in a log."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """Counts rows; a context manager so that the live line is always cleared."""

    LOG_EVERY = 30.0  # seconds between lines where nobody watches
    DRAW_EVERY = 0.1

    def __init__(self, stage: str, stream: Any = None) -> None:
        self._stage = stage
        self._stream = stream or sys.stderr
        self._live = bool(getattr(self._stream, "isatty", lambda: False)())
        self._count = 0
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
        rate = self._count / max(now - self._started, 1e-9)
        text = f"{self._stage}: {self._count:,} rows, {rate:,.0f}/s"
        self._stream.write(f"\r\x1b[2K{text}" if self._live else f"{text}\n")
        self._stream.flush()

    def __exit__(self, *_: Any) -> None:
        if self._live:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
