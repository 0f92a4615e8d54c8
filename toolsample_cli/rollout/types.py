"""What every engine takes and gives: token ids in, token ids with their log-probabilities out.

Logprobs are those of the distribution that was really sampled: after temperature, top-k, top-p and min-p,
renormalised. An engine that cannot say so names its own convention in `describe()["logprobs"]`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from toolsample_cli.config import RolloutConfig
from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError
from toolsample_cli.models.chat import load_tokenizer
from toolsample_cli.models.digests import check_model

BACKENDS: dict[str, str] = {
    "transformers": "toolsample_cli.rollout.engines.transformers:TransformersBackend",
    "vllm": "toolsample_cli.rollout.engines.vllm:VllmBackend",
    "openai": "toolsample_cli.rollout.engines.openai_server:OpenAIBackend",
    "replay": "toolsample_cli.rollout.engines.replay:ReplayBackend",
}
"""Name -> "module:Class"; a class takes (model, config, **options)."""

LOCAL = ("transformers", "vllm")
"""Engines that hold the weights of a model folder."""

PROCESSED = "processed"
"""Logprob convention: under the distribution after temperature and truncation."""


@dataclass(frozen=True)
class Request:
    """One completion that is wanted. Requests of one task share `key` and `prompt_ids` and stand side by side.

    `seed` is 63 bits, from `rollout_seed`. `reference` is the task's gold answer as text, which only the replay
    engine looks at; `conversation` a `chat.Conversation`, which only engines with `wants_conversation` need.
    """

    key: str
    prompt_ids: Sequence[int]
    sample: int
    seed: int
    reference: str | None = None
    conversation: Any = None


@dataclass(frozen=True)
class Sampling:
    """How to draw: temperature 0 is greedy; top_p 1, top_k 0 and min_p 0 are off; stop at any of `stop_ids`.

    `stop` are texts: a completion ends with the token that completes one of them, which stays in it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 512
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RolloutConfig, stop_ids: Iterable[int] = ()) -> Sampling:
        """The sampling part of a rollout config."""
        truncation = (config.top_p, config.top_k, config.min_p)
        return cls(config.temperature, *truncation, config.max_new_tokens, tuple(stop_ids), stop_strings(config.stop))

    def with_stop(self, *ids: int) -> Sampling:
        """The same with further stop ids."""
        return replace(self, stop_ids=tuple(sorted({*self.stop_ids, *ids})))


@dataclass(frozen=True)
class Completion:
    """What came back for one request.

    `completion_ids` includes the end token when it was sampled; `logprobs` has one entry a token, or is None when
    the engine gave none. `text` is set only by engines that return text; otherwise the ids decide. `error` says why
    there is no completion; then everything else is empty.
    """

    key: str
    sample: int
    completion_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None
    ids_from_text: bool = False
    text: str | None = None
    error: str | None = None


@runtime_checkable
class Backend(Protocol):
    """An engine with a model. `chat` is None for an engine that needs no tokenizer."""

    name: str
    policy: str
    chat: Any

    def describe(self) -> Mapping[str, Any]:
        """Plain JSON values that identify what generates: model digest, dtype, logprob convention, versions."""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Longest prompt it takes, or None."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Exactly one completion a request, in any order, as they finish."""

    def load_weights(self, weights: Any) -> None:
        """Take new weights (a model folder or a state dict) without being rebuilt."""

    def close(self) -> None:
        """Free the engine."""


def stop_strings(setting: str) -> tuple[str, ...]:
    """The texts of the setting `stop`: itself, or those of a JSON list; ConfigError for a list of anything else."""
    if not setting.startswith("["):
        return (setting,) if setting else ()
    try:
        texts = json.loads(setting)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"stop = {setting!r}: not a JSON list of texts", hint="""as in '["</answer>", "\\n\\n"]'""")
    return tuple(texts)


def open_backend(name: str, model: str | None, config: RolloutConfig, **options: Any) -> Any:
    """The engine of this name; ConfigError for an unknown name, MissingDependency when its package is absent."""
    if name not in BACKENDS:
        raise ConfigError(f"unknown backend {name!r}", hint=nearest(name, BACKENDS) or f"known: {', '.join(BACKENDS)}")
    if model is not None and name in LOCAL:
        check_model(str(model))
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(model, config, **options)


def check_start(name: str, model: str | None) -> None:
    """For a dry run: DataError when a local engine could not start with this model, as far as its files tell."""
    if name in LOCAL and model is not None:
        check_model(str(model))
        load_tokenizer(model)


def rollout_seed(base: int, task_id: str, round_: int, sample: int) -> int:
    """63-bit seed of one completion; equal prompts under different task ids get different seeds."""
    text = f"{base}\x1f{task_id}\x1f{round_}\x1f{sample}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1
