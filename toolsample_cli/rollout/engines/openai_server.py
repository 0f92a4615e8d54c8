"""Any OpenAI-compatible server, or several: vLLM, SGLang, llama.cpp, hosted models.

What the server understands is found out once, by small probes, and stands in the shard's metadata: the dialect,
whether ids are the engine's own, and whether its logprobs are those of the distribution that was sampled.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from toolsample_cli.config import RolloutConfig
from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.models.chat import Chat, Conversation
from toolsample_cli.rollout.engines.server_dialects import DIALECTS, Ask, Dialect
from toolsample_cli.rollout.engines.server_pool import Failed, GaveUp, Pool, Refused, Server
from toolsample_cli.rollout.types import PROCESSED, Completion, Request, Sampling

PROBE_SECONDS = 120.0
RAW = "raw"
"""Logprob convention: before temperature and truncation."""
TEMPERED = "temperature only"
"""Logprob convention: after temperature, before top-p, top-k and min-p, as SGLang gives them."""


class OpenAIBackend:
    """`model` is the served name; `config.tokenizer` (default: the name) the folder or hub id of its tokenizer."""

    name = "openai"
    spools = True

    def __init__(self, model: str, config: RolloutConfig, *, chat: Chat | None = None) -> None:
        urls = [url.strip() for url in config.base_url.split(",") if url.strip()]
        if not urls:
            raise ConfigError("backend openai needs --base-url", hint="as in --base-url http://127.0.0.1:8000/v1")
        self.policy, self.config = model, config
        self.pool = Pool(
            [Server(url) for url in urls],
            attempts=config.retries + 1,
            timeout=config.timeout,
            key=os.environ.get(config.api_key_env) if config.api_key_env else None,
            crowd=config.concurrency,
        )
        served = self._served()
        self.chat = chat or self._chat(model, config)
        self.max_prompt_tokens = served
        self.dialect, self.extended, self.logprobs = self._find_dialect()
        self.wants_conversation = self.dialect.name == "chat"
        self.convention = self._find_convention()

    def describe(self) -> Mapping[str, Any]:
        """How the server is spoken to and what its numbers mean; the weights behind it cannot be known."""
        return {
            "model_digest": None,
            "dtype": None,
            "device": "server",
            "dialect": self.dialect.name + ("" if self.extended else " (standard fields only)"),
            "logprobs": self.convention,
            **self._reading(),
            **(self.chat.fingerprint if self.chat else {}),
        }

    def _reading(self) -> dict[str, Any]:
        """How many tokens a server that is sent text took a prompt for, beside ours: they may not be the same ones."""
        if self.dialect.name != "text":
            return {}
        usage = self._reply.get("usage")
        theirs = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return {"probe_prompt_tokens": [theirs, len(self._question().prompt_ids)]}

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion a request as they finish; what no attempt could get is a completion with its error.

        `config.concurrency` requests are in flight at once. Closing the iterator stops the rest.
        """
        waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        finished: queue.SimpleQueue[Completion | BaseException] = queue.SimpleQueue()
        for request in requests:
            waiting.put(request)
        count = min(self.config.concurrency, len(requests))
        stop = self.pool.stopped = threading.Event()
        for _ in range(count):
            waiting.put(None)
            threading.Thread(target=self._work, args=(waiting, finished, sampling, stop), daemon=True).start()
        try:
            for _ in range(len(requests)):
                done = finished.get()
                if isinstance(done, BaseException):
                    raise done
                yield done
        finally:
            stop.set()

    def _work(self, waiting: Any, finished: Any, sampling: Sampling, stop: threading.Event) -> None:
        while (request := waiting.get()) is not None and not stop.is_set():
            try:
                finished.put(self._one(request, sampling))
            except BaseException as error:  # a bug: raised again where the completions are taken
                finished.put(error)
                return

    def _one(self, request: Request, sampling: Sampling) -> Completion:
        if self.wants_conversation and request.conversation is None:
            return Completion(request.key, request.sample, error="server: it only takes messages, and none were given")
        ask = self._ask(request, sampling)
        try:
            return self.pool.ask(
                request.key, self.dialect.path, self.dialect.body(ask), partial(self.dialect.read, ask)
            )
        except (GaveUp, Refused) as error:
            return Completion(request.key, request.sample, error=f"server: {error}")

    def _ask(self, request: Request, sampling: Sampling) -> Ask:
        if self.max_prompt_tokens is not None:  # servers refuse what might not fit
            room = self.max_prompt_tokens + 1 - len(request.prompt_ids)
            sampling = replace(sampling, max_new_tokens=max(1, min(sampling.max_new_tokens, room)))
        return Ask(self.policy, request, sampling, self.chat, self.extended, self.logprobs)

    def load_weights(self, weights: Any) -> None:
        """Weights of a server cannot be set from here."""
        raise ConfigError(
            "backend openai cannot load weights into a server", hint="restart the server, or use transformers or vllm"
        )

    def close(self) -> None:
        """Stop waiting for the server."""
        self.pool.stopped.set()

    def _chat(self, model: str, config: RolloutConfig) -> Chat | None:
        if config.endpoint == "chat" and not config.tokenizer and not Path(model).is_dir():
            return None  # a hosted model: its tokenizer is its owner's
        return Chat.load(config.tokenizer or model, self_examples=config.self_examples)

    def _served(self) -> int | None:
        """Longest prompt of the served model; ConfigError when the servers have no model of that name."""
        try:
            reply = replace(self.pool, attempts=1, timeout=PROBE_SECONDS).ask("models", "/models", None, lambda r: r)
        except Refused as error:
            if error.status in (401, 403):
                raise ConfigError(
                    f"the server wants a key: {error}", hint=f"set the variable {self.config.api_key_env}"
                ) from None
            return None  # not every server lists its models
        except GaveUp as error:
            if error.status is not None:  # it is there, and only its list fails, as that of `transformers serve` does
                return None
            raise StageFailure(f"no server answers: {error}", hint="start it, or mend --base-url") from None
        listed = reply.get("data") if isinstance(reply, dict) else None
        entries = {str(m.get("id")): m for m in listed if isinstance(m, dict)} if isinstance(listed, list) else {}
        if entries and self.policy not in entries:
            known = f"served: {', '.join(sorted(entries))}"
            raise ConfigError(f"no model {self.policy!r} at the server", hint=nearest(self.policy, entries) or known)
        longest = entries.get(self.policy, {}).get("max_model_len")
        return longest - 1 if isinstance(longest, int) else None

    def _find_dialect(self) -> tuple[Dialect, bool, bool]:
        """The first dialect the server answers in: (dialect, with its extended fields, with logprobs)."""
        endpoint, said = self.config.endpoint, []
        names = [n for n in DIALECTS if endpoint == "auto" or (n == "chat") == (endpoint == "chat")]
        if self.chat is None:
            names = ["chat"]
        for name in names:
            for extended, logprobs in ((True, True), (False, True), (False, False)):
                if name in ("tokens", "generate") and not extended:
                    continue  # without its extension that dialect is the next one
                outcome = self._probe(name, extended, logprobs)
                if not isinstance(outcome, str):
                    return DIALECTS[name], extended, logprobs and self._replied_logprobs()
                said.append(f"{name}: {outcome}")
        raise StageFailure(f"the server answers in no known way: {said[-1]}", hint="; ".join(said[:3]))

    def _probe(self, name: str, extended: bool, logprobs: bool) -> Completion | str:
        """A two-token completion when one comes back whole, else why not."""
        s = self.config
        if not extended and (s.top_k or s.min_p):
            return "the server does not take top_k and min_p"
        sampling = replace(Sampling.of(s, self.chat.end_ids if self.chat else ()), max_new_tokens=2)
        ask = Ask(self.policy, self._question(), sampling, self.chat, extended, logprobs)
        dialect, pool = DIALECTS[name], replace(self.pool, attempts=1, timeout=PROBE_SECONDS)

        def read(reply: Any) -> Completion:
            self._reply = reply
            return dialect.read(ask, reply)

        try:
            done = pool.ask("probe", dialect.path, dialect.body(ask), read)
        except (GaveUp, Refused, Failed) as error:
            return str(error)
        if name in ("tokens", "generate") and done.ids_from_text:
            return "the reply has no token ids"
        return done

    def _replied_logprobs(self) -> bool:
        """Whether the last reply had logprobs at all, whether or not its two tokens could be told from their text."""
        if "choices" not in self._reply:  # SGLang's own endpoint, which was only believed with them
            return True
        log = self._reply["choices"][0].get("logprobs")
        return isinstance(log, dict) and bool(log.get("token_logprobs") or log.get("content"))

    def _question(self) -> Request:
        messages = [{"role": "user", "content": "Say something."}]
        ids = self.chat.encode(self.chat.render(messages)) if self.chat else []
        return Request("probe", ids, 0, 1, conversation=Conversation(messages, [], "json"))

    def _find_convention(self) -> str | None:
        """Which distribution the server's logprobs are of, found by changing one setting at a time where it matters."""
        s = self.config
        truncates = s.top_p < 1 or s.top_k > 0 or s.min_p > 0
        if not self.logprobs or self.dialect.name == "chat":
            return None
        if s.temperature == 0 or (s.temperature == 1 and not truncates):
            return PROCESSED  # every convention gives the same numbers
        cold, plain, hot, narrow = (self._likeliest(*at) for at in ((0.25, 1.0), (1.0, 1.0), (4.0, 1.0), (1.0, 1e-4)))
        if None in (cold, plain, hot, narrow) or (truncates and plain > -0.01):
            return "unknown"  # a model that is sure of its first token cannot tell truncation
        if len({round(p, 3) for p in (cold, plain, hot)}) == 1:
            return RAW
        return PROCESSED if narrow > -1e-3 or not truncates else TEMPERED

    def _likeliest(self, temperature: float, top_p: float) -> float | None:
        """Logprob of the likeliest first token under these settings, from a reply's alternatives."""
        sampling = Sampling(temperature, top_p, max_new_tokens=1)
        body = self.dialect.body(Ask(self.policy, self._question(), sampling, self.chat, self.extended))
        body |= {"top_logprobs_num": 1} if self.dialect.name == "generate" else {"logprobs": 1}
        try:
            reply = replace(self.pool, attempts=2).ask("probe", self.dialect.path, body, lambda r: r)
            if self.dialect.name == "generate":
                return float(reply["meta_info"]["output_top_logprobs"][0][0][0])
            return max(reply["choices"][0]["logprobs"]["top_logprobs"][0].values())
        except (GaveUp, Refused, KeyError, IndexError, TypeError, ValueError, AttributeError):
            return None
