"""What identifies weights: a digest over the content of a model folder, read at the speed of the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path


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
