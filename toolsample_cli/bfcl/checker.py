"""Our end of the official checker: one process per model, one request at a time, with limits on time and memory.

A request that takes too long or kills the process is that answer's fault: the answer is wrong (`limit:time`,
`limit:memory`), the process is replaced and the others go on. Nothing the process holds outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, NamedTuple

from toolsample_cli.bfcl.environment import Environment
from toolsample_cli.bfcl.questions import Question
from toolsample_cli.errors import StageFailure
from toolsample_cli.json_types import Row

INSIDE = Path(__file__).parent / "inside"
START_SECONDS = 120.0


class Overrun(Exception):
    """A request went over a limit; the message is the error type."""


class _Pipes(NamedTuple):
    """A running process and its two ends."""

    process: subprocess.Popen[bytes]
    requests: IO[bytes]
    replies: IO[bytes]


class Checker:
    """The official checkers of one release behind a pipe; use as a context manager.

    `seconds` and `megabytes` bound one request. Work files live in a folder of its own that is removed at the end.
    """

    def __init__(self, environment: Environment, *, seconds: float = 20.0, megabytes: int = 2048) -> None:
        self.environment = environment
        self.seconds = seconds
        self.megabytes = megabytes
        self.generation = 0
        self.parsers = True
        self._pipes: _Pipes | None = None
        self.folder = Path()
        self._buffer = b""

    def __enter__(self) -> Checker:
        self.folder = Path(tempfile.mkdtemp(prefix="toolsample-bfcl-"))
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, op: str, *, seconds: float | None = None, **arguments: object) -> Any:
        """The answer to one request; Overrun when it broke a limit, StageFailure for a fault of the checker."""
        pipes = self._pipes or self._start()
        line = json.dumps({"op": op, **arguments}).encode("ascii") + b"\n"
        try:
            pipes.requests.write(line)
            pipes.requests.flush()
            reply = json.loads(self._line(pipes, seconds or self.seconds))
        except TimeoutError:
            self._stop()
            raise Overrun("limit:time") from None
        except (BrokenPipeError, EOFError):
            code = self._stop()
            raise Overrun("limit:memory" if code in (71, -9) else "limit:crash") from None
        if "ok" not in reply:
            raise StageFailure(f"the BFCL checker failed at {op}: {reply['fail']}\n{reply['trace']}")
        return reply["ok"]

    def judge(self, request: Row) -> Row:
        """Verdict on one answer: {valid, calls, error_type?, error?}; over a limit is wrong."""
        try:
            return self.ask("judge", **request)
        except Overrun as overrun:
            return {"valid": False, "calls": [], "error_type": str(overrun), "error": "over a limit of the checker"}

    def prompted(self, question: Question) -> list[Row]:
        """The first turn of a question in the official prompting mode."""
        shown = {"id": question.id, "question": question.turns, "function": question.functions}
        return self.ask("prompted", entry=shown)

    def entries(self, category: str) -> list[Row]:
        """Official questions of a category with the function texts a model is shown."""
        return self.ask("entries", category=category, seconds=START_SECONDS)

    def _start(self) -> _Pipes:
        work = str(self.folder)
        # the official package makes folders at import; they go to the work folder
        surroundings = {"BFCL_PROJECT_ROOT": work, "HOME": work, "PATH": os.defpath, "LANG": "C.UTF-8"}
        surroundings |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        python, version = str(self.environment.python), self.environment.version
        command = [python, "-I", "-B", str(INSIDE), version, work, str(self.megabytes)]
        log = self.folder / "log"
        try:
            with log.open("ab") as messages:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, cwd=work, env=surroundings
                )
            assert process.stdin is not None and process.stdout is not None  # both are pipes
            pipes = self._pipes = _Pipes(process, process.stdin, process.stdout)
            self._buffer = b""
            hello = json.loads(self._line(pipes, START_SECONDS))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._stop()
            words = log.read_text(encoding="utf-8", errors="replace").strip()
            raise StageFailure(
                f"the BFCL checker did not start: {words.splitlines()[-1] if words else error}",
                hint=f"delete {self.environment.python.parent.parent} and rerun; it is rebuilt",
            ) from None
        self.parsers = hello["parsers"]
        self.generation += 1
        return pipes

    def _line(self, pipes: _Pipes, seconds: float) -> bytes:
        """The next line of the process; TimeoutError or EOFError."""
        stream = pipes.replies
        while b"\n" not in self._buffer:
            if not select.select([stream], [], [], seconds)[0]:
                raise TimeoutError
            block = os.read(stream.fileno(), 1 << 20)
            if not block:
                raise EOFError
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _stop(self) -> int | None:
        pipes, self._pipes = self._pipes, None
        if pipes is None:
            return None
        process = pipes.process
        with contextlib.suppress(OSError):
            pipes.requests.close()
        try:
            # a process that died of its own has its code at once; one that hangs is killed
            process.wait(timeout=0.5 if process.poll() is None else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pipes.replies.close()
        return process.returncode
