"""From text to the calls that are clear in it, whatever their shape: the lenient reading shared by all protocols.

Accepts nested `function`, `parameters` for `arguments`, arguments as JSON text, lists, code fences and what
`json_repair` mends. Never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolsample_cli.json_types import Json, Row
from toolsample_cli.toolcalls.call import MAX_PAYLOAD, Call, TooDeep, TooLong, refuse_excess
from toolsample_cli.toolcalls.protocols import json_repair

NAMES = ("name", "tool", "tool_name", "function_name", "api_name", "api", "recipient_name")
ARGUMENTS = ("arguments", "parameters", "args", "params", "input", "tool_input", "kwargs", "action_input")
MAX_BLOCKS = 1000
"""Blocks that are read in one answer."""
_FENCE = re.compile(r"```[A-Za-z_]{0,20}[ \t]*\n?")
_SPACES = re.compile(r"\s*")
_SEPARATORS = re.compile(r"[\s,;]*")
_decode = json.JSONDecoder().raw_decode


@dataclass
class Reading:
    """Calls found, in order, and what was wrong: "" when nothing had to be mended, else a status."""

    calls: list[Call] = field(default_factory=list)
    slip: str = ""
    budget: int = 50_000  # characters that may still be mended: the mending reader is slow

    def note(self, slip: str) -> None:
        """Keep the first slip."""
        self.slip = self.slip or slip


def read_blocks(body: str, opener: str, closer: str) -> Reading:
    """Every call in the blocks between `opener` and `closer`; a missing closer ends at the next opener or the end.

    Where a block is JSON, the JSON decides where it ends, so that tags inside strings do no harm.
    """
    meant = Reading()
    at, close = body.find(opener), 0
    for _ in range(MAX_BLOCKS):
        if at < 0:
            return meant
        start = at + len(opener)
        begin, value, end_of_value = _first_json(body, start)
        if close >= 0 and close < end_of_value:
            close = body.find(closer, end_of_value)
        at = body.find(opener, end_of_value)
        ends = [place for place in (close, at) if place >= 0]
        stop = min(ends) if ends else len(body)
        if not ends and meant.calls:
            meant.note("truncated")
        first = None if end_of_value == start else (value, end_of_value - begin)
        read_payload(body[begin:stop], bool(ends), meant, first)
    meant.note("too_long")
    return meant


def _first_json(body: str, start: int) -> tuple[int, Json, int]:
    """(begin, value, end) of the object or list that stands at `start` behind white space; (start, None, start)."""
    begin = skip(_SPACES, body, start)
    if body[begin : begin + 1] not in ("{", "["):
        return start, None, start
    try:
        value, end = _decode(body, begin)
    except (ValueError, RecursionError):
        return start, None, start
    return begin, value, end


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The position behind what the pattern matches at `at`, which may be nothing."""
    found = pattern.match(text, at)
    return found.end() if found else at


def value_end(body: str, start: int) -> int:
    """Where the JSON object or list ends that stands at `start` behind white space; `start` where there is none."""
    return _first_json(body, start)[2]


class _Repeated(Exception):
    """A key that stands twice in one object."""


def _pairs(pairs: list[tuple[str, Json]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Repeated
    return found


_strict_decode = json.JSONDecoder(object_pairs_hook=_pairs).raw_decode


def repeats_key(text: str, calls: Sequence[Call]) -> bool:
    """Whether the JSON that these calls were read from repeats a key in one object; decoders keep the last, silently.

    The marks of keys are counted first, so that the second reading is rare.
    """
    body = text[text.rfind("</think>") + 1 :]
    marks = body.count('":') + body.count('" :')
    for call in calls:
        marks -= 2 + len(call.arguments)
    if marks <= 0 or len(body) > MAX_PAYLOAD:
        return False
    if marks <= sum(_keys(value) for call in calls for value in call.arguments.values()):
        return False
    at = body.find("{")
    for _ in range(MAX_BLOCKS):
        if at < 0:
            return False
        try:
            at = _strict_decode(body, at)[1]
        except _Repeated:
            return True
        except (ValueError, RecursionError):
            at += 1
        at = body.find("{", at)
    return False


def _keys(value: Json) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list | tuple) else 0


class Fault(ValueError):
    """A value that is not a call; the message is its status."""


def read_payload(
    payload: str, delimited: bool = True, meant: Reading | None = None, first: tuple[Json, int] | None = None
) -> Reading:
    """Every call in a text that should hold nothing but calls, one after another, added to `meant`.

    `delimited`: something closed the payload, so a bracket missing at its end is a slip, not a cut.
    `first`: (value, end) of the JSON that the payload is known to begin with.
    """
    meant = meant or Reading()
    payload = _unfenced(payload, meant)
    if not payload:
        meant.note("empty")
        return meant
    try:
        refuse_excess(payload)
    except (TooDeep, TooLong) as error:
        meant.note("too_deep" if isinstance(error, TooDeep) else "too_long")
        return meant
    at, last, before = 0, len(payload), -1
    while at < last:
        try:
            value, end = first or _value(payload, at, delimited, meant)
            first = None
            calls = calls_of(value, meant)
        except TooDeep:
            meant.note("too_deep")
            break
        except Fault as fault:
            meant.note(str(fault))
            break
        if not (at == before and calls == meant.calls[-len(calls) :]):
            meant.calls += calls  # `{..}{..}` without a separator is the same object written twice
        else:
            meant.note("repaired")
        before = end
        at = skip(_SEPARATORS, payload, end)
        if at < last and payload[at] not in "{[":
            meant.note("repaired" if meant.calls else "bad_json")
            at = _next_start(payload, at)
    return meant


def _unfenced(payload: str, meant: Reading) -> str:
    payload = payload.strip().strip("\ufeff\u200b")
    if payload.startswith("```"):
        meant.note("repaired")
        payload = _FENCE.sub("", payload, count=1)
        closing = payload.rfind("```")
        payload = payload[:closing] if closing >= 0 else payload
    return payload.strip()


def _next_start(payload: str, at: int) -> int:
    """Junk behind a value is skipped up to a line that begins with a bracket."""
    starts = [found for mark in ("\n{", "\n[") if (found := payload.find(mark, at)) >= 0]
    return min(starts) + 1 if starts else len(payload)


def _value(payload: str, at: int, delimited: bool, meant: Reading) -> tuple[Json, int]:
    try:
        return _decode(payload, at)
    except RecursionError:
        raise TooDeep("nested too deeply") from None
    except ValueError:
        pass
    if len(payload) - at > meant.budget:
        raise Fault("bad_json")
    try:
        value, end = json_repair.read(payload, at, delimited)
    except json_repair.BeyondRepair as error:
        meant.budget -= len(payload) - at
        raise Fault("truncated" if error.cut and not delimited else "bad_json") from None
    meant.budget -= end - at
    meant.note("repaired")
    return value, end


def calls_of(value: Json, meant: Reading, depth: int = 0) -> list[Call]:
    """The calls a JSON value stands for; Fault when it stands for none."""
    if depth > 3:
        raise Fault("not_object")
    if isinstance(value, list | tuple):
        return [call for item in value for call in calls_of(item, meant, depth + 1)]
    if not isinstance(value, dict):
        raise Fault("not_object")
    if isinstance(inner := value.get("tool_calls"), list):
        return calls_of(inner, meant, depth + 1)
    if isinstance(inner := value.get("function"), dict):
        value = {**{k: v for k, v in value.items() if k != "function"}, **inner}
    elif isinstance(inner, str) and not any(key in value for key in NAMES):
        value = {"name": inner, **value}
    name_key = next((key for key in NAMES if isinstance(value.get(key), str)), None)
    if name_key is None:
        return [_bare(value)]
    key = next((key for key in ARGUMENTS if key in value), None)
    arguments = _object(value[key], meant) if key else {}
    return [Call(str(value[name_key]), arguments)]


def _bare(value: Row) -> Call:
    """{"tool": {arguments}}: an object whose single key is the tool's name."""
    if len(value) == 1:
        ((name, arguments),) = value.items()
        if isinstance(arguments, dict) and name not in ARGUMENTS and name not in NAMES:
            return Call(name, arguments)
    raise Fault("no_name")


def _object(arguments: Json, meant: Reading) -> Row:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        text = arguments.strip()
        if not text:
            return {}
        value, _ = _value(text, 0, True, meant)
        if isinstance(value, dict):
            return value
    raise Fault("no_arguments")
