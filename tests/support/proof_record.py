"""What proof.py writes down of a file, and how two such records differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

VARIES = ("transformers_version", "peft_version", "wall", "cpu")
"""Keys of JSON that may differ from run to run."""

LONGEST = 20_000
"""Characters of JSON from which a digest stands for it."""


def content(file: Path, words: Callable[[str], list[str]]) -> Any:
    """A file as JSON: what is in it, or digests of its parts; `words` cleans text of what may vary."""
    raw = file.read_bytes()
    if raw[:4] == raw[-4:] == b"PAR1":
        return _parquet(file, raw)
    try:
        if file.suffix == ".safetensors":
            return _tensors(raw)
        if file.suffix == ".json":
            return _short(_stable(json.loads(raw)))
        if file.suffix == ".jsonl":
            return _short([_stable(json.loads(line)) for line in raw.splitlines()])
        return {"text": sha("\n".join(words(raw.decode("utf-8"))).encode())}
    except ValueError:  # neither JSON nor text
        return {"bytes": sha(raw)}


def _parquet(file: Path, raw: bytes) -> dict[str, Any]:
    frame = pl.read_parquet(file, glob=False)
    columns = {name: f"{frame[name].dtype} {sha(_canonical(frame[name].to_list()))}" for name in frame.columns}
    footer = json.loads(pl.read_parquet_metadata(file).get("toolsample", "null"))
    return {"rows": frame.height, "columns": columns, "order": frame.columns, "footer": footer, "bytes": sha(raw)}


def _tensors(raw: bytes) -> dict[str, Any]:
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), memoryview(raw)[8 + length :]
    found = {"__metadata__": header.pop("__metadata__", None)}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        found[name] = f"{tensor['dtype']} {tensor['shape']} {sha(data[begin:end])}"
    return found


def _stable(value: Any) -> Any:
    """Without what may vary; peft writes `target_modules` in the order of a set."""
    if isinstance(value, dict):
        kept = {key: _stable(item) for key, item in value.items() if key not in VARIES}
        return kept | (
            {"target_modules": sorted(names)} if isinstance(names := kept.get("target_modules"), list) else {}
        )
    return [_stable(item) for item in value] if isinstance(value, list) else value


def _short(value: Any) -> Any:
    text = _canonical(value)
    return value if len(text) <= LONGEST else {"json": sha(text)}


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def sha(raw: bytes | memoryview) -> str:
    """Hex digest."""
    return hashlib.sha256(raw).hexdigest()


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """One line a leaf that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            if key in a and key in b:
                yield from differences(a[key], b[key], f"{where} > {key}" if where else key)
            else:
                yield f"{where} > {key}: only in the {'first' if key in a else 'second'}"
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (one, two) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, two, f"{where} > {at}")
    elif a != b:
        yield f"{where}:\n    - {_brief(a)}\n    + {_brief(b)}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:297]}..."
