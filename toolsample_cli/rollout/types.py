"""What every engine takes and gives: token ids in, token ids with their log-probabilities out.

Logprobs are those of the distribution that was really sampled: after temperature, top-k, top-p and min-p,
renormalised. An engine that cannot say so names its own convention in `describe()["logprobs"]`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from toolsample_cli.config import RolloutConfig
from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError
from toolsample_cli.hashing import hash_text
from toolsample_cli.models.chat import Chat, Conversation
from toolsample_cli.models.digests import check_model
from toolsample_cli.models.tokenizer_files import check_tokenizer

if TYPE_CHECKING:
    import torch

ENGINES: dict[str, str] = {
    "transformers": "toolsample_cli.rollout.engines.transformers:TransformersEngine",
    "vllm": "toolsample_cli.rollout.engines.vllm:VllmEngine",
    "openai": "toolsample_cli.rollout.engines.openai_server:OpenAIEngine",
    "replay": "toolsample_cli.rollout.engines.replay:ReplayEngine",
}
"""Name -> "module:Class"; a class takes (model, config, *, chat)."""

LOCAL = ("transformers", "vllm")
"""Engines that hold the weights of a model folder."""

PROCESSED = "processed"
"""Logprob convention: under the distribution after temperature and truncation."""


@dataclass(frozen=True)
class Request:
    """One completion to make. Requests of one task share `key` and `prompt_ids` and are neighbours.

    `seed` is 63 bits, from `rollout_seed`. `reference` is the task's gold answer as text, which only the replay
    engine looks at; `conversation` is what only engines with `wants_conversation` need.
    """

    key: str
    prompt_ids: Sequence[int]
    sample: int
    seed: int
    reference: str | None = None
    conversation: Conversation | None = None


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

    `completion_ids` includes the end token when it was sampled; `logprobs` has one entry per token, or is None when
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
class Engine(Protocol):
    """A model that generates. `name` is its key in ENGINES, `policy` what the rollouts are said to be of.

    `chat` is None for an engine that needs no tokenizer. What is defined here is what most engines do.
    """

    name: str
    policy: str
    chat: Chat | None
    spools: bool = True
    """Whether completions are worth keeping before their shard is complete."""
    batched: bool = False
    """Whether completions come in `batches`, of which one generated anew as a whole gives the same bits."""
    wants_conversation: bool = False
    """Whether requests must carry their conversation."""
    max_prompt_tokens: int | None = None
    """Longest prompt it takes, or None."""

    def describe(self) -> Mapping[str, object]:
        """Plain JSON values that identify what generates: model digest, dtype, logprob convention, versions."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Exactly one completion per request, in any order, as they finish."""
        ...

    def batches(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Request]]:
        """The requests as they are generated together; each alone unless the engine is `batched`."""
        del sampling
        return [[request] for request in requests]

    def refuse_unknown(self, tasks: Collection[str], where: Path) -> None:
        """DataError when what the engine holds does not belong to these tasks of `where`."""
        del tasks, where

    def load_weights(self, weights: str | Path | Mapping[str, torch.Tensor]) -> None:
        """Take new weights (a model folder or a state dict) without being rebuilt."""
        raise ConfigError(
            f"backend {self.name} cannot load weights", hint="restart the server, or use transformers or vllm"
        )

    def close(self) -> None:
        """Free what is held."""


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


def open_engine(name: str, model: str | None, config: RolloutConfig) -> Engine:
    """The engine of this name; ConfigError for an unknown name, MissingDependency when its package is absent."""
    if name not in ENGINES:
        raise ConfigError(f"unknown backend {name!r}", hint=nearest(name, ENGINES) or f"known: {', '.join(ENGINES)}")
    if model is not None and name in LOCAL:
        check_model(str(model))
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(model, config)


def check_start(name: str, model: str | None) -> None:
    """For a dry run: DataError when a local engine could not start with this model, as far as its files tell."""
    if name in LOCAL and model is not None:
        check_model(str(model))
        check_tokenizer(str(model))


def rollout_seed(base: int, task_id: str, round_: int, sample: int) -> int:
    """63-bit seed of one completion; equal prompts under different task ids get different seeds."""
    text = f"{base}\x1f{task_id}\x1f{round_}\x1f{sample}"
    return hash_text(text) >> 1
