"""Any OpenAI-compatible server, or several: vLLM, SGLang, llama.cpp, hosted models.

What the server understands is found out once, by small probes, and recorded in the shard's metadata: the dialect,
whether ids are the engine's own, and whether its logprobs are those of the distribution that was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import StageFailure
from toolsample_cli.json_types import Json, Row
from toolsample_cli.models.chat import Chat, Conversation
from toolsample_cli.models.digests import declared_vocabulary
from toolsample_cli.rollout.engines.server_client import Client, Failed, GaveUp, Query, Rejected
from toolsample_cli.rollout.engines.server_dialects import DIALECTS, Ask, Dialect, ServerReply, typed
from toolsample_cli.rollout.types import PROCESSED, Completion, Engine, Request, Sampling

RAW = "raw"
"""Logprob convention: before temperature and truncation."""
TEMPERED = "temperature only"
"""Logprob convention: after temperature, before top-p, top-k and min-p, as SGLang gives them."""


@dataclass(frozen=True)
class Spoken:
    """How a server is spoken to: the dialect, with its non-standard fields or not, with logprobs or not.

    `prompt_tokens`: how many tokens it took the probe's prompt for, where it says so.
    """

    dialect: Dialect
    extended: bool
    logprobs: bool
    prompt_tokens: int | None


class OpenAIEngine(Engine):
    """`model` is the served name; `config.tokenizer` (default: the name) the folder or hub id of its tokenizer."""

    name = "openai"

    def __init__(self, model: str, config: RolloutConfig, *, chat: Chat | None = None) -> None:
        self.policy, self.config = model, config
        self.client = Client(config)
        try:
            self.max_prompt_tokens = self.client.longest_prompt(model)
            self.chat = chat or self._chat(model, config)
            tokenizer = None if self.chat is None else self.chat.tokenizer
            own = 1 << 31 if tokenizer is None else len(tokenizer)
            self.vocabulary = max(own, declared_vocabulary(config.tokenizer or model))
            self.spoken = self._find_dialect()
            self.wants_conversation = self.spoken.dialect.name == "chat"
            self.convention = self._find_convention()
        except BaseException:
            self.client.close()
            raise

    def describe(self) -> Row:
        """How the server is spoken to and what its numbers mean; the weights behind it cannot be known."""
        return {
            "model_digest": None,
            "dtype": None,
            "device": "server",
            "dialect": self.spoken.dialect.name + ("" if self.spoken.extended else " (standard fields only)"),
            "logprobs": self.convention,
            **self._reading(),
            **(self.chat.fingerprint if self.chat else {}),
        }

    def _reading(self) -> Row:
        """How many tokens a server that is sent text took a prompt for, beside ours: they may not be the same ones."""
        if self.spoken.dialect.name != "text":
            return {}
        return {"probe_prompt_tokens": [self.spoken.prompt_tokens, len(self._question().prompt_ids)]}

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request as they finish; what no attempt could get is a completion with its error.

        `config.concurrency` requests are in flight at once. Closing the iterator drops the rest.
        """
        mute = [r for r in requests if self.wants_conversation and r.conversation is None]
        for request in mute:
            why = "server: it only takes messages, and none were given"
            yield Completion(request.key, request.sample, error=why)
        asked = {f"{r.key}/{r.sample}": r for r in requests if not (self.wants_conversation and r.conversation is None)}
        queries = ((name, self._query(self._ask(request, sampling, self.spoken))) for name, request in asked.items())
        for name, outcome in self.client.ask_all(queries):
            request = asked[name]
            if isinstance(outcome, GaveUp | Rejected):
                yield Completion(request.key, request.sample, error=f"server: {outcome}")
            else:
                yield outcome

    def _ask(self, request: Request, sampling: Sampling, spoken: Spoken) -> Ask:
        if self.max_prompt_tokens is not None:  # servers refuse what might not fit
            room = self.max_prompt_tokens + 1 - len(request.prompt_ids)
            sampling = replace(sampling, max_new_tokens=max(1, min(sampling.max_new_tokens, room)))
        how = (spoken.dialect, spoken.extended, spoken.logprobs)
        return Ask(self.policy, request, sampling, self.chat, *how, vocabulary=self.vocabulary)

    def _query(self, ask: Ask) -> Query[Completion]:
        tokens = ask.sampling.max_new_tokens
        return Query.of(ask.request.key, ask.dialect.path, ask.dialect.body(ask), partial(self._read, ask), tokens)

    def _read(self, ask: Ask, reply: Json) -> Completion:
        done = ask.dialect.read(ask, reply)
        if not self.client.secret.worth_hiding:
            return done
        text = done.text if done.text is not None else self.chat.text(done.completion_ids) if self.chat else ""
        if self.client.secret.hide(text) != text:
            raise Failed("the reply spells the key of the request")
        return done

    def close(self) -> None:
        """Drop the connections."""
        self.client.close()

    def _chat(self, model: str, config: RolloutConfig) -> Chat | None:
        if config.endpoint == "chat" and not config.tokenizer and not Path(model).is_dir():
            return None  # a hosted model: its tokenizer is its owner's
        return Chat.load(config.tokenizer or model, self_examples=config.self_examples)

    def _find_dialect(self) -> Spoken:
        """The first dialect the server answers in."""
        endpoint, refused = self.config.endpoint, []
        names = [n for n in DIALECTS if endpoint == "auto" or (n == "chat") == (endpoint == "chat")]
        if self.chat is None:
            names = ["chat"]
        for name in names:
            for extended, logprobs in ((True, True), (False, True), (False, False)):
                if name in ("tokens", "generate") and not extended:
                    continue  # without its extension that dialect is the next one
                outcome = self._probe(Spoken(DIALECTS[name], extended, logprobs, None))
                if isinstance(outcome, Spoken):
                    return outcome
                refused.append(f"{name}: {outcome}")
        raise StageFailure(f"the server answers in no known way: {refused[-1]}", hint="; ".join(refused[:3]))

    def _probe(self, spoken: Spoken) -> Spoken | str:
        """What is known of a dialect once a two-token completion came back whole, else why it did not."""
        s, name = self.config, spoken.dialect.name
        if not spoken.extended and (s.top_k or s.min_p):
            return "the server does not take top_k and min_p"
        sampling = replace(Sampling.of(s, self.chat.end_ids if self.chat else ()), max_new_tokens=2)
        ask = self._ask(self._question(), sampling, spoken)

        def read(reply: Json) -> tuple[Completion, Json]:
            return self._read(ask, reply), reply

        body = ask.dialect.body(ask)
        try:
            done, reply = self.client.ask(Query.of("probe", ask.dialect.path, body, read, 2))
        except GaveUp as error:
            if error.late:  # it was listening a moment ago; another dialect would only wait as long again
                raise StageFailure(f"the server does not answer in time: {error}", hint="raise --timeout") from None
            return str(error)
        except Rejected as error:
            return str(error)
        if name == "generate":  # SGLang's own endpoint, which is only believed with ids and logprobs
            return spoken
        if name == "tokens" and done.ids_from_text:
            return "the reply has no token ids"
        got = typed(reply, ServerReply)
        log = got.choices[0].logprobs
        given = log is not None and bool(log.token_logprobs or log.content)
        counted = got.usage.prompt_tokens if got.usage else None
        return replace(spoken, logprobs=spoken.logprobs and given, prompt_tokens=counted)

    def _question(self) -> Request:
        messages: list[Row] = [{"role": "user", "content": "Say something."}]
        ids = self.chat.encode(self.chat.render(messages)) if self.chat else []
        return Request("probe", ids, 0, 1, conversation=Conversation(messages, [], "json"))

    def _find_convention(self) -> str | None:
        """Which distribution the server's logprobs are of, found by changing one setting at a time where it matters."""
        s = self.config
        truncates = s.top_p < 1 or s.top_k > 0 or s.min_p > 0
        if not self.spoken.logprobs or self.spoken.dialect.name == "chat":
            return None
        if s.temperature == 0 or (s.temperature == 1 and not truncates):
            return PROCESSED  # every convention gives the same numbers
        try:
            cold, plain, hot, narrow = (
                self._likeliest(*at) for at in ((0.25, 1.0), (1.0, 1.0), (4.0, 1.0), (1.0, 1e-4))
            )
        except (GaveUp, Rejected):
            return "unknown"
        if truncates and plain > -0.01:
            return "unknown"  # a model that is sure of its first token cannot tell truncation
        if len({round(p, 3) for p in (cold, plain, hot)}) == 1:
            return RAW
        return PROCESSED if narrow > -1e-3 or not truncates else TEMPERED

    def _likeliest(self, temperature: float, top_p: float) -> float:
        """Logprob of the likeliest first token under these settings, from a reply's alternatives."""
        dialect = self.spoken.dialect
        sampling = Sampling(temperature, top_p, max_new_tokens=1)
        body = dialect.body(self._ask(self._question(), sampling, replace(self.spoken, logprobs=True)))
        body |= {"top_logprobs_num": 1} if dialect.name == "generate" else {"logprobs": 1}
        return self.client.ask(Query.of("probe", dialect.path, body, dialect.likeliest, 1), attempts=2)
