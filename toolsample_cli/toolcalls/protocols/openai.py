"""OpenAI's message objects: {"tool_calls": [{"type": "function", "function": {"name", "arguments": JSON text}}]}.

For engines that hand out parsed messages instead of text; arguments as an object are read as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolsample_cli.json_types import Json, Row
from toolsample_cli.toolcalls.call import Call, TooDeep, TooLong, loads
from toolsample_cli.toolcalls.protocols.base import (
    Parsed,
    Protocol,
    Strict,
    bounded,
    no_call,
    one_call,
    some,
    strictly,
    with_calls,
)
from toolsample_cli.toolcalls.protocols.lenient import Fault, read_payload


def _parse(text: str, gold_kind: str = "calls", **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    body = text.strip()
    if body[:1] not in ("{", "[", "`"):
        return no_call(body, gold_kind, None)
    try:
        value = loads(body)
    except TooDeep:
        return Parsed("too_deep", slip="too_deep")
    except TooLong:
        return Parsed("too_long", slip="too_long")
    except ValueError:
        return with_calls(Strict(None, slip="bad_json"), read_payload(body, delimited=False), "", gold_kind, None)
    message = value if isinstance(value, dict) else {"tool_calls": value}
    content, thought = (
        message.get(key) if isinstance(message.get(key), str) else None for key in ("content", "reasoning_content")
    )
    if "tool_calls" in message and not message["tool_calls"] and "content" in message:
        return no_call(content or "", gold_kind, thought)
    if "content" in message and "tool_calls" not in message and "name" not in message:
        return no_call(content or "", gold_kind, thought)
    strict = strictly(_strict, message.get("tool_calls"))
    meant = read_payload(body, delimited=False) if strict.slip else None
    return with_calls(strict, meant, content or "", gold_kind, thought)


def _strict(items: Json) -> Strict:
    if not isinstance(items, list):
        raise Fault("not_list")
    return some([_function(item) for item in items])


def _function(item: Json) -> Call:
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(function, dict):
        raise Fault("not_object")
    arguments = function.get("arguments")
    if isinstance(function.get("name"), str) and isinstance(arguments, str):
        function = {**function, "arguments": loads(arguments)}
    return one_call(function, "arguments")


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as an assistant message in JSON; a reply without calls is plain text."""
    if not calls:
        return response or ""
    listed = [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": c.name, "arguments": json.dumps(c.arguments, ensure_ascii=False)},
        }
        for at, c in enumerate(calls)
    ]
    message: Row = {"role": "assistant", "content": response}
    if thought is not None:
        message["reasoning_content"] = thought
    return json.dumps({**message, "tool_calls": listed}, ensure_ascii=False)


PROTOCOL = Protocol("openai", "an assistant message in OpenAI's JSON", True, _parse, _render)
