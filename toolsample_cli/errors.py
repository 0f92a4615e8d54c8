"""The kinds of failure a user can mend, each with its exit code.

Anything else that escapes is a bug of ours and keeps its traceback. `location` puts a message where the
reader can find it: `scores/part-00003.parquet row 118 (task xlam-231): what is wrong`.
"""

from __future__ import annotations

from pathlib import Path


class ToolsampleError(Exception):
    """Base of all errors that end a command with one clear line.

    `hint` says how to mend it and is printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class StageFailure(ToolsampleError):
    """The stage could not do its work: an engine died, a step was refused, a disk is full (exit 1)."""

    exit_code = 1


class ConfigError(ToolsampleError, ValueError):
    """A flag, a recipe key or a combination of them is wrong, or contradicts what is on disk (exit 2)."""

    exit_code = 2


class DataError(ToolsampleError, ValueError):
    """Input on disk is missing, torn, of another kind, or breaks the contract (exit 3)."""

    exit_code = 3


class EmptyBatch(DataError):
    """A round in which there is nothing to train on; everything else of it is written, so a loop may go on (exit 5)."""

    exit_code = 5


class MissingDependency(ToolsampleError, ImportError):
    """An optional package is absent; the hint is the install command (exit 4)."""

    exit_code = 4

    def __init__(self, package: str, *, needed_for: str, install: str) -> None:
        super().__init__(f"{needed_for} needs the package {package}, which is not installed", hint=install)


INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM: what was finished is on disk and a rerun goes on from there."""


def location(file: str | Path, *, row: int | None = None, task: str | None = None) -> str:
    """Where a fault lies, in the order file, row (1-based, as editors count), task."""
    text = str(file)
    if row is not None:
        text += f" row {row}"
    if task is not None:
        text += f" (task {task})"
    return text
