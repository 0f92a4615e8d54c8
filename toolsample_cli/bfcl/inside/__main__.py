"""The scorer's process: one JSON request a line on standard input, one JSON answer a line on its own channel.

Limits come first, then the import of the official package, then the guard that forbids what scoring never needs:
new processes, network, writing outside the work folder. What the package prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from typing import Any


def limit(megabytes: int) -> None:
    """Bound memory and file size; no core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    if sys.platform != "darwin":  # macOS does not let a process lower its address space
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def forbid(work: str) -> None:
    """Forbid what scoring never needs, whatever an answer may have led the official code to."""
    forbidden = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn")
    forbidden += ("socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "os.remove", "os.rename")
    inside = os.path.realpath(work) + os.sep

    def hook(event: str, arguments: tuple) -> None:
        if event in forbidden and not (event in ("os.remove", "os.rename") and _within(arguments[0], inside)):
            raise PermissionError(f"{event} is forbidden while scoring")
        if event == "open" and _writes(arguments) and not _within(arguments[0], inside):
            raise PermissionError(f"writing {arguments[0]!r} is forbidden while scoring")

    sys.addaudithook(hook)


def _writes(arguments: tuple) -> bool:
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _within(path: Any, folder: str) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.path.realpath(os.fsdecode(path)).startswith(folder)


def answer(judge: Any, request: dict[str, Any]) -> Any:
    """Do what a request asks."""
    official, op = judge.official, request["op"]
    if op == "judge":
        return judge.judge(request)
    if op == "execute":
        entry = official.entry(request["category"], request["id"])
        return judge.execute(entry, request["answer"], request["history"])
    if op in ("remember", "flush"):
        return getattr(judge, op)(official.entry(request["category"], request["id"]))
    if op == "forget":
        return [judge.forget("asked", entry_id) for entry_id in request["ids"]]
    if op == "entries":
        return official.entries(request["category"], request.get("hint", True))
    if op == "answers":
        return official.answers(request["category"])
    if op == "prompted":
        return official.prompted(request["entry"])
    if op == "constants":
        return official.constants()
    raise ValueError(f"unknown request {op!r}")


def main() -> None:
    """Serve requests until standard input ends."""
    version, work, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    limit(megabytes)
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # the official package prints; the channel must stay clean
    import official
    import verdicts

    judge = verdicts.Judge(official.Official(version))
    forbid(work)
    print(official.dumps({"ready": version, "parsers": judge.official.parsers}), file=channel, flush=True)
    for line in sys.stdin.buffer:
        try:
            reply = {"ok": answer(judge, json.loads(line))}
        except MemoryError:
            os._exit(71)  # too little is left to go on safely; the caller starts a fresh process
        except Exception as error:
            reply = {"fail": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(limit=8)}
        print(official.dumps(reply), file=channel, flush=True)


main()
