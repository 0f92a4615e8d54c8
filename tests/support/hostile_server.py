"""What a server may do to a client, by name; and a server that does one of these things to every request.

    with Hostile("drip chunks") as url: ...

`good` may answer instead: a function (path, body) -> JSON or None, asked first.
"""

from __future__ import annotations

import gzip
import itertools
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DRIP = 0.05
HUGE = 1 << 40


def _choice(**fields: Any) -> dict[str, Any]:
    """A good choice of either endpoint, but for these fields."""
    return {"choices": [{"text": "x", "message": {"content": "x"}, "finish_reason": "stop", **fields}]}


def _call(**fields: Any) -> dict[str, Any]:
    return _choice(text=1, message={"tool_calls": [{"function": {"name": "f", "arguments": "{}", **fields}}]})


VARIANTS: dict[str, Any] = {
    "no object": [1, 2],
    "choices a number": {"choices": 5},
    "choices of numbers": {"choices": [5]},
    "text a number": _choice(text=5, message={"content": 5}),
    "reason a number": _choice(finish_reason=7),
    "reason a page": _choice(finish_reason="<html>" * 100),
    "logprobs a text": _choice(logprobs="x"),
    "calls a number": _choice(text=1, message={"tool_calls": 5}),
    "calls of texts": _choice(text=1, message={"tool_calls": ["x"]}),
    "a call's name a list": _call(name=[]),
    "arguments a number": _call(arguments=5),
    "ids a text": _choice(token_ids="abc"),
    "ids of floats": _choice(token_ids=[1.5]),
    "ids huge": _choice(token_ids=[HUGE]),
    "ids negative": _choice(token_ids=[-1]),
    "prompt ids a number": _choice(prompt_token_ids=5),
}
"""Replies of wrong types; none of them is a completion or an answer. "wrong types" gives them in turns."""

WAYS = (
    *("redirect", "endless body", "endless headers", "drip headers", "drip body", "drip chunks", "silence", "bomb"),
    *("deep", "deep arguments", "garbage", "closes", "echo of the key", "wrong types"),
)


class Hostile:
    """A context manager around a server on a free port; `seen` are the headers of every request that came."""

    def __init__(
        self,
        way: str,
        *,
        target: str = "http://127.0.0.1:9/",
        good: Callable[[str, Any], Any] = lambda path, body: None,
    ) -> None:
        self.way, self.target, self.good = way, target, good
        self.seen: list[dict[str, str]] = []
        self.variants = itertools.cycle(VARIANTS.values())
        self.over = threading.Event()
        handler = type("Handler", (_Handler,), {"hostile": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # clients that left are no news
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self) -> Hostile:
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.over.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hostile: Hostile

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.hostile.seen.append(dict(self.headers))
        reply = self.hostile.good(self.path, body)
        if reply is not None:
            self._whole(200, json.dumps(reply).encode())
            return
        self.close_connection = True
        getattr(self, self.hostile.way.replace(" ", "_"))()

    def _whole(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def _drip(self, data: bytes) -> None:
        for byte in data * 1_000_000:
            if self.hostile.over.is_set():
                return
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(DRIP)

    def _flood(self, block: bytes) -> None:
        while not self.hostile.over.is_set():
            self.wfile.write(block)

    def redirect(self) -> None:
        self._whole(307, b"", Location=self.hostile.target)

    def endless_body(self) -> None:
        self.send_response(200)
        self.end_headers()
        self._flood(b'{"choices": [' + b"1," * 50_000)

    def endless_headers(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        self._flood(b"X-More: of the same\r\n" * 1000)

    def drip_headers(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        self._drip(b"z")

    def drip_body(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self._drip(b" ")

    def drip_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._drip(b"1\r\n \r\n")

    def silence(self) -> None:
        self.hostile.over.wait()

    def bomb(self) -> None:
        self._whole(200, gzip.compress(b" " * (200 << 20)), Content_Encoding="gzip")

    def deep(self) -> None:
        self._whole(200, b'{"choices": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")

    def deep_arguments(self) -> None:
        nested = '{"a": ' * 5_000 + "1" + "}" * 5_000
        call = {"function": {"name": "f", "arguments": nested}}
        message = {"content": None, "tool_calls": [call]}
        self._whole(200, json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode())

    def garbage(self) -> None:
        self.wfile.write(b"\x00\xff" * 5_000)

    def closes(self) -> None:
        pass

    def wrong_types(self) -> None:
        self._whole(200, json.dumps(next(self.hostile.variants)).encode())

    def echo_of_the_key(self) -> None:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        escaped = "".join(f"\\u{ord(character):04x}" for character in key)
        call = {"function": {"name": "send_mail", "arguments": '{"to": "' + escaped + '"}'}}
        message = {"content": f"your key is {key}", "tool_calls": [call]}
        choice = {"text": f"your key is {key}", "message": message, "finish_reason": key or "stop"}
        number = len(self.hostile.seen)
        if number % 3 == 0:
            self._whole(400, json.dumps({"error": f"invalid key: {self.headers.get('Authorization')}"}).encode())
        elif number % 3 == 1:
            self._whole(500, json.dumps({"error": f"no such key: {key}"}).encode())
        else:
            self._whole(200, json.dumps({"choices": [{**choice, "finish_reason": "stop"}]}).encode())
