"""What a model folder holds: a digest over its content, read at the speed of the disk, and whether it is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from toolsample_cli.errors import DataError


def folder_digest(folder: Path) -> str | None:
    """16 hex digits of a local model folder's config and weights; None when it is not a local folder."""
    if not folder.is_dir():
        return None
    state = hashlib.blake2b(digest_size=8)
    names = ("config.json", "adapter_config.json")
    for file in sorted([*folder.glob("*.safetensors"), *(folder / n for n in names if (folder / n).is_file())]):
        state.update(f"{file.name}:{file.stat().st_size}\n".encode())
        with file.open("rb") as handle:
            while block := handle.read(1 << 22):
                state.update(block)
    return state.hexdigest()


def check_model(model: str) -> None:
    """DataError when a model folder is missing, is none, or holds torn weights; what may be a hub id passes."""
    folder = Path(model)
    if not folder.exists():
        if model.startswith(("/", "./", "../", "~")):
            raise DataError(f"{model}: no such model folder")
        return
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise DataError(f"{model}: no config.json, not a model folder")
    for file in sorted(folder.glob("*.safetensors")):
        if (wanted := _whole_size(file)) != file.stat().st_size:
            said = "its header cannot be read" if wanted is None else f"its header says {wanted:,}"
            raise DataError(f"{file}: torn: {file.stat().st_size:,} bytes, {said}", hint="copy or download it again")


def _whole_size(file: Path) -> int | None:
    """Bytes that a safetensors file should have by its header: 8 bytes of length, JSON, then the tensors."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        try:
            header = json.loads(handle.read(length)) if length < file.stat().st_size else None
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, LookupError, AttributeError):
            return None
