"""Who may write a folder: one process for the whole of it, or one process for each slice.

Locks are advisory file locks that the system drops with the process, so a killed run never blocks the next one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO

from toolsample_cli.errors import StageFailure
from toolsample_cli.shards.disk import in_words
from toolsample_cli.shards.slice import Slice

_TRIES = 100
WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""What flock answers on a file system that has none."""


class FolderLock:
    """Lock of `path` for one slice, held in the folder `beside`, which goes with the last holder.

    The whole folder is taken exclusively; slices share it and exclude only their equals. Where not `enabled` nothing
    is locked.
    """

    def __init__(self, path: Path, beside: Path, slice: Slice = Slice(), *, enabled: bool = True) -> None:
        self._path, self._beside, self._slice, self._enabled = path, beside, slice, enabled
        self._held: list[tuple[Path, IO[str]]] = []

    def __enter__(self) -> FolderLock:
        self.take()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def take(self) -> None:
        """Take the lock at once. StageFailure when another process has it or the folder cannot be written."""
        whole = self._slice.count == 1
        try:
            if not self._enabled:
                self._beside.mkdir(parents=True, exist_ok=True)
                return
            self._hold("lock", fcntl.LOCK_EX if whole else fcntl.LOCK_SH)
            if not whole:
                self._hold(f"lock{self._slice.suffix}", fcntl.LOCK_EX)
        except BlockingIOError:
            self.release()
            raise StageFailure(f"{self._path}: another process is writing it", hint="wait for it, or stop it") from None
        except OSError as error:
            self.release()
            if error.errno in WITHOUT_LOCKS:
                raise StageFailure(
                    f"{self._path}: its file system has no locks: {error.strerror}",
                    hint="make sure that no other process writes there, and give --no-lock",
                ) from None
            raise StageFailure(f"{self._path}: cannot be written: {in_words(error, self._beside)}") from None

    def _hold(self, name: str, mode: int) -> None:
        file = self._beside / name
        for _ in range(_TRIES):
            self._beside.mkdir(parents=True, exist_ok=True)
            try:
                handle = file.open("a")
            except FileNotFoundError:  # the last holder took the folder away in between
                continue
            try:
                fcntl.flock(handle, mode | fcntl.LOCK_NB)
                if os.fstat(handle.fileno()).st_ino == file.stat().st_ino:
                    self._held.append((file, handle))
                    return
            except FileNotFoundError:
                pass
            except OSError:
                handle.close()
                raise
            handle.close()  # locked what its last holder has just deleted: nobody else will see that lock
        raise BlockingIOError

    def release(self) -> None:
        """Give everything back; whoever leaves last takes the folder away, if nothing else lies in it."""
        for file, handle in reversed(self._held):
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while other slices share it
                file.unlink()
            handle.close()
        self._held.clear()
        with contextlib.suppress(OSError):
            self._beside.rmdir()
