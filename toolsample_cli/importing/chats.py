"""Messages in the forms people store them, as the one form of `messages_json`; and which turns become tasks.

Roles are system, user, assistant and tool; arguments of calls are objects; keys that say nothing are left out.
"""

from __future__ import annotations

import json
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Reject
from toolsample_cli.importing.tags import OPEN, bare_response, split_answer, split_thought, split_tools
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_literal

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "model": "assistant", "agent": "assistant", "bot": "assistant", "ai": "assistant",
    "function_call": "call", "tool_call": "call", "tool": "tool", "function": "tool", "observation": "tool",
    "ipython": "tool", "tool_response": "tool", "function_response": "tool", "api": "tool",
}  # fmt: skip
"""Names of roles in the wild. `call` is an assistant turn whose text is the call itself."""

MUTED = "muted"
"""Marks an assistant turn that is context only: OpenAI's `weight: 0`, axolotl's `train: false`."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def read_message(raw: Any) -> dict[str, Any]:
    """One message as {role, content, tool_calls?, reasoning_content?, name?, tool_call_id?}. Raises Reject."""
    if not isinstance(raw, dict):
        raise Reject("bad_message", f"a message is {type(raw).__name__}, expected an object")
    said = raw.get("role", raw.get("from"))
    role = ROLES.get(said.lower()) if isinstance(said, str) else None
    if role is None:
        raise Reject("unknown_role", f"a message has the role {said!r}")
    message: dict[str, Any] = {"role": role, **_content(raw.get("content", raw.get("value")))}
    if raw.get("weight") == 0 or raw.get("train") is False or raw.get("training") is False:
        message[MUTED] = True
    calls = raw.get("tool_calls") or []
    if raw.get("function_call"):  # OpenAI's older form
        calls = [raw["function_call"]]
    calls = [*message.pop("tool_calls", []), *_calls(calls)]
    if calls:
        message["tool_calls"] = calls
    thought = next((raw[key] for key in _THOUGHTS if isinstance(raw.get(key), str) and raw[key]), None)
    if thought is not None:
        message["reasoning_content"] = thought
    for key in ("name", "tool_call_id"):
        if isinstance(raw.get(key), str) and raw[key]:
            message[key] = raw[key]
    return message


def _content(raw: Any) -> dict[str, Any]:
    """Content as text; lists of parts are joined, calls and reasoning among them are taken out."""
    if raw is None:
        return {"content": ""}
    if isinstance(raw, str):
        return {"content": raw}
    if isinstance(raw, dict):  # a tool's result as an object
        return {"content": json.dumps(raw, ensure_ascii=False)}
    if not isinstance(raw, list):
        return {"content": json.dumps(raw)}
    texts, thoughts, calls = [], [], []
    for part in raw:
        kind, value = ("text", part) if isinstance(part, str) else _part(part)
        if kind == "text":
            texts.append(value)
        elif kind in ("reasoning", "thinking"):
            thoughts.append(value)
        elif kind in ("tool_call", "function_call"):
            calls += _calls(value if isinstance(value, list) else [value])
        else:
            raise Reject("not_text", f"a message holds a part of type {kind!r}")
    found: dict[str, Any] = {"content": "\n".join(texts)}
    if thoughts:
        found["reasoning_content"] = "\n".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def _part(part: Any) -> tuple[str, Any]:
    if not isinstance(part, dict):
        raise Reject("bad_message", f"a part of a message is {type(part).__name__}")
    kind = part.get("type", "text")
    value = next((part[key] for key in ("value", "text", kind) if part.get(key) is not None), "")
    return str(kind), value


def read_call(raw: Any) -> Call:
    """A call from {name, arguments | parameters}, with or without `function` around it. Raises Reject."""
    try:
        value = read_literal(raw) if isinstance(raw, str) else raw
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]
        if not isinstance(value, dict) or not isinstance(value.get("name", value.get("tool")), str):
            raise Reject("bad_call", f"a call has no name: {str(value)[:80]}")
        arguments: Any = next((value[k] for k in ("arguments", "parameters") if value.get(k) is not None), {})
        if isinstance(arguments, str):
            arguments = read_literal(arguments) if arguments.strip() else {}
    except Unreadable as error:
        raise Reject("bad_call", f"a call cannot be read: {error}") from None
    if not isinstance(arguments, dict):
        raise Reject("bad_call", f"arguments are {type(arguments).__name__}, expected an object")
    return Call(str(value.get("name", value.get("tool"))), {str(key): item for key, item in arguments.items()})


def read_gold_calls(raw: Any) -> list[Call]:
    """Calls from a list, one call, or the JSON text of either. Raises Reject."""
    if isinstance(raw, str):
        try:
            raw = read_literal(raw) if raw.strip() else []
        except Unreadable as error:
            raise Reject("bad_call", f"the calls cannot be read: {error}") from None
    return [read_call(item) for item in (raw if isinstance(raw, list) else [raw])]


def _calls(raw: Any) -> list[dict[str, Any]]:
    if isinstance(raw, str):
        try:
            raw = read_literal(raw) if raw.strip() else []
        except Unreadable as error:
            raise Reject("bad_call", f"the calls cannot be read: {error}") from None
    if not isinstance(raw, list):
        raise Reject("bad_call", f"tool_calls are {type(raw).__name__}, expected a list")
    found = []
    for item in raw:
        given = {"id": item["id"]} if isinstance(item, dict) and isinstance(item.get("id"), str) else {}
        found.append({**given, "type": "function", "function": read_call(item).record()})
    return found


def conversation(messages: list[Any], tools: Any, context: Context, extra: dict[str, Any]) -> Drafts:
    """One draft for each assistant turn that `context.turns` asks for, with everything before it as its prompt."""
    turns = merge_calls([_untagged(read_message(message)) for message in messages])
    if turns and turns[0]["role"] == "system" and "<tools>" in turns[0]["content"]:
        written, rest = split_tools(turns[0]["content"])
        tools = tools or written
        turns = [{"role": "system", "content": rest}, *turns[1:]] if rest else turns[1:]
    answers = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
    answers = [index for index in answers if not turns[index].get(MUTED)]
    if not answers or (context.turns == "last" and answers[-1] != len(turns) - 1):
        yield Reject("no_gold", "no assistant turn to learn from" if not answers else "it does not end with an answer")
        return
    if context.turns == "last":
        answers = answers[-1:]
    elif context.turns == "calls":
        answers = [index for index in answers if turns[index].get("tool_calls")]
        if not answers:
            yield Reject("no_calls", "no answer with a call, and only those were asked for")
    for index in answers:
        about = {**extra, "turn": answers.index(index) + 1} if len(answers) > 1 else extra
        yield _turn([_bare(turn) for turn in turns[:index]], turns[index], tools, about)


def _untagged(turn: dict[str, Any]) -> dict[str, Any]:
    """Calls, thoughts and tool answers that are written as tagged text get their own keys."""
    text = turn["content"]
    if turn["role"] == "tool":
        return {**turn, "content": bare_response(text)}
    if turn["role"] != "assistant" or turn.get("tool_calls"):
        return turn
    thought, said, calls = split_answer(text) if OPEN in text else (*split_thought(text), [])
    if thought is not None:
        turn = {**turn, "reasoning_content": thought}
    return {**turn, "content": said, **({"tool_calls": _calls(calls)} if calls else {})}


def _bare(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn as it goes into a prompt."""
    return {key: value for key, value in turn.items() if key != MUTED} if MUTED in turn else turn


def _turn(before: list[dict[str, Any]], answer: dict[str, Any], tools: Any, extra: dict[str, Any]) -> Draft | Reject:
    where = f"turn {extra['turn']}: " if "turn" in extra else ""
    if not any(message["role"] == "user" for message in before):
        return Reject("no_user", f"{where}nothing was asked before the answer")
    calls = [read_call(call) for call in answer.get("tool_calls", [])]
    text = answer["content"].strip()
    if calls and text:  # only the decision is judged
        extra = {**extra, "said_before_calls": text}
    if not calls and not text:
        return Reject("no_gold", f"{where}the answer is empty")
    return Draft(before, tools, calls, None if calls else text, thought=answer.get("reasoning_content"), extra=extra)


def merge_calls(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns whose text is a call become assistant turns with `tool_calls`; neighbours of one answer are joined."""
    merged: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == "call":
            calls = read_gold_calls(turn["content"])
            records = [{"type": "function", "function": call.record()} for call in calls]
            muted = {MUTED: True} if MUTED in turn else {}
            turn = {"role": "assistant", "content": "", "tool_calls": records, **muted}
            if merged and merged[-1]["role"] == "assistant" and (MUTED in merged[-1]) == bool(muted):
                merged[-1] = {**merged[-1], "tool_calls": [*merged[-1].get("tool_calls", []), *records]}
                continue
        merged.append(turn)
    return merged
