"""The one client of OpenAI-compatible servers: deadlines, caps, retries with backoff, a circuit breaker per server.

httpx carries the bytes (proxies, kept connections); what a server may do to us is bounded here. One try ends after
`timeout` seconds whatever trickles in, a reply has a largest size, redirects are not followed, and the key never
comes back out of a reply. A request is tried a bounded number of times; a server that keeps failing is left alone for
a growing while; when none has answered for DEAD_AFTER seconds all that wait fail at once, so that a run always ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.json_types import Json, Row

T = TypeVar("T")

TRIP_AFTER = 5
"""Failures in a row that open a server's circuit breaker."""
BACKOFF = 0.5
"""Seconds before the second attempt; doubled for every further one."""
LONGEST_PAUSE = 30.0
DEAD_AFTER = 60.0
PROBE_SECONDS = 120.0
"""Longest that finding out about a server may take per request; `timeout` where that is shorter."""
SMALLEST_CAP = 1 << 20
"""Bytes of a reply that are read in any case; more are allowed per token asked for, see `Query.of`."""
TOKEN_BYTES = 1 << 10
ERROR_BYTES = 1 << 16
AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 529})
"""Status codes after which the same request may succeed."""


class Failed(Exception):
    """One attempt failed in a way that another may not; `pause` is what the server asked for, in seconds.

    `status` is that of its reply, None when there was none; `late` says that the time ran out.
    """

    def __init__(self, message: str, *, pause: float = 0.0, status: int | None = None, late: bool = False) -> None:
        super().__init__(message)
        self.pause, self.status, self.late = pause, status, late


class Rejected(Exception):
    """The server understood and said no; trying again is useless."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class GaveUp(Exception):
    """All attempts are used up, or no server is left; the message names the last failure, `status` its reply's."""

    def __init__(self, message: str, status: int | None = None, *, late: bool = False) -> None:
        super().__init__(message)
        self.status, self.late = status, late


class ServerSettings(Protocol):
    """The knobs of a client, as `RolloutConfig` and `EvalConfig` both have them."""

    @property
    def base_url(self) -> str: ...
    @property
    def api_key_env(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def timeout(self) -> float: ...


@dataclass(frozen=True)
class Query(Generic[T]):
    """One request: POST of JSON to base + `path` (GET without `content`; a `path` of `//x` is taken from the root).

    `read(reply)` makes a value of the decoded JSON, or raises Failed when it cannot be believed. Queries of one
    `affinity` prefer one server, whose prefix cache then helps.
    """

    affinity: str
    path: str
    content: bytes | None
    read: Callable[[Json], T]
    largest: int = SMALLEST_CAP

    @classmethod
    def of(cls, affinity: str, path: str, body: Row, read: Callable[[Json], T], tokens: int) -> Query[T]:
        """A query whose reply may hold `tokens` completion tokens with their logprobs, and an echo of the prompt."""
        content = json.dumps(body).encode("ascii")
        return cls(affinity, path, content, read, SMALLEST_CAP + TOKEN_BYTES * tokens + 4 * len(content))


@dataclass(eq=False)
class Server:
    """One base URL with its breaker."""

    url: str
    failures: int = 0
    open_until: float = 0.0
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"{self.url!r}: not a base URL", hint="as in http://127.0.0.1:8000/v1")
        if "@" in parts.netloc:
            raise ConfigError(
                f"a base URL at {parts.hostname} holds a name or password, which would be recorded",
                hint="put a key into an environment variable and name it with --api-key-env",
            )

    def address(self, path: str) -> str:
        """The whole URL of a path."""
        if not path.startswith("//"):
            return self.url + path
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{path[1:]}"


class Secret:
    """The key of a client, and how it is kept out of everything that a server says."""

    def __init__(self, variable: str) -> None:
        self.key = os.environ.get(variable, "").strip() if variable else ""
        if not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(f"the variable {variable} holds characters that no key may have")

    @property
    def worth_hiding(self) -> bool:
        """Whether it is a key at all: servers without one are given words such as EMPTY."""
        return len(self.key) >= 12 or (len(self.key) >= 6 and not self.key.isalpha())

    def hide(self, text: str) -> str:
        """The text with the key blacked out, also where it is written in JSON's escapes."""
        if not self.worth_hiding:
            return text
        if "\\" in text and self.key in _unescaped(text) and self.key not in text:
            return "[key]"
        return text.replace(self.key, "[key]")

    def hide_in(self, row: Row) -> Row:
        """Every name and text of an object with the key blacked out."""
        return {self.hide(name): self.hide_all(item) for name, item in row.items()}

    def hide_all(self, value: Json) -> Json:
        """Every text of a JSON value with the key blacked out."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list):
            return [self.hide_all(item) for item in value]
        if isinstance(value, dict):
            return self.hide_in(value)
        return value


def _unescaped(text: str) -> str:
    return re.sub(r"\\u([0-9a-fA-F]{4})|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], text)


class Client:
    """Several servers as one. Requests run on an event loop in a thread of their own, `concurrency` at a time."""

    def __init__(self, config: ServerSettings) -> None:
        urls = [url.strip() for url in config.base_url.split(",") if url.strip()]
        if not urls:
            raise ConfigError("backend openai needs base_url", hint="as in --base-url http://127.0.0.1:8000/v1")
        self.servers = [Server(url) for url in urls]
        self.secret, self.key_variable = Secret(config.api_key_env), config.api_key_env
        self.attempts, self.timeout, self.concurrency = config.retries + 1, config.timeout, config.concurrency
        self._answered, self._last = time.monotonic(), "no server was tried"
        self._http = self._transport()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server-client", daemon=True)
        self._thread.start()

    def _transport(self) -> httpx.AsyncClient:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self.secret.key:
            headers["Authorization"] = f"Bearer {self.secret.key}"
        return httpx.AsyncClient(
            headers=headers,
            timeout=None,  # of single reads and writes: the deadline of a whole attempt is ours
            follow_redirects=False,
            # a server closes a kept connection after 5 s at the earliest; ours goes first
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
            verify=ssl.create_default_context(),
            mounts=dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]")),  # never through a proxy
        )

    def close(self) -> None:
        """Drop all connections and end the thread."""
        if self._loop.is_closed():
            return
        self._run(self._http.aclose()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[None, None, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask(self, query: Query[T], *, attempts: int = 1) -> T:
        """The value of one query, tried briefly: for finding out what a server is. Raises GaveUp or Rejected."""
        return self._run(self._ask(query, attempts, min(PROBE_SECONDS, self.timeout))).result()

    def ask_all(self, queries: Iterable[tuple[str, Query[T]]]) -> Iterator[tuple[str, T | GaveUp | Rejected]]:
        """(name, value) of every (name, query) as they finish, or why there is none. Closing it drops the rest."""
        done: queue.SimpleQueue[tuple[str, T | GaveUp | Rejected] | Future[None]] = queue.SimpleQueue()
        crowd = self._run(self._crowd(iter(queries), done.put))
        crowd.add_done_callback(done.put)
        try:
            while not isinstance(item := done.get(), Future):
                yield item
            item.result()  # an error of ours, raised where the values are taken
        finally:
            crowd.cancel()

    async def _crowd(
        self, queries: Iterator[tuple[str, Query[T]]], put: Callable[[tuple[str, T | GaveUp | Rejected]], None]
    ) -> None:
        async def work() -> None:
            for name, query in queries:
                outcome: T | GaveUp | Rejected
                try:
                    outcome = await self._ask(query, self.attempts, self.timeout)
                except (GaveUp, Rejected) as error:
                    outcome = error
                put((name, outcome))

        workers = [asyncio.ensure_future(work()) for _ in range(self.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()

    async def _ask(self, query: Query[T], attempts: int, timeout: float) -> T:
        """Send a query until its `read` accepts the reply."""
        last, server = Failed("not tried"), None
        for attempt in range(attempts):
            server = await self._take(query.affinity, server)
            try:
                value = query.read(await self._exchange(server, query, timeout))
            except Failed as error:
                last = error
                self._note(server, error)
            else:
                server.failures, server.open_until, self._answered = 0, 0.0, time.monotonic()
                return value
            finally:
                server.in_flight -= 1
            if attempt + 1 < attempts:
                await asyncio.sleep(max(last.pause, min(BACKOFF * 2**attempt, LONGEST_PAUSE)))
        raise GaveUp(f"{attempts} attempts, the last: {last}", last.status, late=last.late)

    async def _exchange(self, server: Server, query: Query[T], timeout: float) -> Json:
        """The decoded reply to one attempt, within `timeout` seconds from beginning to end. Raises Failed or Rejected.

        An attempt that is late is cancelled and not waited for.
        """
        task = asyncio.ensure_future(self._send(server, query))
        try:
            await asyncio.wait({task}, timeout=timeout)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        raise Failed(f"{server.url}: TimeoutError: no whole reply within {timeout:g} s", late=True)

    async def _send(self, server: Server, query: Query[T]) -> Json:
        method, address = ("GET" if query.content is None else "POST"), server.address(query.path)
        try:
            async with self._http.stream(method, address, content=query.content) as reply:
                raw = await _read(reply, query.largest if reply.status_code == 200 else ERROR_BYTES)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ssl.SSLError) as error:
            raise Failed(f"{server.url}: {type(error).__name__}: {self.secret.hide(str(error))}") from None
        if reply.status_code != 200:
            self._raise_for(server, reply, raw)
        try:
            value = json.loads(raw)
            return self.secret.hide_all(value) if self.secret.worth_hiding else value
        except (ValueError, RecursionError) as error:
            raise Failed(f"{server.url}: reply is not JSON: {self.secret.hide(str(error))}") from None

    def _raise_for(self, server: Server, reply: httpx.Response, raw: bytes) -> None:
        body = self.secret.hide(" ".join(raw[:2000].decode("utf-8", "replace").split()))[:300]
        if reply.status_code in AGAIN:
            asked = reply.headers.get("Retry-After", "")
            pause = min(float(asked), LONGEST_PAUSE) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", asked) else 0.0
            raise Failed(f"{server.url}: HTTP {reply.status_code}: {body}", pause=pause, status=reply.status_code)
        if reply.is_redirect:
            body = "it redirects, and redirects are not followed, since they may carry the key away"
        raise Rejected(reply.status_code, body)

    async def _take(self, affinity: str, failed: Server | None) -> Server:
        """The server to ask now, rather not the one that just failed; waits while every breaker is open.

        GaveUp when nothing answers any more.
        """
        while True:
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
            await asyncio.sleep(min(pause, 0.5))

    def _choose(self, affinity: str, ready: list[Server]) -> Server:
        favourite = ready[zlib.crc32(affinity.encode("utf-8", "replace")) % len(ready)]
        fair = self.concurrency / len(ready)
        if favourite.in_flight <= 1.25 * fair:
            return favourite
        return min(ready, key=lambda s: s.in_flight)

    def _note(self, server: Server, error: Failed) -> None:
        self._last = str(error)
        if error.status == 429:  # a server that says it is busy is alive
            self._answered = time.monotonic()
            return
        server.failures += 1
        if server.failures >= TRIP_AFTER:
            wait = min(BACKOFF * 2 ** (server.failures - TRIP_AFTER), LONGEST_PAUSE)
            server.open_until = time.monotonic() + wait

    def longest_prompt(self, model: str) -> int | None:
        """Most prompt tokens of a served model, where the servers say so.

        ConfigError when they have no model of that name or want a key, StageFailure when none answers.
        """
        try:
            reply = self.ask(Query("models", "/models", None, lambda value: value, 16 * SMALLEST_CAP))
        except Rejected as error:
            if error.status in (401, 403):
                raise ConfigError(
                    f"the server wants a key: {error}", hint=f"set the variable {self.key_variable}"
                ) from None
            return None  # not every server lists its models
        except GaveUp as error:
            if error.status is not None:  # it is there, and only its list fails, as that of `transformers serve` does
                return None
            raise StageFailure(f"no server answers: {error}", hint="start it, or mend --base-url") from None
        listed = reply.get("data") if isinstance(reply, dict) else None
        entries = {str(m.get("id")): m for m in listed if isinstance(m, dict)} if isinstance(listed, list) else {}
        if entries and model not in entries:
            known = f"served: {', '.join(sorted(entries))[:500]}"
            raise ConfigError(f"no model {model!r} at the server", hint=nearest(model, entries) or known)
        longest = entries.get(model, {}).get("max_model_len")
        return longest - 1 if isinstance(longest, int) and longest > 1 else None


async def _read(reply: httpx.Response, largest: int) -> bytes:
    """The body as it came over the wire, up to `largest` bytes; beyond them an error page is cut, a reply refused."""
    if reply.headers.get("Content-Encoding", "identity") != "identity":
        raise httpx.DecodingError("the reply is compressed, which was not asked for")
    blocks, size = [], 0
    async for block in reply.aiter_raw():
        blocks.append(block)
        size += len(block)
        if size > largest and reply.status_code != 200:
            break
        if size > largest:
            raise httpx.RemoteProtocolError(f"reply larger than {largest:,} bytes")
    return b"".join(blocks)
