"""What servers understand: how a completion is asked for and what a reply must hold to be believed.

`tokens`: completions with a token-id prompt and ids in the reply (vLLM, recent SGLang). `generate`: SGLang's own
endpoint. `text`: completions on the rendered prompt. `chat`: messages and tools, for servers with nothing else.
Where a reply has no ids they are made from its text and the row says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolsample_cli.models.chat import Chat
from toolsample_cli.rollout.engines.server_pool import Failed
from toolsample_cli.rollout.types import Completion, Request, Sampling
from toolsample_cli.toolcalls.call import Call

_TOKEN_ID = re.compile(r"token_id:(\d+)")


@dataclass(frozen=True)
class Dialect:
    """`body(ask)` is what is sent to `path`, `read(ask, reply)` what came back; `extended` adds non-standard fields."""

    name: str
    path: str
    body: Callable[[Ask], dict[str, Any]]
    read: Callable[[Ask, Any], Completion]


@dataclass(frozen=True)
class Ask:
    """One request in the terms of one server."""

    model: str
    request: Request
    sampling: Sampling
    chat: Chat | None
    extended: bool = True
    logprobs: bool = True


def _settings(ask: Ask) -> dict[str, Any]:
    """Sampling fields that the completions and chat endpoints share."""
    s = ask.sampling
    body: dict[str, Any] = {
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
        # off is said, not left out: servers fill in their own or the model's generation_config
        body |= {"top_k": s.top_k or -1, "min_p": s.min_p, "repetition_penalty": 1.0}
    return body


def _tokens_body(ask: Ask) -> dict[str, Any]:
    return {**_settings(ask), "prompt": list(ask.request.prompt_ids), "logprobs": 0 if ask.logprobs else None}


def _text_body(ask: Ask) -> dict[str, Any]:
    prompt = ask.chat.tokenizer.decode(ask.request.prompt_ids, skip_special_tokens=False)
    bos = ask.chat.tokenizer.bos_token
    if bos and prompt.startswith(bos):  # completion servers put it there themselves
        prompt = prompt[len(bos) :]
    body = {**_settings(ask), "prompt": prompt}
    if ask.extended:  # llama.cpp has 40, 0.05 and 1.1 where nothing is said, and refuses the -1 of vLLM and SGLang
        body |= {"return_tokens_as_token_ids": True, "top_k": ask.sampling.top_k, "repeat_penalty": 1.0}
    return {**body, "logprobs": 1} if ask.logprobs else body


def _chat_body(ask: Ask) -> dict[str, Any]:
    talk = ask.request.conversation
    messages = [_sent(turn) for turn in talk.messages]
    body = {**_settings(ask), "messages": messages}
    if talk.tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in talk.tools]
    return {**body, "logprobs": True} if ask.logprobs else body


def _sent(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as the chat endpoint wants it: arguments as JSON text, every call with an id."""
    calls = [
        {
            "id": call.get("id") or f"call_{i}",
            "type": "function",
            "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
        }
        for i, call in enumerate(turn.get("tool_calls", []))
    ]
    return {**turn, "tool_calls": calls} if calls else dict(turn)


def _generate_body(ask: Ask) -> dict[str, Any]:
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


def _generate_read(ask: Ask, reply: Any) -> Completion:
    meta = _get(reply, "meta_info", dict)
    triples = _get(meta, "output_token_logprobs", list)
    try:
        logps, ids = [float(t[0]) for t in triples], [int(t[1]) for t in triples]
    except (TypeError, ValueError, IndexError, KeyError):
        raise Failed("output_token_logprobs are not [logprob, id, text]") from None
    reason = meta.get("finish_reason")
    reason = reason.get("type") if isinstance(reason, dict) else reason
    return _believed(ask, ids, logps, reason)


def _completions_read(ask: Ask, reply: Any) -> Completion:
    choice = _choice(reply)
    if not isinstance(choice.get("text"), str):
        raise Failed("the choice has no text")
    log = choice.get("logprobs") or {}
    logps, names = log.get("token_logprobs"), log.get("tokens")
    sent = choice.get("prompt_token_ids")
    if sent is not None and list(sent) != list(ask.request.prompt_ids):
        raise Failed("the server changed the prompt: its ids are not the ones that were sent")
    ids = choice.get("token_ids")
    if ids is None and names and all(isinstance(n, str) and _TOKEN_ID.fullmatch(n) for n in names):
        ids = [int(_TOKEN_ID.fullmatch(n)[1]) for n in names]
    if ids is None:
        return _from_text(ask, choice["text"], choice.get("finish_reason"), names, logps)
    return _believed(ask, ids, logps if ask.logprobs else None, choice.get("finish_reason"))


def _chat_read(ask: Ask, reply: Any) -> Completion:
    from toolsample_cli.toolcalls.protocols import PROTOCOLS

    choice = _choice(reply)
    message = _get(choice, "message", dict)
    text = message.get("content") or ""
    if not isinstance(text, str):
        raise Failed("the message's content is not a text")
    if message.get("tool_calls"):
        calls = [_call(call) for call in message["tool_calls"]]
        text = PROTOCOLS[ask.request.conversation.protocol].render(calls, text or None)
    elif choice.get("token_ids") is not None:
        content = (choice.get("logprobs") or {}).get("content")
        logps = [entry.get("logprob") for entry in content] if content else None
        return _believed(ask, choice["token_ids"], logps, choice.get("finish_reason"))
    return _from_text(ask, text, choice.get("finish_reason"), None, None)


def _call(call: Any) -> Call:
    try:
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}")
        if isinstance(function["name"], str) and isinstance(arguments, dict):
            return Call(function["name"], arguments)
    except (TypeError, KeyError, ValueError, RecursionError):
        pass  # told below, as for every other shape
    raise Failed("a tool call of the reply is not {function: {name, arguments: JSON object}}")


def _choice(reply: Any) -> dict[str, Any]:
    choices = _get(reply, "choices", list)
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise Failed(f"asked for 1 choice, got {len(choices)}")
    return choices[0]


def _get(value: Any, key: str, kind: type) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise Failed(f"the reply has no {key}")
    return found


def _believed(ask: Ask, ids: Any, logps: Any, reason: Any) -> Completion:
    """A completion with the engine's own ids, once their number and kind are right."""
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise Failed("token ids are not whole numbers")
    if not ids and reason != "stop":
        raise Failed("an empty completion that did not stop")
    if len(ids) > ask.sampling.max_new_tokens:
        raise Failed(f"asked for at most {ask.sampling.max_new_tokens} tokens, got {len(ids)}")
    if logps is not None:
        if not isinstance(logps, list) or len(logps) != len(ids):
            got = len(logps) if isinstance(logps, list) else type(logps).__name__
            raise Failed(f"{got} logprobs for {len(ids)} tokens")
        if not all(p is None or (isinstance(p, int | float) and not p > 1e-4) for p in logps):
            raise Failed("a logprob is not a number <= 0")
        logps = [float("nan") if p is None else min(float(p), 0.0) for p in logps]
    return Completion(ask.request.key, ask.request.sample, ids, logps, _reason(reason))


def _from_text(ask: Ask, text: str, reason: Any, names: Any, logps: Any) -> Completion:
    """A completion whose ids are made from its text; logprobs only where the server's tokens are ours one by one."""
    reason, key = _reason(reason), (ask.request.key, ask.request.sample)
    if ask.chat is None:
        return Completion(*key, (), None, reason, ids_from_text=True, text=text)
    # where stop strings were asked for, such a reply does not say whether the end token or one of them ended it
    whole = reason != "length" and not ask.sampling.stop
    ids = ask.chat.completion_ids(text) if whole else ask.chat.encode(text)
    if isinstance(names, list) and isinstance(logps, list) and len(names) == len(logps) == len(ids):
        end = ask.chat.tokenizer.decode(ids[-1:]) if ids else ""
        ours = [ask.chat.tokenizer.decode([i]) for i in ids]
        same = all(a == b for a, b in zip(ours, names, strict=True)) or (
            ours[:-1] == names[:-1] and names[-1] in ("", end)
        )
        if same and all(isinstance(p, int | float) for p in logps):
            return Completion(*key, ids, [min(float(p), 0.0) for p in logps], reason, ids_from_text=True, text=text)
    return Completion(*key, ids, None, reason, ids_from_text=True, text=text)


def _reason(reason: Any) -> str:
    if not isinstance(reason, str) or not reason:
        raise Failed("the choice has no finish_reason")
    return reason


DIALECTS: dict[str, Dialect] = {
    "tokens": Dialect("tokens", "/completions", _tokens_body, _completions_read),
    "generate": Dialect("generate", "//generate", _generate_body, _generate_read),
    "text": Dialect("text", "/completions", _text_body, _completions_read),
    "chat": Dialect("chat", "/chat/completions", _chat_body, _chat_read),
}
"""In the order in which they are tried."""
