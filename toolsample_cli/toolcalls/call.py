"""A tool call as a value: name and arguments, its canonical JSON text, and reading JSON that a model wrote.

Model text is data: it is decoded, never evaluated, in bounded time and depth. The standard library's decoder
is the reference, because others differ on NaN, big integers and surrogates and a reward must not depend on that;
where a faster one is used (msgspec, on neat lines of calls), it reads the same or leaves the text to the reference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolsample_cli.json_types import Row

MAX_DEPTH = 100
"""Deepest nesting that is read. Real arguments stay below 10; the decoder itself fails at about 1,000."""

MAX_CHARS = 1_000_000
"""Longest completion that is read; longer ones get the status `too_long`."""

MAX_PAYLOAD = 200_000
"""Longest text of calls within it that is read."""


@dataclass(slots=True)
class Call:
    """One call of a tool; `arguments` is a plain JSON object. Treat it as a constant: readings share their calls."""

    name: str
    arguments: Row = field(default_factory=dict)

    def record(self) -> Row:
        """The call as it is stored: {name, arguments}."""
        return {"name": self.name, "arguments": self.arguments}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Call:
        """The inverse of `record`."""
        return cls(record["name"], dict(record["arguments"]))


def _encoder(sort_keys: bool) -> Callable[[object], str]:
    made = json.JSONEncoder(
        sort_keys=sort_keys, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
    )
    make: Callable[..., Callable[[object, int], tuple[str, ...]]] | None = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return made.encode
    # `encode` builds the C encoder anew for every value; this is the one that it builds, kept
    pieces = make(None, made.default, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(pieces(value, 0))


_encode, _encode_as_given = _encoder(True), _encoder(False)
_quoted = json.encoder.encode_basestring


def canonical(value: object) -> str:
    """JSON text that is equal for equal values: sorted keys, no spaces, real characters.

    Lone surrogates become U+FFFD and NaN or infinities become their names as text, so that any column can hold it.
    """
    return _text(value, _encode)


def as_written(value: object) -> str:
    """`canonical`, but keys stay where they are: what a model reads and imitates, in the order of whoever wrote it."""
    return _text(value, _encode_as_given)


def _text(value: object, encode: Callable[[object], str]) -> str:
    try:
        text = encode(value)
    except ValueError:
        text = encode(_finite(value))
    return storable(text)


def storable(text: str) -> str:
    """The text with unpaired surrogates, which no column can hold, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def calls_json(calls: Sequence[Call]) -> str:
    """Calls as the canonical list [{name, arguments}], the form of `calls_json`."""
    try:  # the text that `canonical` gives for the records, without making and sorting them
        texts = [f'{{"arguments":{_encode(call.arguments)},"name":{_quoted(call.name)}}}' for call in calls]
    except (ValueError, TypeError):
        return canonical([call.record() for call in calls])
    return storable(f"[{','.join(texts)}]")


class _Record(msgspec.Struct, gc=False):
    """A stored call."""

    name: str
    arguments: dict[str, Any]  # msgspec reads this annotation


_records_of = msgspec.json.Decoder(list[_Record]).decode


def read_calls(text: str) -> tuple[Call, ...]:
    """Calls from their stored form; ValueError, KeyError or TypeError when it is not one."""
    try:
        return tuple([Call(record.name, record.arguments) for record in _records_of(text)])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return tuple(Call.of(record) for record in json.loads(text, parse_constant=_refuse_constant))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


class TooDeep(ValueError):
    """The text nests deeper than MAX_DEPTH."""


class TooLong(ValueError):
    """The text of the calls is longer than MAX_PAYLOAD."""


def loads(text: str) -> Any:
    """`json.loads` in bounds: ValueError for what is not JSON, TooDeep and TooLong for what is too much."""
    refuse_excess(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise TooDeep(f"nested deeper than {MAX_DEPTH}") from None


def refuse_excess(text: str) -> None:
    """Raise TooLong, or TooDeep when brackets outside strings nest deeper than MAX_DEPTH."""
    if len(text) > MAX_PAYLOAD:
        raise TooLong(f"longer than {MAX_PAYLOAD}")
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth, inside, skip = 0, False, False
    for character in text:
        if skip:
            skip = False
        elif inside:
            if character == "\\":
                skip = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise TooDeep(f"nested deeper than {MAX_DEPTH}")
        elif character in "]}":
            depth -= 1
