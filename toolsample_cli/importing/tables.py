"""Raw rows of Parquet, Arrow IPC and CSV files: every column's values as JSON can tell them."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.errors import DataError, location
from toolsample_cli.json_types import Row

BATCH = 1024
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "ipc"}
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z",
    b"SQLite format 3": "an SQLite database", b"\x89HDF": "HDF5", b"\x80\x04": "a pickle", b"\x80\x05": "a pickle",
}  # fmt: skip


def kind_of(path: Path) -> str | None:
    """parquet, ipc or csv; None for text. DataError names what cannot be read, such as a zstd file."""
    with path.open("rb") as handle:
        head = handle.read(16)
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise DataError(
                f"{path}: is {name}, which is not read", hint="unpack or convert it to JSON lines or Parquet"
            )
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if path.name.endswith(".parquet"):
        raise DataError(f"{path}: not a Parquet file, though its name says so", hint="was it downloaded whole?")
    if path.name.endswith((".csv", ".tsv")):
        return "csv"
    return None


def table_values(path: Path, kind: str) -> Iterator[Row]:
    """Rows of a table as plain values. DataError names the row at which the file cannot be read on."""
    number = 0
    decoders: dict[str, Callable[[Any], Any]] = {}
    try:
        for batch in _batches(_scan(path, kind)):
            decoders = decoders or {name: _decoder(dtype) for name, dtype in batch.schema.items()}
            # a missing number is NaN where pandas wrote the file
            batch = batch.with_columns(pl.selectors.float().fill_nan(None))
            for row in batch.iter_rows(named=True):
                number += 1
                yield {name: decode(row[name]) for name, decode in decoders.items()}
    except (pl.exceptions.PolarsError, OSError) as error:
        words = {"parquet": "Parquet", "ipc": "Arrow IPC", "csv": "CSV"}[kind]
        raise DataError(f"{location(path, row=number + 1)}: not a readable {words} file: {error}") from None


def _scan(path: Path, kind: str) -> pl.LazyFrame:
    if kind == "ipc":
        return pl.read_ipc(path).lazy()
    if kind == "csv":
        separator = "\t" if path.name.endswith(".tsv") else ","
        return pl.scan_csv(path, separator=separator, infer_schema=False, glob=False)
    return pl.scan_parquet(path, glob=False, hive_partitioning=False)


def _decoder(dtype: Any) -> Callable[[Any], Any]:
    """What turns a value of this type into plain values: JSON columns of `datasets` arrive as text, however deep."""
    if "arrow.json" not in repr(dtype):
        return _plain if _is_odd(dtype) else _as_it_is
    if repr(dtype).startswith("Extension"):
        return lambda value: None if value is None else json.loads(value)
    if hasattr(dtype, "fields"):
        inner = {field.name: _decoder(field.dtype) for field in dtype.fields}
        return lambda value: value and {name: decode(value[name]) for name, decode in inner.items()}
    element = _decoder(dtype.inner)
    return lambda value: value and [element(item) for item in value]


def _is_odd(dtype: Any) -> bool:
    """Whether values of this type are not JSON's own: times, decimals, bytes, objects, or anything that holds them."""
    simple = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
    return not (dtype.is_integer() or dtype.is_float() or isinstance(dtype, simple)) and not _plain_inside(dtype)


def _plain_inside(dtype: Any) -> bool:
    if hasattr(dtype, "fields"):
        return not any(_is_odd(field.dtype) for field in dtype.fields)
    return isinstance(dtype, pl.List | pl.Array) and not isinstance(dtype, pl.Array) and not _is_odd(dtype.inner)


def _plain(value: Any) -> Any:
    """Times in ISO form, decimals as they are written, bytes as text or by their size: what JSON can tell."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return f"({len(value)} bytes)"
    if isinstance(value, list | tuple | pl.Series) or hasattr(value, "tolist"):
        return [_plain(item) for item in value]
    return str(value)


def _as_it_is(value: Any) -> Any:
    return value


def _batches(scan: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    if hasattr(scan, "collect_batches"):
        yield from scan.collect_batches(chunk_size=BATCH)
        return
    offset = 0  # older polars
    while (batch := scan.slice(offset, BATCH).collect()).height:
        yield batch
        offset += batch.height
