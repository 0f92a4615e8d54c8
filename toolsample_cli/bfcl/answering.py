"""Who answers: a local engine of `rollout` behind the model's own chat template, or an OpenAI-compatible server.

Both take prompts (messages and functions) and give replies, greedily. A local engine cuts its batches over all prompts,
so that a batch asked again after a kill has the same neighbours and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolsample_cli.bfcl.prompts import Prompt, task_row
from toolsample_cli.config import EvalConfig, RolloutConfig
from toolsample_cli.errors import ConfigError
from toolsample_cli.rollout.types import Request, Sampling, open_engine


@dataclass(frozen=True)
class Reply:
    """What came back: text, or an error.

    `calls` are [[name, arguments]] where a server gave them ready, with `underscores` for dots in names or not.
    """

    key: str
    prompt: str
    text: str = ""
    calls: list | None = None
    finish_reason: str | None = None
    error: str | None = None
    underscores: bool = False

    def record(self) -> dict[str, Any]:
        """The reply as the journal keeps it."""
        if self.error is not None:
            return {"error": self.error}
        ready = {} if self.calls is None else {"calls": self.calls, "underscores": self.underscores}
        return {"text": self.text, "finish_reason": self.finish_reason, **ready}


class Model(Protocol):
    """Plan first, then answer group by group."""

    def plan(self, prompts: Sequence[Prompt]) -> list[list[Prompt]]:
        """Prompts in groups that are answered together."""

    def answer(self, group: Sequence[Prompt]) -> Iterator[Reply]:
        """One reply a prompt, in any order."""

    def close(self) -> None:
        """Free what is held."""


def open_model(model: str, protocol: str, config: EvalConfig) -> Model:
    """The model to ask; ConfigError when settings contradict each other."""
    if config.backend == "openai":
        if config.self_examples:
            raise ConfigError("self_examples is for local models: a server's prompt is its own")
        from toolsample_cli.bfcl.endpoint import Endpoint

        return Endpoint(model, protocol, config)
    if config.base_url:
        raise ConfigError("base_url is for --backend openai", hint="add --backend openai, or leave --base-url out")
    return LocalModel(model, protocol, config)


class LocalModel:
    """A checkpoint in one of rollout's engines."""

    def __init__(self, model: str, protocol: str, config: EvalConfig) -> None:
        settings = RolloutConfig(
            n=1,
            temperature=0.0,
            max_new_tokens=config.max_new_tokens,
            dtype=config.dtype,
            device=config.device,
            batch_tokens=config.batch_tokens,
            self_examples=config.self_examples,
        )
        self.protocol = protocol
        self.engine = open_engine(config.backend, model, settings)
        self.chat = self.engine.chat
        self.sampling = Sampling(
            temperature=0.0, max_new_tokens=config.max_new_tokens, stop_ids=tuple(self.chat.end_ids)
        )
        self._requests: dict[str, Request] = {}
        self._texts: dict[str, str] = {}

    def plan(self, prompts: Sequence[Prompt]) -> list[list[Prompt]]:
        """The engine's own batches; prompts that do not fit stand in a group of their own."""
        by_key = {prompt.key: prompt for prompt in prompts}
        requests, misfits = [], []
        for prompt in prompts:
            self._texts[prompt.key] = self.chat.prompt_text(task_row(prompt, self.protocol))
            request = Request(prompt.key, self.chat.encode(self._texts[prompt.key]), 0, 0)
            self._requests[prompt.key] = request
            (misfits if self._too_long(request) else requests).append(request)
        batches = self.engine.batches(requests, self.sampling) if hasattr(self.engine, "batches") else [requests]
        groups = [*batches, *([misfits] if misfits else [])]
        return [[by_key[request.key] for request in group] for group in groups if group]

    def _too_long(self, request: Request) -> bool:
        most = self.engine.max_prompt_tokens
        return most is not None and len(request.prompt_ids) > most

    def answer(self, group: Sequence[Prompt]) -> Iterator[Reply]:
        """One reply a prompt of a planned group."""
        requests = [self._requests.pop(prompt.key) for prompt in group]
        for request in [request for request in requests if self._too_long(request)]:
            why = f"prompt of {len(request.prompt_ids)} tokens, the model takes {self.engine.max_prompt_tokens}"
            yield Reply(request.key, self._texts.pop(request.key), error=f"too_long: {why}")
        fitting = [request for request in requests if not self._too_long(request)]
        for done in self.engine.generate(fitting, self.sampling) if fitting else ():
            prompt = self._texts.pop(done.key)
            if done.error is not None:
                yield Reply(done.key, prompt, error=done.error)
            else:
                text = done.text if done.text is not None else self.chat.text(list(done.completion_ids))
                yield Reply(done.key, prompt, text, None, done.finish_reason)

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()
