"""ToolRL's tags: <think>, then <tool_call> with one JSON object per line under `parameters`, and/or <response>.

Strict reading is ToolRL's, quirks included (methods Q6, Q7): the text after the FIRST <tool_call> up to the next
closing tag, one JSON value per line, any slip voids all. Only depth and length are bounded besides. Four of its
quirks can be lifted one by one: see QUIRKS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import Call, TooDeep, TooLong, loads, refuse_excess
from toolsample_cli.toolcalls.protocols.base import Parsed, Protocol, behind_thoughts, bounded
from toolsample_cli.toolcalls.protocols.hermes import untagged
from toolsample_cli.toolcalls.protocols.lenient import read_blocks, skip

QUIRKS = {
    "first_tag": "calls are read behind the first <tool_call>, even one mentioned while thinking",
    "one_line": "every call stands on one line; pretty-printed JSON voids all",
    "parameters_only": "`arguments` instead of `parameters` voids the call",
    "all_or_nothing": "one unreadable line voids all calls",
}
OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_TRIES = 1000
"""Objects and bad lines that are read in one block when they may span lines."""
_TAGS = re.compile(r"<(?=/?(?:tool_call|response|think)>)")
_SPACES = re.compile(r"\s*")
_decode = json.JSONDecoder().raw_decode
_NEAT = re.compile(r"<think>([^<]*)</think>\n<tool_call>\n([^<]*)\n</tool_call>")
"""The form of a call where no tag stands in thought or block: what most answers are, and nothing in it is in doubt."""


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line of a block as it should be."""

    name: str
    parameters: Row


_line_of = msgspec.json.Decoder(_Line).decode
_HEAD, _TAIL = "</think>\n<tool_call>\n", "\n</tool_call>"


def _parse(text: str, gold_kind: str = "calls", *, lifted: frozenset[str] = frozenset(), **_: object) -> Parsed:
    """Read one completion; `gold_kind` decides which form is right, `lifted` names quirks that do not apply."""
    if not bounded(text):
        return Parsed("too_long", slip="too_long")
    text = text.strip()
    if neat := _NEAT.fullmatch(text):
        thought, payload = neat.groups()
        parsed = _read(payload.strip(), lifted)
        parsed.thought, parsed.format_ok = thought.strip(), gold_kind == "calls"
        if parsed.slip:
            _add_lenient(parsed, text, False)
        return parsed
    start = text.find(OPEN)
    parsed = _strict(text, start, lifted)
    parsed.format_ok = _form(text, gold_kind)
    end = text.find("</think>")
    if start >= 0 and end >= 0:
        parsed.thought = text[7 if text.startswith("<think>") else 0 : end].strip()
    if parsed.strict_calls is not None and text.endswith("</response>"):
        parsed.response = _between(text[max(end, 0) :], "<response>", "</response>")
    in_thought = 0 <= start < end or (start >= 0 and "<think>" in text[max(end, 0) : start])
    if parsed.slip or in_thought or start < 0 or text.find(OPEN, start + 1) >= 0:
        _add_lenient(parsed, text, in_thought)
    return parsed


def _add_lenient(parsed: Parsed, text: str, in_thought: bool) -> None:
    """Add the lenient reading: behind the thoughts, block by block."""
    parsed.thought, body, closed = behind_thoughts(text)
    parsed.response = _between(body, "<response>", "</response>")
    if OPEN not in body:
        parsed.calls = ()
        parsed.status = "no_call" if closed else "truncated"
        if body[:1] in ("{", "[", "`"):
            untagged(parsed, body)
        return
    meant = read_blocks(body, OPEN, CLOSE)
    parsed.calls = tuple(meant.calls)
    if not meant.calls:
        parsed.status = meant.slip or parsed.slip
    elif in_thought and not meant.slip:
        parsed.status = "tag_in_thought"
    else:
        parsed.status = meant.slip or "repaired"


def _form(text: str, gold_kind: str) -> bool:
    """Whether the stripped reply as a whole has the form of the gold's kind (methods 3.3)."""
    if not text.startswith("<think>"):
        return False
    if gold_kind == "calls":
        if not text.endswith(_TAIL) or text.find(CLOSE) != len(text) - len(CLOSE):  # the one closing tag ends it
            return False
        return _block(text, len(text)) and _one(text, OPEN)
    if gold_kind == "response":
        return _response_at(text) >= 16 and text.startswith("</think>\n", _response_at(text) - 9)
    if gold_kind == "both":
        start = _response_at(text)
        return (
            start > 0 and _one(text, OPEN) and _one(text, CLOSE) and text[start - 1] == "\n" and _block(text, start - 1)
        )
    return text.endswith("</think>") and len(text) >= 15


def _one(text: str, tag: str) -> bool:
    return text.count(tag) == 1


def _block(text: str, end: int) -> bool:
    start = text.find(_HEAD)
    return start >= 7 and text.endswith(_TAIL, 0, end) and end - len(_TAIL) >= start + len(_HEAD)


def _response_at(text: str) -> int:
    """Where the one <response>...</response> that ends the text starts; -1 when there is none."""
    if not (text.endswith("</response>") and _one(text, "<response>") and _one(text, "</response>")):
        return -1
    return text.find("<response>")


def _strict(text: str, start: int, lifted: frozenset[str]) -> Parsed:
    """ToolRL's own reading of a stripped reply; `strict_calls` is None where ToolRL's reader fails.

    `start` is where the first opening tag stands. Quirks in `lifted` do not apply.
    """
    if "first_tag" in lifted:
        start = text.find(OPEN, text.find("</think>") + 1)
    if start < 0:
        return Parsed("no_call", slip="no_call")
    start += len(OPEN)
    end = text.find(CLOSE, start)
    if end < 0 and CLOSE not in text:
        return Parsed("truncated", slip="truncated")
    other = text.find(OPEN, start)
    if other >= 0 and (end < 0 or other < end):
        end = other
    return _read(text[start : end if end >= 0 else len(text)].strip(), lifted)


def _read(payload: str, lifted: frozenset[str]) -> Parsed:
    """The calls of a block."""
    if "one_line" not in lifted and (neat := _neat(payload)) is not None:
        return Parsed("ok", neat, False, None, None, neat)
    calls: list[Call] = []
    broken: list[int] = []
    odd: list[int] = []
    slip = ""
    for value in _spanning(payload) if "one_line" in lifted else _lines(payload):
        if isinstance(value, dict):
            name, arguments = value.get("name"), value.get("parameters")
            if isinstance(name, str) and isinstance(arguments, dict) and len(value) == 2:
                calls.append(Call(name, arguments))
                continue
            fault = _call(value, calls, broken, lifted)
            if len(value) != 2:
                odd.append(len(calls) - 1)
        else:
            fault = str(value)
        slip = slip or fault
        if fault not in ("", "no_arguments", "odd_name") and "all_or_nothing" not in lifted:
            fault = fault if payload else "empty"
            return Parsed(fault, slip=fault)
    taken = tuple(calls)
    return Parsed(slip or "ok", taken, False, None, None, taken, tuple(broken), slip, tuple(odd))


def _neat(payload: str) -> tuple[Call, ...] | None:
    """The calls of a block in which nothing is in doubt, as nearly all are; None for any other."""
    try:
        refuse_excess(payload)
        return tuple([Call(line.name, line.parameters) for line in map(_line_of, payload.split("\n"))])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _lines(payload: str) -> list[Row | str]:
    """Every line as the one JSON object that it should be, or as the name of its fault."""
    lines = payload.split("\n")
    try:
        refuse_excess(payload)
    except (TooDeep, TooLong):
        return [_line(line) for line in lines]
    found: list[Row | str] = []
    for line in lines:
        try:
            value, end = _decode(line)
        except (ValueError, RecursionError):
            value, end = None, -1
        found.append(value if end == len(line) and isinstance(value, dict) else _line(line))
    return found


def _line(line: str) -> Row | str:
    value, fault = _guarded(loads, line)
    return fault or (value if isinstance(value, dict) else "not_object")


def _spanning(payload: str) -> Iterator[Row | str]:
    """Objects one after another, each on as many lines as it likes, and the names of faults between them."""
    fault = _guarded(refuse_excess, payload)[1]
    if fault:
        yield fault
        return
    at = 0
    for _ in range(MAX_TRIES):
        at = skip(_SPACES, payload, at)
        if at >= len(payload):
            return
        pair, fault = _guarded(_decode, payload, at)
        if fault:  # go on behind the line
            yield fault
            line_end = payload.find("\n", at)
            at = line_end if line_end >= 0 else len(payload)
            continue
        value, at = pair
        yield value if isinstance(value, dict) else "not_object"


def _guarded(function: Callable[..., Any], *arguments: object) -> tuple[Any, str]:
    try:
        return function(*arguments), ""
    except (TooDeep, RecursionError):
        return None, "too_deep"
    except TooLong:
        return None, "too_long"
    except ValueError:
        return None, "bad_json"


def _call(value: Row, calls: list[Call], broken: list[int], lifted: frozenset[str]) -> str:
    """Read one call into `calls`; "" or what is wrong with it."""
    name, arguments = value.get("name"), value.get("parameters")
    if arguments is None and "parameters_only" in lifted:
        arguments = value.get("arguments")
    if not isinstance(name, str):
        if "name" not in value or isinstance(name, dict | list):
            return "no_name"
        calls.append(Call(f"{name!r} (not text)", arguments if isinstance(arguments, dict) else {}))
        return "odd_name"  # ToolRL counts it as a tool that no gold names
    if isinstance(arguments, dict):
        calls.append(Call(name, arguments))
        return ""
    broken.append(len(calls))
    calls.append(Call(name, {}))
    return "no_arguments"


def _between(text: str, opening: str, closing: str) -> str | None:
    start = text.find(opening)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return text[start : end if end >= 0 else len(text)].strip()


def _render(calls: Sequence[Call], response: str | None = None, thought: str | None = None) -> str:
    """The answer as ToolRL's format demands it; a thought is always present."""
    parts = [f"<think> {thought} </think>" if thought else "<think> </think>"]
    if calls:
        parts.append("\n".join([OPEN, *(_written({"name": c.name, "parameters": c.arguments}) for c in calls), CLOSE]))
    if response is not None:
        parts.append(f"<response> {response} </response>")
    return "\n".join(parts)


def _written(record: Row) -> str:
    return _TAGS.sub(r"\\u003c", json.dumps(record, ensure_ascii=False))  # a tag in a string would end the block


PROTOCOL = Protocol("rlla", "ToolRL's tags, one JSON object per line under `parameters`", False, _parse, _render)
