"""A small OpenAI-compatible server of chat completions over plain transformers: nothing of ours between it and a model.

    with ChatServer("fixtures/policy") as url: ...

Greedy, one request at a time. Calls in Qwen's form become `tool_calls`, as servers with a tool parser send them.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class ChatServer:
    """Serves one checkpoint on a free port of this machine while the `with` block lasts."""

    def __init__(self, model: str | Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"server_of_model": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def __exit__(self, *_: Any) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One choice: the model's text, its calls taken out."""
        import torch

        if request["temperature"] != 0:
            raise ValueError("this server is greedy")
        inputs = self.tokenizer.apply_chat_template(
            request["messages"],
            tools=request.get("tools"),
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        with self.lock, torch.no_grad():
            made = self.model.generate(**inputs, do_sample=False, max_new_tokens=request["max_tokens"])
        new = made[0, inputs["input_ids"].shape[1] :].tolist()
        ended = new[-1] == self.tokenizer.eos_token_id
        text = self.tokenizer.decode(new[:-1] if ended else new)
        calls = [call for block in BLOCK.findall(text) if (call := _call(block))]
        said = BLOCK.sub("", text).strip() if calls else text
        message: dict[str, Any] = {"role": "assistant", "content": said or None}
        if calls:
            message["tool_calls"] = [
                {"id": f"call_{i}", "type": "function", "function": call} for i, call in enumerate(calls)
            ]
        return {"index": 0, "message": message, "finish_reason": "stop" if ended else "length"}


def _call(block: str) -> dict[str, str] | None:
    try:
        call = json.loads(block)
        return {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    except (ValueError, KeyError, TypeError):
        return None


class _Handler(BaseHTTPRequestHandler):
    server_of_model: ChatServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/v1/chat/completions"):
            self.send_error(404)
            return
        body = json.dumps({"object": "chat.completion", "choices": [self.server_of_model.answer(request)]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
