"""Raw rows of JSON arrays, JSON lines and Parquet, one at a time in bounded memory, with the row's number.

A row's number is what an editor shows: the line of a JSON lines file, else its place from 1. Lone surrogates are
replaced at the door, because no later column can hold them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from toolsample_cli.errors import DataError, location
from toolsample_cli.toolcalls.call import MAX_DEPTH

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".json.gz", ".jsonl.gz")
CHUNK = 1 << 20
LONGEST_ROW = 64 << 20
"""Longest element of a JSON array in characters; a broken one would otherwise pull the whole file into memory."""
BATCH = 1024
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
    if path.name.endswith(".parquet"):
        yield from map(_opened, _parquet(path))
        return
    try:
        with _open(path) as handle:
            first = _first_character(handle)
        with _open(path) as handle:
            yield from map(_opened, _array(path, handle) if first == "[" else _lines(path, handle))
    except (OSError, EOFError) as error:
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
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape")
    return path.open(encoding="utf-8-sig", errors="surrogateescape")


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
    number = 0
    while line := handle.readline(LONGEST_ROW + 1):
        number += 1
        if len(line) > LONGEST_ROW:
            raise DataError(f"{location(path, row=number)}: longer than {LONGEST_ROW >> 20} MiB")
        if line.strip():
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


def _array(path: Path, handle: IO[str]) -> Iterator[Raw]:
    """Elements of one JSON array, decoded from a window that grows only while an element is not whole."""
    window = handle.read(CHUNK)
    while not window.lstrip():
        window = handle.read(CHUNK)
    window = window.lstrip()[1:]
    number, at, ended = 0, 0, False
    while True:
        where = location(path, row=number + 1)
        found = _next_element(window, at, number == 0, ended, where)
        if found is _CLOSED:
            return
        if found is not None:
            value, begin, end = found
            number += 1
            text = window[begin:end]
            yield _foreign_byte(number, text) or _element(number, value, text)
            window, at = (window[end:], 0) if end > CHUNK else (window, end)
        elif ended:
            raise DataError(f"{where}: the array is not closed")
        elif len(window) - at > LONGEST_ROW:
            raise DataError(f"{where}: broken, or longer than {LONGEST_ROW >> 20} MiB")
        else:
            more = handle.read(max(CHUNK, len(window) - at))
            window, at, ended = window[at:] + more, 0, not more


_CLOSED = (None, 0, 0)
_decode = json.JSONDecoder().raw_decode


def _next_element(window: str, at: int, first: bool, ended: bool, where: str) -> tuple[Any, int, int] | None:
    """(element, its begin, its end), _CLOSED at the array's end, or None when more text is needed."""
    at = _blank(window, at)
    if window[at : at + 1] == "]":
        return _CLOSED
    if not first and at < len(window):
        if window[at] != ",":
            raise DataError(f"{where}: not valid JSON: expected a comma before it")
        at = _blank(window, at + 1)
    if at >= len(window):
        return None
    try:
        value, end = _decode(window, at)
    except json.JSONDecodeError as error:
        if not ended and (error.pos >= len(window) - 32 or error.msg.startswith("Unterminated string")):
            return None
        raise DataError(f"{where}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    return (value, at, end) if end < len(window) or ended else None


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


def _parquet(path: Path) -> Iterator[Raw]:
    import polars as pl

    number = 0
    decoders: dict[str, Callable[[Any], Any]] = {}
    try:
        scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        for batch in _batches(scan):
            decoders = decoders or {name: _decoder(dtype) for name, dtype in batch.schema.items()}
            # a missing number is NaN where pandas wrote the file
            batch = batch.with_columns(pl.selectors.float().fill_nan(None))
            for row in batch.iter_rows(named=True):
                number += 1
                yield Raw(number, {name: decode(row[name]) for name, decode in decoders.items()})
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{location(path, row=number + 1)}: not a readable Parquet file: {error}") from None


def _decoder(dtype: Any) -> Callable[[Any], Any]:
    """What turns a value of this type into plain values: JSON columns of `datasets` arrive as text, however deep."""
    if "arrow.json" not in repr(dtype):
        return _as_it_is
    if repr(dtype).startswith("Extension"):
        return lambda value: None if value is None else json.loads(value)
    if hasattr(dtype, "fields"):
        inner = {field.name: _decoder(field.dtype) for field in dtype.fields}
        return lambda value: value and {name: decode(value[name]) for name, decode in inner.items()}
    element = _decoder(dtype.inner)
    return lambda value: value and [element(item) for item in value]


def _as_it_is(value: Any) -> Any:
    return value


def _batches(scan: Any) -> Iterator[Any]:
    if hasattr(scan, "collect_batches"):
        yield from scan.collect_batches(chunk_size=BATCH)
        return
    offset = 0  # older polars
    while (batch := scan.slice(offset, BATCH).collect()).height:
        yield batch
        offset += batch.height
