"""The trials of the campaign, each in a process forked from one that has imported everything and done nothing.

A child is killed, starved of disk or given damaged files; what it leaves must be mended by the same command typed
again, or what it read refused by name.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from trial_world import OUTPUTS, STAGES, tree

WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"}
LIMIT = 300
"""Seconds after which a child is taken for hung."""


class Surprise(Exception):
    """What must not happen; the campaign ends."""


def forked(work: Callable[[], int], log: Path, *, kill_after: float | None = None) -> int:
    """Exit code of a child that does the work, its stderr and stdout in `log`; -9 when it was killed."""
    child = os.fork()
    if not child:
        code = 70
        try:
            with log.open("w", encoding="utf-8") as handle:
                os.dup2(handle.fileno(), 1)
                os.dup2(handle.fileno(), 2)
            code = work()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(code)
    began = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG if kill_after is not None else 0)
        if done:
            return os.waitstatus_to_exitcode(status)
        passed = time.monotonic() - began
        if kill_after is not None and passed > kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = LIMIT
        time.sleep(0.002)


def toolsample_in(folder: Path, command: list[str], hook: Callable[[str], None] | None = None) -> Callable[[], int]:
    """Work for `forked`: the command in a folder, `hook` called before every operation that changes a file there."""

    def work() -> int:
        os.chdir(folder)
        if hook is not None:
            watch(folder, hook)
        from toolsample_cli.cli.app import run

        return run(command)

    return work


def watch(folder: Path, hook: Callable[[str], None]) -> None:
    """Call `hook` before each write, rename, deletion and sync of something below the folder."""
    root, fsync = str(folder.resolve()), os.fsync

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            name, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in WRITES:
            return
        else:
            name = arguments[0]
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if isinstance(name, str) and os.path.abspath(name).startswith(root):
            hook(event)

    def sync(handle: int) -> None:
        hook("fsync")
        fsync(handle)

    sys.addaudithook(audit)
    os.fsync = sync


class Counter:
    """Counts operations and does something at the k-th: dies, or finds the disk full from then on."""

    def __init__(self, at: int = 0, *, full: bool = False) -> None:
        self.at, self.full, self.seen = at, full, 0

    def __call__(self, event: str) -> None:
        """One operation is about to happen."""
        self.seen += 1
        if self.at and self.full and self.seen >= self.at and event in ("open", "fsync", "os.mkdir", "os.rename"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.at and not self.full and self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def stand(world: Path, stage: str, target: Path) -> Path:
    """A folder in which the stage can be carried out: links to everything but its own output."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in world.iterdir():
        if not any(path.name.lstrip(".") == out or path.name.startswith(f"{out}.") for out in OUTPUTS[stage]):
            (target / path.name).symlink_to(path)
    return target


def operations(world: Path, stage: str, scratch: Path) -> tuple[int, float]:
    """How many operations a stage makes, and how many seconds it takes."""
    folder, note = stand(world, stage, scratch / "count"), scratch / "operations"

    def counting() -> int:
        counter = Counter()
        code = toolsample_in(folder, STAGES[stage], counter)()
        note.write_text(str(counter.seen))
        return code

    began = time.monotonic()
    code = forked(counting, scratch / "log")
    if code:
        raise Surprise(f"{stage}: exit {code} undisturbed\n{(scratch / 'log').read_text()}")
    same(world, folder, stage, "undisturbed")
    return int(note.read_text()), time.monotonic() - began


def same(world: Path, folder: Path, stage: str, how: str) -> None:
    """What the stage left is what it left in the world: every byte, and nothing more."""
    want, have = tree(world, OUTPUTS[stage]), tree(folder, OUTPUTS[stage])
    if want != have:
        names = sorted(name for name in {**want, **have} if want.get(name, 0) != have.get(name, 0))
        raise Surprise(f"{stage}, {how}: differs after the rerun: {', '.join(names[:6])} (see {folder})")


def mended(world: Path, folder: Path, stage: str, how: str, log: Path) -> None:
    """The same command again ends with exit 0 and with what an undisturbed one leaves."""
    code = forked(toolsample_in(folder, STAGES[stage]), log)
    if code:
        raise Surprise(f"{stage}, {how}: the rerun ended with {code}\n{log.read_text()}")
    same(world, folder, stage, how)


def kill_at(world: Path, stage: str, at: int, scratch: Path) -> None:
    """SIGKILL before the k-th operation, then the rerun."""
    folder, log = stand(world, stage, scratch / "kill"), scratch / "log"
    code = forked(toolsample_in(folder, STAGES[stage], Counter(at)), log)
    if code not in (-signal.SIGKILL, 0):
        raise Surprise(f"{stage}, killed at operation {at}: exit {code}\n{log.read_text()}")
    mended(world, folder, stage, f"killed at operation {at}", log)


def kill_after(world: Path, stage: str, seconds: float, scratch: Path) -> None:
    """SIGKILL at a moment, then the rerun."""
    folder, log = stand(world, stage, scratch / "kill"), scratch / "log"
    forked(toolsample_in(folder, STAGES[stage]), log, kill_after=seconds)
    mended(world, folder, stage, f"killed after {seconds:.3f} s", log)


def full_disk(world: Path, stage: str, at: int, scratch: Path) -> None:
    """From the k-th operation on the disk is full: one clear line, exit 1, and a rerun that mends it."""
    folder, log = stand(world, stage, scratch / "full"), scratch / "log"
    code = forked(toolsample_in(folder, STAGES[stage], Counter(at, full=True)), log)
    told(log, code, f"{stage}, disk full from operation {at}", {0, 1}, "full" if code else "")
    mended(world, folder, stage, f"disk full from operation {at}", log)


def told(log: Path, code: int, how: str, codes: set[int], word: str) -> None:
    """The command ended as it should: one error line with the word in it, no traceback."""
    text = log.read_text(encoding="utf-8", errors="replace")
    errors = [line for line in text.splitlines() if line.startswith("toolsample: error: ")]
    if code not in codes or "Traceback" in text or (code and (len(errors) != 1 or word not in errors[0])):
        raise Surprise(f"{how}: exit {code}\n{text}")


def race(world: Path, stage: str, scratch: Path) -> None:
    """Two at once: one does the work, the other does it first, waits its turn or is told that it must."""
    folder, logs = stand(world, stage, scratch / "race"), (scratch / "log", scratch / "log2")
    first = os.fork()
    if not first:
        os._exit(1 if forked(toolsample_in(folder, STAGES[stage]), logs[0]) else 0)
    code = forked(toolsample_in(folder, STAGES[stage]), logs[1])
    other = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    for log, ended in ((logs[1], code), (logs[0], other)):
        told(log, ended, f"{stage}, two at once", {0, 1}, "another process is writing it" if ended else "")
    if code and other:
        raise Surprise(f"{stage}, two at once: neither did the work")
    mended(world, folder, stage, "two at once", logs[0])


def quietly(command: list[str]) -> tuple[int, str]:
    """(exit code, words) of a command in this process; 70 for a traceback."""
    from toolsample_cli.cli.app import run

    words = io.StringIO()
    try:
        with redirect_stderr(words), redirect_stdout(io.StringIO()):
            return run(command), words.getvalue()
    except Exception as error:
        return 70, f"{words.getvalue()}\n{type(error).__name__}: {error}"
