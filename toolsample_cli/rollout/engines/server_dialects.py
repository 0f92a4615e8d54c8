"""What servers understand: how a completion is asked for and what a reply must hold to be believed.

`tokens`: completions with a token-id prompt and ids in the reply (vLLM, recent SGLang). `generate`: SGLang's own
endpoint. `text`: completions on the rendered prompt. `chat`: messages and tools, for servers with nothing else.
Where a reply has no ids they are made from its text and the row says so. A reply's types are checked as a whole
before any of it is looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from toolsample_cli.errors import ConfigError
from toolsample_cli.json_types import Json, Row
from toolsample_cli.models.chat import Chat
from toolsample_cli.rollout.engines.server_client import Failed
from toolsample_cli.rollout.types import Completion, Request, Sampling
from toolsample_cli.toolcalls.call import Call, as_written, loads

R = TypeVar("R")

_TOKEN_ID = re.compile(r"token_id:(\d{1,9})")
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Logprobs = list[float | None]


class Function(msgspec.Struct):
    """What a server says is called: `arguments` should be the text of a JSON object."""

    name: str
    arguments: str | Row | None = None


class ToolCall(msgspec.Struct):
    """One entry of `tool_calls`."""

    function: Function


class Message(msgspec.Struct):
    """An assistant's turn."""

    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class TokenLogprob(msgspec.Struct):
    """One token of a chat reply."""

    logprob: float | None = None


class Logprobs(msgspec.Struct):
    """Logprobs of the completions endpoint (`tokens`, `token_logprobs`) or of the chat endpoint (`content`)."""

    tokens: list[str] | None = None
    token_logprobs: _Logprobs | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[TokenLogprob] | None = None


class Choice(msgspec.Struct):
    """One choice of either endpoint; lengths are those of what was asked for, not more."""

    finish_reason: str | None = None
    text: str | None = None
    message: Message | None = None
    token_ids: list[_TokenId] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class Usage(msgspec.Struct):
    """What the server counted."""

    prompt_tokens: int | None = None


class ServerReply(msgspec.Struct):
    """A reply of the completions or the chat endpoint."""

    choices: list[Choice]
    usage: Usage | None = None


class _Reason(msgspec.Struct):
    type: str


class _Meta(msgspec.Struct):
    output_token_logprobs: list[tuple[float, _TokenId, str | None]]
    finish_reason: _Reason | str
    output_top_logprobs: list[list[tuple[float, int, str | None]] | None] | None = None


class Generated(msgspec.Struct):
    """A reply of SGLang's own endpoint."""

    meta_info: _Meta


def typed(reply: Json, kind: type[R]) -> R:
    """A decoded reply as its type; Failed names the field that is missing or of another type."""
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise Failed(f"a malformed reply: {error}") from None


@dataclass(frozen=True)
class Dialect:
    """`body(ask)` is what is sent to `path`, `read(ask, reply)` what came back; `extended` adds non-standard fields.

    `likeliest(reply)` is the logprob of the likeliest first token; Failed where the reply does not say.
    """

    name: str
    path: str
    body: Callable[[Ask], Row]
    read: Callable[[Ask, Json], Completion]
    likeliest: Callable[[Json], float]


@dataclass(frozen=True)
class Ask:
    """One request in the terms of one server; ids of `vocabulary` and beyond are not tokens."""

    model: str
    request: Request
    sampling: Sampling
    chat: Chat | None
    dialect: Dialect
    extended: bool = True
    logprobs: bool = True
    vocabulary: int = 1 << 31

    @property
    def known_chat(self) -> Chat:
        """The tokenizer, for dialects that cannot do without."""
        if self.chat is None:
            raise ConfigError("this server needs the model's tokenizer", hint="--tokenizer names its folder or hub id")
        return self.chat


def _settings(ask: Ask) -> Row:
    """Sampling fields that the completions and chat endpoints share."""
    s = ask.sampling
    body: Row = {
        "model": ask.model,
        "max_tokens": s.max_new_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "seed": ask.request.seed % 2**31,  # servers differ in what they take; 31 bits all do
    }
    if s.stop:
        body["stop"] = list(s.stop)
    if ask.extended:
        body |= {"include_stop_str_in_output": True} if s.stop else {}
        body |= {"return_token_ids": True, "skip_special_tokens": False, "stop_token_ids": list(s.stop_ids)}
        # off is sent, not left out: servers fill in their own or the model's generation_config
        body |= {"top_k": s.top_k or -1, "min_p": s.min_p, "repetition_penalty": 1.0}
    return body


def _tokens_body(ask: Ask) -> Row:
    return {**_settings(ask), "prompt": list(ask.request.prompt_ids), "logprobs": 0 if ask.logprobs else None}


def _text_body(ask: Ask) -> Row:
    tokenizer = ask.known_chat.tokenizer
    prompt = str(tokenizer.decode(list(ask.request.prompt_ids), skip_special_tokens=False))
    if tokenizer.bos_token and prompt.startswith(tokenizer.bos_token):  # completion servers put it there themselves
        prompt = prompt[len(tokenizer.bos_token) :]
    body = {**_settings(ask), "prompt": prompt}
    if ask.extended:  # llama.cpp has 40, 0.05 and 1.1 where nothing is said, and refuses the -1 of vLLM and SGLang
        body |= {"return_tokens_as_token_ids": True, "top_k": ask.sampling.top_k, "repeat_penalty": 1.0}
    return {**body, "logprobs": 1} if ask.logprobs else body


def _chat_body(ask: Ask) -> Row:
    asked = ask.request.conversation
    if asked is None:
        raise Failed("this server only takes messages, and none were given")
    body = {**_settings(ask), **chat_fields(asked.messages, asked.tools)}
    return {**body, "logprobs": True} if ask.logprobs else body


def chat_fields(messages: Sequence[Row], tools: Sequence[Row], name: Callable[[str], str] = str) -> Row:
    """`messages` and `tools` as the chat endpoint wants them; what is given stays as it is.

    `name` makes a function's name one that the server takes.
    """
    fields: Row = {"messages": [_sent(turn, name) for turn in messages]}
    if tools:
        fields["tools"] = [{"type": "function", "function": {**tool, "name": name(tool["name"])}} for tool in tools]
    return fields


def _sent(turn: Row, name: Callable[[str], str]) -> Row:
    """A turn as the chat endpoint wants it: arguments as JSON text, every call with an id."""
    calls = [
        {
            "id": call.get("id") or f"call_{i}",
            "type": "function",
            "function": {
                **call["function"],
                "name": name(call["function"]["name"]),
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for i, call in enumerate(turn.get("tool_calls", []))
    ]
    return {**turn, "tool_calls": calls} if calls else dict(turn)


def _generate_body(ask: Ask) -> Row:
    s = ask.sampling
    params = {
        "max_new_tokens": s.max_new_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k or -1,
        "min_p": s.min_p,
        "stop_token_ids": list(s.stop_ids),
        "skip_special_tokens": False,
        "sampling_seed": ask.request.seed % 2**31,
        **({"stop": list(s.stop), "no_stop_trim": True} if s.stop else {}),
    }
    return {"input_ids": list(ask.request.prompt_ids), "sampling_params": params, "return_logprob": True}


def _generate_read(ask: Ask, reply: Json) -> Completion:
    meta = typed(reply, Generated).meta_info
    ids, logps = [t[1] for t in meta.output_token_logprobs], [t[0] for t in meta.output_token_logprobs]
    reason = meta.finish_reason if isinstance(meta.finish_reason, str) else meta.finish_reason.type
    return _believed(ask, ids, list(logps), reason)


def _generate_likeliest(reply: Json) -> float:
    top = typed(reply, Generated).meta_info.output_top_logprobs
    if not top or not top[0]:
        raise Failed("no alternatives")
    return top[0][0][0]


def _completions_read(ask: Ask, reply: Json) -> Completion:
    choice = only_choice(reply)
    if choice.text is None:
        raise Failed("the choice has no text")
    log = choice.logprobs or Logprobs()
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(ask.request.prompt_ids):
        raise Failed("the server changed the prompt: its ids are not the ones that were sent")
    ids = choice.token_ids
    if ids is None and log.tokens:
        named = [_TOKEN_ID.fullmatch(name) for name in log.tokens]
        ids = [int(match[1]) for match in named if match] if all(named) else None
    if ids is None:
        return _from_text(ask, choice.text, choice.finish_reason, log)
    return _believed(ask, ids, log.token_logprobs if ask.logprobs else None, choice.finish_reason)


def _completions_likeliest(reply: Json) -> float:
    log = only_choice(reply).logprobs
    if log is None or not log.top_logprobs or not log.top_logprobs[0]:
        raise Failed("no alternatives")
    return max(log.top_logprobs[0].values())


def _chat_read(ask: Ask, reply: Json) -> Completion:
    from toolsample_cli.toolcalls.protocols import PROTOCOLS

    choice = only_choice(reply)
    if choice.message is None or ask.request.conversation is None:
        raise Failed("the choice has no message")
    text = choice.message.content or ""
    if choice.message.tool_calls:
        calls = [_call(call.function) for call in choice.message.tool_calls]
        text = PROTOCOLS[ask.request.conversation.protocol].render(calls, text or None)
    elif choice.token_ids is not None:
        content = choice.logprobs.content if choice.logprobs else None
        logps = [entry.logprob for entry in content] if content else None
        return _believed(ask, choice.token_ids, logps, choice.finish_reason)
    return _from_text(ask, text, choice.finish_reason, Logprobs())


def _call(function: Function) -> Call:
    arguments = read_arguments(function)
    if arguments is None:
        raise Failed("a tool call of the reply is not {function: {name, arguments: JSON object}}")
    return Call(function.name, arguments)


def read_arguments(function: Function) -> Row | None:
    """The arguments as an object; None when they are the text of anything else.

    NaN and infinities, which Python reads and JSON has not, become their names.
    """
    try:
        given = function.arguments or "{}"
        value = loads(given if isinstance(given, str) else json.dumps(given))
        return json.loads(as_written(value)) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def only_choice(reply: Json) -> Choice:
    """The choice of a reply; Failed unless there is exactly one."""
    choices = typed(reply, ServerReply).choices
    if len(choices) != 1:
        raise Failed(f"asked for 1 choice, got {len(choices)}")
    return choices[0]


def _believed(ask: Ask, ids: list[int], logps: Sequence[float | None] | None, reason: str | None) -> Completion:
    """A completion with the engine's own ids, once their number and range are right."""
    if not ids and reason != "stop":
        raise Failed("an empty completion that did not stop")
    if len(ids) > ask.sampling.max_new_tokens:
        raise Failed(f"asked for at most {ask.sampling.max_new_tokens} tokens, got {len(ids)}")
    if max(ids, default=0) >= ask.vocabulary:
        raise Failed(f"token id {max(ids)} is outside the vocabulary of {ask.vocabulary:,}")
    if logps is not None and len(logps) != len(ids):
        raise Failed(f"{len(logps)} logprobs for {len(ids)} tokens")
    kept = None if logps is None else [_logprob(p) for p in logps]
    return Completion(ask.request.key, ask.request.sample, ids, kept, finish_reason(reason))


def _logprob(value: float | None) -> float:
    """A logprob as it is stored: at most 0, NaN where the server has none."""
    if value is None or math.isnan(value):
        return math.nan
    if not -math.inf < value <= 1e-4:
        raise Failed("a logprob is not a number <= 0")
    return min(value, 0.0)


def _from_text(ask: Ask, text: str, reason: str | None, log: Logprobs) -> Completion:
    """A completion whose ids are made from its text; logprobs only where the server's tokens are ours one by one."""
    reason = finish_reason(reason)
    if ask.chat is None:
        return Completion(ask.request.key, ask.request.sample, (), None, reason, ids_from_text=True, text=text)
    # where stop strings were asked for, such a reply does not say whether the end token or one of them ended it
    whole = reason != "length" and not ask.sampling.stop
    ids = ask.chat.completion_ids(text) if whole else ask.chat.encode(text)
    logps = _matching(ask.chat, ids, log)
    return Completion(ask.request.key, ask.request.sample, ids, logps, reason, ids_from_text=True, text=text)


def _matching(chat: Chat, ids: list[int], log: Logprobs) -> list[float] | None:
    """The logprobs when the server's tokens are these ids one by one (its end token may be nameless), else None."""
    names, logps = log.tokens, log.token_logprobs
    if names is None or logps is None or None in logps or not len(names) == len(logps) == len(ids):
        return None
    ours = [chat.tokenizer.decode([i]) for i in ids]
    if ours != names and not (ours[:-1] == names[:-1] and names[-1] == ""):
        return None
    return [_logprob(p) for p in logps]


def finish_reason(reason: str | None) -> str:
    """The reason as it is stored; Failed for none and for what is no word."""
    if not reason:
        raise Failed("the choice has no finish_reason")
    if not re.fullmatch(r"[\w .:-]{1,64}", reason):
        raise Failed("the finish_reason is no word")
    return reason


DIALECTS: dict[str, Dialect] = {
    "tokens": Dialect("tokens", "/completions", _tokens_body, _completions_read, _completions_likeliest),
    "generate": Dialect("generate", "//generate", _generate_body, _generate_read, _generate_likeliest),
    "text": Dialect("text", "/completions", _text_body, _completions_read, _completions_likeliest),
    "chat": Dialect("chat", "/chat/completions", _chat_body, _chat_read, _completions_likeliest),
}
"""In the order in which they are tried."""
