"""The hashes of the package, one of each: of a JSON value, of a text, of a column of ids, of a file's bytes.

What they return is part of files on disk (lineage, seeds, the draw), so none of them may ever change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import xxhash

from toolsample_cli.json_types import Json

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step of splitmix64's counter."""
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

BLOCK = 1 << 20
"""Bytes of a file in memory at once."""


def digest(value: Json) -> str:
    """16 hex digits that identify a JSON value (key order does not matter)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{hash_text(text):016x}"


def hash_text(text: str) -> int:
    """64 bits of BLAKE2b over the UTF-8 bytes; a lone surrogate counts as its own three bytes."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Sums(NamedTuple):
    """What identifies a file: its size, SHA-256 for provenance, XXH3 (128 bits) for checking it at every reading."""

    bytes: int
    sha256: str
    xxh3: str


def file_sums(path: Path) -> Sums:
    """Size and both digests of a file, in one pass."""
    size, secure, fast = 0, hashlib.sha256(), xxhash.xxh3_128()
    for block in _blocks(path):
        size += len(block)
        secure.update(block)
        fast.update(block)
    return Sums(size, secure.hexdigest(), fast.hexdigest())


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    state = hashlib.sha256()
    for block in _blocks(path):
        state.update(block)
    return state.hexdigest()


def xxh3(path: Path) -> str:
    """Hex XXH3 of 128 bits over a file's bytes: as fast as memory, against damage and not against forgery."""
    state = xxhash.xxh3_128()
    for block in _blocks(path):
        state.update(block)
    return state.hexdigest()


def _blocks(path: Path) -> Iterator[memoryview]:
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as handle:
        while size := handle.readinto(buffer):
            yield memoryview(buffer)[:size]


def finalise(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): uint64 of any shape, overflow intended."""
    value = (value ^ (value >> np.uint64(30))) * _FACTORS[0]
    value = (value ^ (value >> np.uint64(27))) * _FACTORS[1]
    return value ^ (value >> np.uint64(31))


def splitmix64(value: np.ndarray) -> np.ndarray:
    """One step of splitmix64 from the states `value`: uint64 of any shape."""
    return finalise(value + GOLDEN)


def hash_ids(ids: pl.Series) -> np.ndarray:
    """64-bit hashes of strings, the same on every machine and in every version: uint64, one per row."""
    if not len(ids):
        return np.empty(0, np.uint64)
    length = ids.str.len_bytes().to_numpy().astype(np.uint64)
    words = -(-int(length.max()) // 8)
    padded = pl.DataFrame({"id": ids}).select((pl.col("id") + pl.lit("\0" * (8 * words))).cast(pl.Binary))["id"]
    state = splitmix64(length + GOLDEN)
    for word in range(words):  # eight bytes of every id at a time
        value = padded.bin.slice(8 * word, 8).bin.reinterpret(dtype=pl.UInt64, endianness="little").to_numpy()
        # words past an id's end leave it alone: its hash must not depend on its neighbours' lengths
        state = np.where(length > np.uint64(8 * word), splitmix64(state ^ value), state)
    return state
