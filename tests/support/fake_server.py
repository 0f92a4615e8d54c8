"""A small server in the manner of vLLM over a real engine, which misbehaves on command.

`Fake(engine)` answers truthfully; `faults(number, body)` may name a misbehaviour for the request of that number.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from toolsample_cli.rollout.engines.token_sampling import log_distribution
from toolsample_cli.rollout.types import Request, Sampling

FAULTS = (
    "500",
    "429",
    "stall",
    "cut",
    "garbage",
    "no choice",
    "two choices",
    "short logprobs",
    "other prompt",
    "no reason",
)


class Fake:
    """A context manager: `with Fake(engine) as fake: fake.url`. `style` is vllm, sglang, text or chat."""

    def __init__(self, engine: Any, *, style: str = "vllm", faults: Callable[[int, dict], str | None] | None = None):
        self.engine, self.style, self.faults = engine, style, faults or (lambda number, body: None)
        self.seen: list[dict] = []
        self.connections: list[socket.socket] = []
        self.lock = engine.__dict__.setdefault("lock", threading.Lock())  # one engine, one user at a time
        self.logprobs_mode = "temperature" if style == "sglang" else "processed"
        handler = type("Handler", (_Handler,), {"fake": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # clients that left are no news
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> Fake:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.die()

    def die(self) -> None:
        """Stop listening; connections that are open break."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # the other side went first
                connection.shutdown(socket.SHUT_RDWR)

    def complete(self, body: dict) -> dict:
        """One choice, as the style writes it."""
        chat = self.engine.chat
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else chat.encode(prompt)
        stop = tuple(body.get("stop") or ())
        sampling = Sampling(body["temperature"], body["top_p"], max_new_tokens=body["max_tokens"], stop=stop)
        with self.lock:
            (done,) = self.engine.generate([Request("x", ids, 0, body["seed"])], sampling)
            out = list(done.completion_ids)
            logps, best = self._logprobs(ids, out, sampling)
        text = chat.text(out)
        if not body.get("include_stop_str_in_output"):
            text = text[: min((text.find(s) for s in stop if s in text), default=len(text))]
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": done.finish_reason}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "token_logprobs": logps,
                "tokens": [chat.tokenizer.decode([i]) for i in out],
                "top_logprobs": [{"likeliest": p} for p in best],
            }
        if self.style == "vllm" and body.get("return_token_ids"):
            choice |= {"token_ids": out, "prompt_token_ids": ids}
        return choice

    def generate(self, body: dict) -> dict:
        """The reply of SGLang's own endpoint, as its documentation and its clients have it."""
        asked = body["sampling_params"]
        sampling = Sampling(
            asked["temperature"],
            asked["top_p"],
            max_new_tokens=asked["max_new_tokens"],
            stop=tuple(asked.get("stop", ())),
        )
        with self.lock:
            (done,) = self.engine.generate([Request("x", body["input_ids"], 0, asked["sampling_seed"])], sampling)
            out = list(done.completion_ids)
            logps, best = self._logprobs(body["input_ids"], out, sampling)
        meta = {
            "finish_reason": {"type": done.finish_reason},
            "output_token_logprobs": [[p, i, None] for p, i in zip(logps, out, strict=True)],
        }
        if body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = [[[p, 0, None]] for p in best]
        return {"text": self.engine.chat.text(out), "output_ids": out, "meta_info": meta}

    def _logprobs(self, prompt: list[int], out: list[int], sampling: Sampling) -> tuple[list[float], list[float]]:
        """Of the tokens and of the likeliest ones, under the distribution this server reports."""
        reported = {"processed": sampling, "temperature": Sampling(sampling.temperature), "raw": Sampling()}
        with torch.inference_mode():
            logits = self.engine.model(torch.tensor([[*prompt, *out]])).logits[0, len(prompt) - 1 : -1]
        logp = log_distribution(logits, reported[self.logprobs_mode])
        return logp.gather(-1, torch.tensor(out)[:, None])[:, 0].tolist(), logp.amax(-1).tolist()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def setup(self) -> None:
        super().setup()
        self.fake.connections.append(self.connection)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "tiny", "max_model_len": 2048}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.fake.lock:
            number = len(self.fake.seen)
            self.fake.seen.append({"path": self.path, **body})
        fault = self.fake.faults(number, body)
        if fault in ("500", "429"):
            return self._send(int(fault), {"error": "as told"})
        if fault == "stall":
            time.sleep(4)
            return None
        refused = self._refused(body)
        if refused:
            return self._send(*refused)
        if self.path.endswith("/chat/completions"):
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            }
            return self._send(200, {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
        if self.path == "/generate":
            return self._send(200, self.fake.generate(body), fault)
        choice = self.fake.complete(body)
        choices = [choice]
        if fault == "no choice":
            choices = []
        elif fault == "two choices":
            choices = [choice, choice]
        elif fault == "short logprobs":
            choice["logprobs"]["token_logprobs"].append(-0.5)
        elif fault == "other prompt":
            choice["prompt_token_ids"] = [1, *choice["prompt_token_ids"]]
        elif fault == "no reason":
            choice["finish_reason"] = None
        return self._send(200, {"choices": choices}, fault)

    def _refused(self, body: dict) -> tuple[int, Any] | None:
        style = self.fake.style
        if (self.path == "/generate" and style != "sglang") or (
            style == "chat" and not self.path.endswith("/chat/completions")
        ):
            return 404, {"error": "no such path"}
        if style == "text" and isinstance(body.get("prompt"), list):
            return 400, {"error": "prompt must be a text"}
        if style == "text" and "return_token_ids" in body:
            return 422, {"error": "unknown field return_token_ids"}
        return None

    def _send(self, status: int, value: Any, fault: str | None = None) -> None:
        data = json.dumps(value).encode()
        if fault == "garbage":
            data = b"<html>" + data
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(data)
