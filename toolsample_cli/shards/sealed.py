"""Small JSON files that carry a digest of themselves, so that damage is told from content.

A file is an object whose key `digest` identifies all other keys. White space and key order are free; whoever changes
a value by hand makes the file invalid, which is the point.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from toolsample_cli.errors import DataError, StageFailure
from toolsample_cli.hashing import digest
from toolsample_cli.json_types import Json, Row
from toolsample_cli.shards.disk import KEPT, in_words

SEAL = "digest"


def sealed(value: Mapping[str, Json]) -> Row:
    """The object with its digest as the last key."""
    plain: Row = json.loads(json.dumps({key: value[key] for key in value if key != SEAL}, allow_nan=False))
    return {**plain, SEAL: digest(plain)}


def unsealed(value: object, where: Path | str, *, hint: str) -> Row:
    """The object without its digest. DataError when it is no object, has no digest, or was changed since."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: damaged: {type(value).__name__} instead of an object", hint=hint)
    content = {key: item for key, item in value.items() if key != SEAL}
    if value.get(SEAL) != digest(content):
        what = "its digest is missing" if SEAL not in value else "its content does not match its digest"
        raise DataError(f"{where}: damaged: {what}", hint=hint)
    return content


def read_json(path: Path, *, hint: str) -> object:
    """Any JSON file. DataError when it is not there or not JSON."""
    try:
        value: object = json.loads(path.read_bytes().decode("utf-8"))
        return value
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", hint=hint) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: not valid JSON: {error}", hint=hint) from None


def read_sealed(path: Path, *, hint: str) -> Row:
    """The content of a sealed file; DataError as `read_json` and `unsealed` raise it."""
    return unsealed(read_json(path, hint=hint), path, hint=hint)


def write_sealed(path: Path, value: Mapping[str, Json]) -> None:
    """Seal an object and replace the file in one step. ValueError for NaN and infinity, which JSON does not have."""
    write_json(path, sealed(value))


def write_json(path: Path, value: Json) -> None:
    """`write_atomically` of indented JSON with a final newline."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a small file in one step: write beside it, sync, rename. StageFailure when the disk does not let it."""
    beside = path.parent / f".{path.name}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise StageFailure(f"{path}: could not be written: {in_words(error, path.parent)}", hint=KEPT) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
