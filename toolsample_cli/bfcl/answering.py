"""Who answers: a local engine of `rollout` behind the model's own chat template, or an OpenAI-compatible server.

Both take prompts (messages and functions) and give replies, greedily. A local engine cuts its batches over all prompts,
so that a batch asked again after a kill has the same neighbours and gives the same bits. A request to a server that
keeps failing is an error, never an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from toolsample_cli.bfcl.prompts import Prompt, task_row, through_template, tools_for
from toolsample_cli.config import EvalConfig, RolloutConfig
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.json_types import Json, Row
from toolsample_cli.rollout.engines.server_client import Client, Failed, GaveUp, Query, Rejected
from toolsample_cli.rollout.engines.server_dialects import chat_fields, finish_reason, only_choice, read_arguments
from toolsample_cli.rollout.types import Request, Sampling, open_engine
from toolsample_cli.shards.journal import Journal

Known = Callable[[str], bool]
"""Whether the prompt of this key is answered already."""


class ReadyCall(NamedTuple):
    """A call that a server took out of the model's text."""

    name: str
    arguments: Row


@dataclass(frozen=True)
class Reply:
    """What came back: text, or an error.

    `calls` are there where a server gave them ready, with `underscores` for dots in names or not.
    """

    key: str
    prompt: str
    text: str = ""
    calls: list[ReadyCall] | None = None
    finish_reason: str | None = None
    error: str | None = None
    underscores: bool = False

    def record(self) -> Row:
        """The reply as the journal keeps it."""
        if self.error is not None:
            return {"error": self.error}
        ready = {} if self.calls is None else {"calls": self.calls, "underscores": self.underscores}
        return {"text": self.text, "finish_reason": self.finish_reason, **ready}


class Model(Protocol):
    """Plan first, then answer group by group."""

    def plan(self, prompts: Sequence[Prompt], known: Known) -> list[list[Prompt]]:
        """The prompts that must be asked, in groups that are answered together."""

    def answer(self, group: Sequence[Prompt]) -> Iterator[Reply]:
        """One reply per prompt, in any order."""

    def close(self) -> None:
        """Free what is held."""


def open_model(model: str, protocol: str, config: EvalConfig) -> Model:
    """The model to ask; ConfigError when settings contradict each other."""
    if config.backend == "openai":
        return ServedModel(model, protocol, config)
    return LocalModel(model, protocol, config)


def check_model_settings(config: EvalConfig) -> None:
    """ConfigError when settings of a model and of a server contradict each other."""
    if config.backend == "openai" and config.self_examples:
        raise ConfigError("self_examples is for local models: a server's prompt is its own")
    if config.backend == "openai" and not config.base_url:
        raise ConfigError("backend openai needs base_url", hint="--base-url http://localhost:8000/v1")
    if config.backend != "openai" and config.base_url:
        raise ConfigError("base_url is for --backend openai", hint="add --backend openai, or leave --base-url out")


def ask_all(model: Model, prompts: Sequence[Prompt], journal: Journal, tick: Callable[[int], None]) -> None:
    """Fill the journal with {id, prompt, text, finish_reason} or {id, prompt, error} for every prompt without one."""
    groups = model.plan(prompts, journal.answered)
    asked = {prompt.key for group in groups for prompt in group if not journal.answered(prompt.key)}
    tick(len(prompts) - len(asked))
    for group in groups:
        for reply in model.answer(group):
            if reply.key in asked:  # the others only keep their batch as it was
                tick(1)
                journal.add({"id": reply.key, "prompt": reply.prompt, **reply.record()})


@dataclass
class _Asked:
    """A planned prompt: as text, and as a request of token ids."""

    text: str
    request: Request


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
        if self.engine.chat is None:
            raise StageFailure(f"{model}: has no tokenizer")
        self.chat = self.engine.chat
        self.sampling = Sampling(
            temperature=0.0, max_new_tokens=config.max_new_tokens, stop_ids=tuple(self.chat.end_ids)
        )
        self._asked: dict[str, _Asked] = {}

    def plan(self, prompts: Sequence[Prompt], known: Known) -> list[list[Prompt]]:
        """The engine's own batches that hold a prompt without answer; prompts that do not fit are a group of theirs."""
        by_key = {prompt.key: prompt for prompt in prompts}
        requests: list[Request] = []
        misfits: list[Request] = []
        for prompt in prompts:
            text = self.chat.prompt_text(task_row(prompt, self.protocol))
            request = Request(prompt.key, self.chat.encode(text), 0, 0)
            self._asked[prompt.key] = _Asked(text, request)
            (misfits if self._too_long(request) else requests).append(request)
        batches = self.engine.batches(requests, self.sampling) if self.engine.batched else [requests]
        groups = [[by_key[request.key] for request in group] for group in [*batches, misfits]]
        return [group for group in groups if not all(known(prompt.key) for prompt in group)]

    def _too_long(self, request: Request) -> bool:
        most = self.engine.max_prompt_tokens
        return most is not None and len(request.prompt_ids) > most

    def answer(self, group: Sequence[Prompt]) -> Iterator[Reply]:
        """One reply per prompt of a planned group."""
        asked = {prompt.key: self._asked.pop(prompt.key) for prompt in group}
        fitting = []
        for key, item in asked.items():
            if self._too_long(item.request):
                why = (
                    f"prompt of {len(item.request.prompt_ids)} tokens, the model takes {self.engine.max_prompt_tokens}"
                )
                yield Reply(key, item.text, error=f"too_long: {why}")
            else:
                fitting.append(item.request)
        for done in self.engine.generate(fitting, self.sampling) if fitting else ():
            prompt = asked[done.key].text
            if done.error is not None:
                yield Reply(done.key, prompt, error=done.error)
            else:
                text = done.text if done.text is not None else self.chat.text(list(done.completion_ids))
                yield Reply(done.key, prompt, text, None, done.finish_reason)

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()


class ServedModel:
    """Chat completions with `tools` of one server or several; `model` is the name they know the model by.

    Dots in names become underscores on the way out (the API forbids them) and the checker is told so; a server of
    one's own that takes dots can be told to `keep` them.
    """

    def __init__(self, model: str, protocol: str, config: EvalConfig) -> None:
        self.model, self.tokens = model, config.max_new_tokens
        self.native = through_template(protocol)
        self.underscores = self.native and config.dots != "keep"
        self.client = Client(config)
        try:
            self.client.longest_prompt(model)
        except BaseException:
            self.client.close()
            raise

    def plan(self, prompts: Sequence[Prompt], known: Known) -> list[list[Prompt]]:
        """All prompts without answer at once: a server's answers do not depend on their neighbours."""
        missing = [prompt for prompt in prompts if not known(prompt.key)]
        return [missing] if missing else []

    def answer(self, group: Sequence[Prompt]) -> Iterator[Reply]:
        """One reply per prompt, as they finish."""
        shown: dict[str, str] = {}

        def queries() -> Iterator[tuple[str, Query[Reply]]]:
            for prompt in group:
                fields = self._fields(prompt)
                shown[prompt.key] = json.dumps(fields, ensure_ascii=False)
                yield prompt.key, self._query(prompt.key, fields, shown[prompt.key])

        for key, outcome in self.client.ask_all(queries()):
            if isinstance(outcome, GaveUp | Rejected):
                yield Reply(key, shown.pop(key), error=f"server: {outcome}")
            else:
                del shown[key]
                yield outcome

    def _fields(self, prompt: Prompt) -> Row:
        tools = tools_for(prompt.functions, prompt.key) if self.native else []
        return chat_fields(prompt.messages, tools, self._sent)

    def _sent(self, name: str) -> str:
        return name.replace(".", "_") if self.underscores else name

    def _query(self, key: str, fields: Row, shown: str) -> Query[Reply]:
        body = {"model": self.model, "temperature": 0.0, "max_tokens": self.tokens, **fields}
        return Query.of(key, "/chat/completions", body, lambda reply: self._read(key, shown, reply), self.tokens)

    def _read(self, key: str, prompt: str, reply: Json) -> Reply:
        choice = only_choice(reply)
        if choice.message is None:
            raise Failed("the choice has no message")
        text, reason = choice.message.content or "", finish_reason(choice.finish_reason)
        if not self.native:
            return Reply(key, prompt, text, None, reason)
        called = [call.function for call in choice.message.tool_calls or ()]
        ready: list[ReadyCall] = []
        for function in called:
            arguments = read_arguments(function)
            if arguments is None:  # no JSON object: as officially, no call at all
                text = text or json.dumps([{"name": f.name, "arguments": f.arguments} for f in called])
                ready = []
                break
            ready.append(ReadyCall(function.name, self.client.secret.hide_in(arguments)))
        return Reply(key, prompt, text, ready, reason, underscores=self.underscores)

    def close(self) -> None:
        """Drop the connections."""
        self.client.close()
