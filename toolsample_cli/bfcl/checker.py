"""Our end of the scorer: one process a model, one request at a time, with limits on time and memory.

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
from typing import Any

from toolsample_cli.bfcl.environment import Environment
from toolsample_cli.errors import StageFailure

INSIDE = Path(__file__).parent / "inside"
START_SECONDS = 120.0


class Overrun(Exception):
    """A request went over a limit; the message is the error type."""


class Scorer:
    """The official checkers of one release behind a pipe; use as a context manager.

    `seconds` and `megabytes` bound one request. Work files live in a folder of its own that is removed at the end.
    """

    def __init__(self, environment: Environment, *, seconds: float = 20.0, megabytes: int = 2048) -> None:
        self.environment = environment
        self.seconds = seconds
        self.megabytes = megabytes
        self.generation = 0
        self.parsers = True
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        self._buffer = b""

    def __enter__(self) -> Scorer:
        self.folder = Path(tempfile.mkdtemp(prefix="toolsample-bfcl-"))
        self._start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, op: str, *, seconds: float | None = None, **arguments: Any) -> Any:
        """The answer to one request; Overrun when it broke a limit, StageFailure for a fault of the scorer."""
        if self._process is None:
            self._start()
        line = json.dumps({"op": op, **arguments}).encode("ascii") + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            reply = json.loads(self._line(seconds or self.seconds))
        except TimeoutError:
            self._stop()
            raise Overrun("limit:time") from None
        except (BrokenPipeError, EOFError):
            code = self._stop()
            raise Overrun("limit:memory" if code in (71, -9) else "limit:crash") from None
        if "ok" not in reply:
            raise StageFailure(f"the BFCL scorer failed at {op}: {reply['fail']}\n{reply['trace']}")
        return reply["ok"]

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Verdict on one answer: {valid, calls, error_type?, error?}; over a limit is wrong."""
        try:
            return self.ask("judge", **request)
        except Overrun as overrun:
            return {"valid": False, "calls": [], "error_type": str(overrun), "error": "over a limit of the scorer"}

    def entries(self, category: str) -> list[dict[str, Any]]:
        """Official questions of a category with the function texts a model is shown."""
        return self.ask("entries", category=category, seconds=START_SECONDS)

    def _start(self) -> None:
        work = str(self.folder)
        # the official package makes folders at import; they go to the work folder
        surroundings = {"BFCL_PROJECT_ROOT": work, "HOME": work, "PATH": os.defpath, "LANG": "C.UTF-8"}
        surroundings |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        python, version = str(self.environment.python), self.environment.version
        command = [python, "-I", "-B", str(INSIDE), version, work, str(self.megabytes)]
        log = self.folder / "log"
        try:
            with log.open("ab") as messages:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, cwd=work, env=surroundings
                )
            self._buffer = b""
            hello = json.loads(self._line(START_SECONDS))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._stop()
            said = log.read_text(encoding="utf-8", errors="replace").strip()
            raise StageFailure(
                f"the BFCL scorer did not start: {said.splitlines()[-1] if said else error}",
                hint=f"delete {self.environment.python.parent.parent} and rerun; it is made anew",
            ) from None
        self.parsers = hello["parsers"]
        self.generation += 1

    def _line(self, seconds: float) -> bytes:
        """The next line of the process; TimeoutError or EOFError."""
        stream = self._process.stdout
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
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            # a process that died of its own has its code at once; one that hangs is killed
            process.wait(timeout=0.5 if process.poll() is None else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        return process.returncode
