"""Talking to servers that may fail: deadlines, retries with backoff, a circuit breaker each, work spread over several.

A request is tried a bounded number of times; a server that keeps failing is left alone for a growing while; when
none has answered for DEAD_AFTER seconds every waiting request fails at once, so that a run always ends.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from toolsample_cli.errors import ConfigError

T = TypeVar("T")

TRIP_AFTER = 5
"""Failures in a row that open a server's circuit breaker."""
BACKOFF = 0.5
"""Seconds before the second attempt; doubled for every further one."""
LONGEST_PAUSE = 30.0
DEAD_AFTER = 60.0
LARGEST_REPLY = 64 << 20
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 529})
"""Status codes after which the same request may succeed."""


class Failed(Exception):
    """One attempt failed in a way that another may not; `pause` is what the server asked for, in seconds.

    `status` is that of its reply, None when there was none.
    """

    def __init__(self, message: str, *, pause: float = 0.0, status: int | None = None) -> None:
        super().__init__(message)
        self.pause, self.status = pause, status


class Refused(Exception):
    """The server understood and said no; trying again is useless."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class GaveUp(Exception):
    """All attempts are used up, or no server is left; the message names the last failure, `status` its reply's."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class Server:
    """One base URL with its breaker."""

    url: str
    failures: int = 0
    open_until: float = 0.0
    in_flight: int = 0
    local: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self.url!r}: not a base URL", hint="as in http://127.0.0.1:8000/v1")
        self.parts = parts

    def call(self, path: str, body: Any, key: str | None, timeout: float) -> Any:
        """POST JSON (GET when `body` is None) to base + path, and the JSON that came back.

        `path` starting with `//` is taken from the root instead. Raises Failed or Refused.
        """
        reused = getattr(self.local, "connection", None) is not None
        deadline = time.monotonic() + timeout
        try:
            return self._exchange(path, body, key, deadline)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            if reused and not isinstance(error, TimeoutError):  # the kept connection may just have grown old
                try:
                    return self._exchange(path, body, key, deadline)
                except (OSError, http.client.HTTPException) as second:
                    self._drop()
                    error = second
            raise Failed(f"{self.url}: {type(error).__name__}: {error}") from error
        except BaseException:
            self._drop()
            raise

    def _exchange(self, path: str, body: Any, key: str | None, deadline: float) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        target = path[1:] if path.startswith("//") else self.parts.path + path
        connection = self._connection(max(deadline - time.monotonic(), 0.001))
        text = None if body is None else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", target, text, headers)
        reply = connection.getresponse()
        raw = self._read(reply, connection, deadline)
        if reply.will_close:
            self._drop()
        if reply.status != 200:
            _raise_for(self.url, reply, raw)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Failed(f"{self.url}: reply is not JSON: {error}") from None

    def _read(self, reply: http.client.HTTPResponse, connection: Any, deadline: float) -> bytes:
        blocks, size = [], 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the reply took longer than the time allowed")
            if connection.sock is not None:
                connection.sock.settimeout(left)
            block = reply.read1(1 << 16)
            if not block:
                break
            blocks.append(block)
            size += len(block)
            if size > LARGEST_REPLY:
                raise http.client.HTTPException(f"reply larger than {LARGEST_REPLY} bytes")
        if reply.length:  # read1 does not complain about a body that ends early
            raise http.client.IncompleteRead(b"".join(blocks), reply.length)
        reply.close()  # else the kept connection sends the next request, cannot read its answer, and it goes out twice
        return b"".join(blocks)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        kept = getattr(self.local, "connection", None)
        if kept is not None:
            if kept.sock is not None:
                kept.sock.settimeout(timeout)
            return kept
        host, port = self.parts.hostname, self.parts.port
        if self.parts.scheme == "https":
            context = ssl.create_default_context()
            self.local.connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self.local.connection = http.client.HTTPConnection(host, port, timeout=timeout)
        return self.local.connection

    def _drop(self) -> None:
        kept = getattr(self.local, "connection", None)
        if kept is not None:
            kept.close()
            self.local.connection = None


def _raise_for(url: str, reply: http.client.HTTPResponse, raw: bytes) -> None:
    said = " ".join(raw[:2000].decode("utf-8", "replace").split())[:300]
    if reply.status in AGAIN:
        asked = reply.getheader("Retry-After") or ""
        pause = min(float(asked), LONGEST_PAUSE) if asked.replace(".", "", 1).isdigit() else 0.0
        raise Failed(f"{url}: HTTP {reply.status}: {said}", pause=pause, status=reply.status)
    raise Refused(reply.status, said)


@dataclass
class Pool:
    """Several servers as one. `attempts` bounds the tries of one request, `timeout` the seconds of one try."""

    servers: list[Server]
    attempts: int
    timeout: float
    key: str | None = None
    crowd: int = 32
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._answered = time.monotonic()
        self._last = "no server was tried"

    def ask(self, affinity: str, path: str, body: Any, read: Callable[[Any], T]) -> T:
        """Send a request until `read(reply)` accepts the reply; `read` raises Failed for one that is malformed.

        Requests of one `affinity` prefer one server, whose prefix cache then helps. Raises GaveUp or Refused.
        """
        last, status, server = "", None, None
        for attempt in range(self.attempts):
            server = self._take(affinity, server)
            try:
                value = read(server.call(path, body, self.key, self.timeout))
            except Failed as error:
                last, status = str(error), error.status
                self._note(server, error)
                if attempt + 1 < self.attempts:
                    self.stopped.wait(max(error.pause, min(BACKOFF * 2**attempt, LONGEST_PAUSE)))
            except BaseException:
                with self._lock:
                    server.in_flight -= 1
                raise
            else:
                with self._lock:
                    server.in_flight -= 1
                    server.failures, server.open_until, self._answered = 0, 0.0, time.monotonic()
                return value
        raise GaveUp(f"{self.attempts} attempts, the last: {last}", status)

    def _take(self, affinity: str, failed: Server | None) -> Server:
        """The server to ask now, rather not the one that just failed; waits while every breaker is open.

        GaveUp when nothing answers any more.
        """
        while True:
            if self.stopped.is_set():
                raise GaveUp("stopped")
            with self._lock:
                now = time.monotonic()
                ready = [s for s in self.servers if s.open_until <= now]
                probing = [s for s in ready if s.failures < TRIP_AFTER or s.in_flight == 0]
                if probing:
                    server = self._choose(affinity, [s for s in probing if s is not failed] or probing)
                    server.in_flight += 1
                    return server
                if now - self._answered > DEAD_AFTER:
                    raise GaveUp(f"no server has answered for {DEAD_AFTER:.0f} s, the last: {self._last}")
                pause = max(0.02, min(s.open_until for s in self.servers) - now)
            self.stopped.wait(min(pause, 0.5))

    def _choose(self, affinity: str, ready: list[Server]) -> Server:
        favourite = ready[zlib.crc32(affinity.encode("utf-8", "replace")) % len(ready)]
        fair = self.crowd / len(ready)
        if favourite.in_flight <= 1.25 * fair:
            return favourite
        return min(ready, key=lambda s: s.in_flight)

    def _note(self, server: Server, error: Failed) -> None:
        with self._lock:
            server.in_flight -= 1
            self._last = str(error)
            if error.status == 429:  # a server that says it is busy is alive
                self._answered = time.monotonic()
                return
            server.failures += 1
            if server.failures >= TRIP_AFTER:
                wait = min(BACKOFF * 2 ** (server.failures - TRIP_AFTER), LONGEST_PAUSE)
                server.open_until = time.monotonic() + wait
