"""Raw rows of JSON, JSON lines, Parquet, Arrow IPC and CSV, one at a time in bounded memory, with the row's number.

What a file is follows from its first bytes, not from its name.

A row's number is what an editor shows: the line of a JSON lines file, else its place from 1. Lone surrogates are
replaced at the door, because no later column can hold them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from toolsample_cli.errors import DataError
from toolsample_cli.importing.tables import kind_of, table_values
from toolsample_cli.toolcalls.call import MAX_DEPTH

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".json.gz", ".jsonl.gz", ".csv", ".tsv", ".arrow", ".feather")
CHUNK = 1 << 20
LONGEST_ROW = 64 << 20
"""Longest row in characters; a broken one would otherwise pull the whole file into memory."""
_DIALOGUES = {"messages", "prompt", "completion", "conversations"}


@dataclass(frozen=True)
class Raw:
    """Row `number` of a file: its value, or the fault that keeps it from being read and the text."""

    number: int
    value: Any = None
    fault: str | None = None
    text: str = ""


def raw_rows(path: Path) -> Iterator[Raw]:
    """Every row of one file. DataError for a file that is missing, empty or broken as a whole."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: 0 bytes, nothing to import")
    kind = kind_of(path)
    if kind is not None:
        for number, value in enumerate(table_values(path, kind), start=1):
            yield _opened(Raw(number, value))
        return
    try:
        with _open(path) as handle:
            first = _first_character(handle)
        with _open(path) as handle:
            yield from map(_opened, _array(handle) if first == "[" else _lines(path, handle))
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _opened(raw: Raw) -> Raw:
    """Dialogues that are stored as JSON text, as people do where Parquet cannot hold them, become lists."""
    if isinstance(raw.value, dict):
        for key in _DIALOGUES & raw.value.keys():
            text = raw.value[key]
            if isinstance(text, str) and text.lstrip().startswith("["):
                with contextlib.suppress(ValueError, RecursionError):
                    inner = json.loads(text)
                    raw.value[key] = text if _too_deep(inner) else inner
    return raw


def _open(path: Path) -> IO[str]:
    """The file as text; bytes that are not UTF-8 become surrogates, for `_element` to find and name the row."""
    with path.open("rb") as handle:
        head = handle.read(2)
    opened = gzip.open if head == b"\x1f\x8b" else open
    with opened(path, "rb") as inner:
        wide = inner.read(2) in (b"\xff\xfe", b"\xfe\xff")
    if wide:
        return opened(path, "rt", encoding="utf-16", errors="strict")
    return opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape")


def _foreign_byte(number: int, text: str) -> Raw | None:
    """The row as a fault when it holds a byte that is not UTF-8."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte, shown = ord(text[error.start]) & 0xFF, text.encode("utf-8", "replace").decode()
        return Raw(number, fault=f"not UTF-8 text: byte {byte:#04x} at character {error.start + 1}", text=shown)
    return None


def _first_character(handle: IO[str]) -> str:
    while block := handle.read(4096):
        if text := block.lstrip():
            return text[0]
    return ""


def _lines(path: Path, handle: IO[str]) -> Iterator[Raw]:
    for number, line in enumerate(iter(lambda: handle.readline(LONGEST_ROW), ""), start=1):
        if len(line) == LONGEST_ROW and not line.endswith("\n"):
            while (more := handle.readline(CHUNK)) and not more.endswith("\n"):
                pass
            yield Raw(number, fault=f"longer than {LONGEST_ROW >> 20} MiB", text=line[:CHUNK])
        elif line.strip():
            yield _line(path, number, line)


def _line(path: Path, number: int, line: str) -> Raw:
    if fault := _foreign_byte(number, line):
        return fault
    try:
        return _element(number, json.loads(line), line)
    except RecursionError:
        return Raw(number, fault="nested too deeply", text=line)
    except json.JSONDecodeError as error:
        if number == 1 and line.strip() in ("{", '{"'):
            raise DataError(
                f"{path}: one JSON object over many lines", hint="expected an array of rows, or one row per line"
            ) from None
        return Raw(number, fault=f"not valid JSON: {error.msg} at column {error.colno}", text=line)
    except ValueError:
        return Raw(number, fault=DIGITS, text=line)


def _array(handle: IO[str]) -> Iterator[Raw]:
    """Elements of one JSON array, or of several one after another, from a window that grows while one is not whole.

    A fault is the last row: where a broken element ends, nobody can say.
    """
    window, at, number, first, inside, ended = "", 0, 0, True, False, False
    while True:
        found = _next(window, at, first, inside, ended)
        if isinstance(found, _Fault):
            yield Raw(number + 1, fault=found.text, text=window[at : at + CHUNK])
            return
        if found is None and len(window) - at > LONGEST_ROW:
            yield Raw(number + 1, fault=f"broken, or longer than {LONGEST_ROW >> 20} MiB", text=window[at : at + CHUNK])
            return
        if found is None and ended:
            if inside:
                yield Raw(number + 1, fault="the array is not closed", text=window[at : at + CHUNK])
            return
        if found is None:
            more = handle.read(max(CHUNK, len(window) - at))
            window, at, ended = window[at:] + more, 0, not more
        elif isinstance(found, _Bracket):
            inside, first, at = found.opens, True, found.end
        else:
            number, first = number + 1, False
            text = window[found.begin : found.end]
            yield (
                _foreign_byte(number, text)
                or (Raw(number, fault=found.fault, text=text) if found.fault else None)
                or _element(number, found.value, text)
            )
            window, at = (window[found.end :], 0) if found.end > CHUNK else (window, found.end)


class _Fault(NamedTuple):
    text: str


class _Bracket(NamedTuple):
    """The array's beginning or end."""

    opens: bool
    end: int


class _Found(NamedTuple):
    value: Any
    begin: int
    end: int
    fault: str = ""


_decode = json.JSONDecoder().raw_decode
_decode_digits = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) <= 4300 else 0).raw_decode
DIGITS = "a number of more than 4,300 digits"


def _next(window: str, at: int, first: bool, inside: bool, ended: bool) -> _Found | _Bracket | _Fault | None:
    """The next element or bracket, what is wrong with it, or None when more text is needed."""
    at = _blank(window, at)
    if at >= len(window):
        return None
    if not inside:
        return (
            _Bracket(True, at + 1) if window[at] == "[" else _Fault(f"text behind the array: {window[at : at + 40]!r}")
        )
    if window[at] == "]":
        return _Bracket(False, at + 1)
    if not first:
        if window[at] != ",":
            return _Fault("not valid JSON: expected a comma before it")
        at = _blank(window, at + 1)
        if at >= len(window):
            return None
    try:
        value, end = _decode(window, at)
        fault = ""
    except json.JSONDecodeError as error:
        if not ended and (error.pos >= len(window) - 32 or error.msg.startswith("Unterminated string")):
            return None
        return _Fault(f"not valid JSON: {error.msg}")
    except RecursionError:
        return _Fault("nested too deeply")
    except ValueError:  # an integer too long to be written out again; where it ends is known
        value, end = _decode_digits(window, at)
        fault = DIGITS
    if end >= len(window) and not ended:
        return None
    return _Found(value, at, end, fault)


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _element(number: int, value: Any, text: str) -> Raw:
    if text.count("[") + text.count("{") > MAX_DEPTH and _too_deep(value):
        return Raw(number, fault="nested too deeply", text=text)
    return Raw(number, _clean(value, text))


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _clean(value: Any, text: str) -> Any:
    return _whole(value) if "\\ud" in text or "\\uD" in text else value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value
