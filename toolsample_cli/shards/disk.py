"""A full or read-only disk, found before hours of work and told in plain words."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from toolsample_cli.errors import StageFailure

KEPT = "what was finished before is kept; rerun to resume"
PROBE = 65_536
"""Bytes that are written to learn whether writing works at all."""
WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EFBIG: "larger than a file may be here",
    errno.EIO: "the disk reports an error",
}


def in_words(error: BaseException, path: Path) -> str:
    """Why writing below `path` failed; a library's own error for a full disk is told from a short write."""
    number = error.errno if isinstance(error, OSError) else None
    if number not in WORDS and "No space left" in str(error):
        number = errno.ENOSPC
    if number not in WORDS and "File too large" in str(error):
        number = errno.EFBIG
    if number not in WORDS and not isinstance(error, OSError):
        number = _probe(existing(path))
    if number in WORDS:
        return WORDS[number]
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def existing(path: Path) -> Path:
    """The nearest folder that is there: the path itself or one above it."""
    path = Path(path).absolute()
    while not path.is_dir():
        path = path.parent
    return path


def check_room(out: Path, need: int, *, what: str) -> None:
    """StageFailure when `need` bytes do not fit beside `out`, or nothing can be written there.

    `what` says what the bytes are, as in "a checkpoint and its optimizer". The estimate is the caller's; nothing is
    created, a probe of PROBE bytes aside, which is removed.
    """
    folder = existing(out.parent)
    number = _probe(folder)
    if number is not None:
        why = WORDS.get(number, os.strerror(number))
        raise StageFailure(f"{out}: cannot be written: {why}", hint="choose another output folder")
    free = shutil.disk_usage(folder).free
    if free < need:
        raise StageFailure(
            f"{out}: the disk has {_size(free)} left, {what} needs about {_size(need)}",
            hint="make room, or choose another output folder",
        )


def _probe(folder: Path) -> int | None:
    """The number of the error when writing there fails, None when it works."""
    file = folder / f".toolsample-{os.getpid()}.tmp"
    try:
        with file.open("wb") as handle:
            handle.write(b"\0" * PROBE)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        return error.errno
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    return None


def _size(count: int) -> str:
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
