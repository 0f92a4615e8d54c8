"""Progress on stderr: a live line on a terminal, one line every 20 seconds in a log; counting and drawing are rich's.

Something is said within two seconds of starting, also while a model loads. Time left is shown only once there is
enough work behind it to judge by.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task
from rich.progress import Progress as Bars
from rich.text import Text

from toolsample_cli.terminal import one_line

FIRST = 1.5
"""Seconds until the first line in a log."""
EVERY = 20.0
"""Seconds between lines in a log."""
PUSH = 0.1
"""Seconds between updates of the counts; a stage may tick for every row."""
JUDGED = 5.0
"""Seconds of counted work before a time left is shown ..."""
SHARE = 0.01
"""... and the share of the work that must be done, unless it has gone on for LONG seconds."""
LONG = 60.0
WINDOW = 600.0
"""Seconds of the past that the rate is taken from: batches of long completions may be minutes apart."""


class Progress:
    """Counts the rows of one stage; a context manager, so that the live line is always cleared."""

    def __init__(self, stage: str, stream: TextIO | None = None) -> None:
        self._stage = stage
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        console = Console(file=self._stream, highlight=False, markup=False)
        self._bars = Bars(
            SpinnerColumn(),
            _Line(self),
            BarColumn(bar_width=24),
            console=console,
            transient=True,
            redirect_stdout=False,
            speed_estimate_period=WINDOW,
            refresh_per_second=4,
            disable=not self._live,
        )
        self._task = self._bars.add_task(stage, total=None)
        self._phase, self._since = "starting", time.monotonic()
        self._before = self._waiting = 0  # rows that stood there; ticks not yet pushed
        self._pushed = 0.0
        self._worked: float | None = None  # when the first rows were done
        self._ended = threading.Event()

    def __enter__(self) -> Progress:
        if self._live:
            self._bars.start()
        else:
            threading.Thread(target=self._log, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._bars.stop()

    def phase(self, text: str) -> None:
        """What is being done until the next rows are: "loading the model"."""
        self._phase, self._since = one_line(text), time.monotonic()

    def say(self, line: str) -> None:
        """A line that stays, above the live one."""
        self._bars.console.print(Text(one_line(line)), soft_wrap=True)

    def tick(self, rows: int = 1) -> None:
        """`rows` more rows are done."""
        self._phase = ""
        self._waiting += rows
        now = time.monotonic()
        if self._worked is None:
            self._worked = now
        if now - self._pushed >= PUSH:
            self._pushed = now
            self._push()

    def found(self, rows: int) -> None:
        """`rows` of the expected ones were already there; they count as done, not as work of this run."""
        self._before += rows
        total = self._now.total
        self._bars.update(self._task, total=None if total is None else max(0.0, total - rows))

    def expect(self, rows: int) -> None:
        """`rows` more will be done."""
        self._bars.update(self._task, total=(self._now.total or 0) + rows)

    def line(self) -> str:
        """What is being done, or rows done, their total, the rate and the time left."""
        now = time.monotonic()
        if self._phase:
            return f"{self._stage}: {self._phase}, {_span(now - self._since)}"
        self._push()
        task = self._now
        done = int(task.completed) + self._before
        if task.total is None:
            return f"{self._stage}: {done:,} rows{_rate(task.speed)}"
        text = f"{self._stage}: {done:,} of {int(task.total) + self._before:,} rows{_rate(task.speed)}"
        worked = now - self._worked if self._worked is not None else 0.0
        judged = worked >= JUDGED and (task.completed >= SHARE * task.total or worked >= LONG)
        left = task.time_remaining
        return f"{text}, about {_span(left)} left" if judged and left else text

    @property
    def _now(self) -> Task:
        return self._bars.tasks[0]

    def _push(self) -> None:
        rows, self._waiting = self._waiting, 0
        if rows:
            self._bars.advance(self._task, rows)

    def _log(self) -> None:
        wait = FIRST
        while not self._ended.wait(wait):
            wait = EVERY
            print(self.line(), file=self._stream, flush=True)


class _Line(ProgressColumn):
    """The same words as in a log."""

    def __init__(self, owner: Progress) -> None:
        super().__init__()
        self._owner = owner

    def render(self, task: Task) -> Text:
        """The line of now."""
        return Text(self._owner.line())


def _rate(speed: float | None) -> str:
    if not speed:
        return ""
    return f", {speed:,.0f} per second" if speed >= 10 else f", {speed:.2g} per second"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
