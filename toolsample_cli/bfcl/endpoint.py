"""An OpenAI-compatible server as the model: chat completions with `tools`, bounded concurrency, retries with backoff.

Dots in names become underscores on the way out (the API forbids them) and the checker is told so; a server of one's
own that takes dots can be told to `keep` them. A request that keeps failing is an error, never an answer.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolsample_cli.bfcl.answering import Reply
from toolsample_cli.bfcl.prompts import Prompt, tools_in_template, tools_of
from toolsample_cli.config import EvalConfig
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.toolcalls.call import TooDeep, loads

ATTEMPTS = 5
"""Tries of one request; waits between them double from half a second."""

TIMEOUT = 600.0
"""Seconds for one answer."""

GIVE_UP = 10
"""Requests in a row without any answer after which the server is taken for dead."""

_NO_RETRY = frozenset({400, 401, 403, 404, 405, 413, 422})


class Endpoint:
    """Chat completions of one server; `model` is the name it knows the model by."""

    def __init__(self, model: str, protocol: str, config: EvalConfig) -> None:
        if not config.base_url:
            raise ConfigError("backend openai needs base_url", hint="--base-url http://localhost:8000/v1")
        self.model, self.protocol, self.config = model, protocol, config
        self.native = tools_in_template(protocol)
        self.underscores = self.native and config.dots != "keep"
        self.url = config.base_url.rstrip("/") + "/chat/completions"
        self.failed_in_a_row = 0

    def plan(self, prompts: Sequence[Prompt]) -> list[list[Prompt]]:
        """Groups of as many as may be under way at once."""
        size = self.config.concurrency
        return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]

    def answer(self, group: Sequence[Prompt]) -> Iterator[Reply]:
        """One reply a prompt; StageFailure once the server seems dead."""
        with ThreadPoolExecutor(max_workers=max(1, len(group))) as pool:
            for reply in pool.map(self._reply, group):
                self.failed_in_a_row = self.failed_in_a_row + 1 if reply.error else 0
                if self.failed_in_a_row >= GIVE_UP:
                    raise StageFailure(
                        f"{self.url}: {GIVE_UP} requests in a row failed, the last with: {reply.error}",
                        hint="see to the server and rerun; answers so far are kept",
                    )
                yield reply

    def close(self) -> None:
        """Nothing is held."""

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The request for a prompt."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(prompt.messages),
            "temperature": 0.0,
            "max_tokens": self.config.max_new_tokens,
        }
        tools = tools_of(prompt.functions, prompt.key) if self.native else []
        if tools:
            body["tools"] = [{"type": "function", "function": {**t, "name": self._sent(t["name"])}} for t in tools]
        for message in body["messages"]:
            if message.get("tool_calls"):  # the API wants arguments as text
                message["tool_calls"] = [_with_text(call, self._sent) for call in message["tool_calls"]]
        return body

    def _sent(self, name: str) -> str:
        return name.replace(".", "_") if self.underscores else name

    def _reply(self, prompt: Prompt) -> Reply:
        body = self.body(prompt)
        shown = json.dumps({key: body[key] for key in ("messages", "tools") if key in body}, ensure_ascii=False)
        try:
            answer = self._post(json.dumps(body).encode("ascii"))
        except _Failed as failed:
            return Reply(prompt.key, shown, error=str(failed))
        try:
            choice = answer["choices"][0]
            message = choice["message"]
            text, calls = message.get("content") or "", message.get("tool_calls") or []
            ready = [_call(call["function"]) for call in calls] if self.native else None
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            return Reply(prompt.key, shown, error=f"server: an answer without {error}")
        if ready is not None and None in ready:  # arguments that are no JSON object: as officially, no call at all
            text, ready = text or json.dumps(calls, ensure_ascii=False), []
        return Reply(prompt.key, shown, text, ready, choice.get("finish_reason"), underscores=self.underscores)

    def _post(self, data: bytes) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        request = urllib.request.Request(self.url, data, headers)
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(0.5 * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                why = f"server: {error.code} {error.reason}: {error.read(300).decode('utf-8', 'replace')}"
                if error.code in _NO_RETRY:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = f"server: {type(error).__name__}: {error}"
        raise _Failed(why)


class _Failed(Exception):
    """A request that got no answer."""


def _call(function: dict[str, Any]) -> list | None:
    """[name, arguments], or None when the arguments are no JSON object."""
    arguments = function.get("arguments") or "{}"
    try:
        value = loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, TooDeep):
        return None
    return [function["name"], value] if isinstance(value, dict) else None


def _with_text(call: dict[str, Any], sent: Any) -> dict[str, Any]:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {"name": sent(function["name"]), "arguments": text}}
