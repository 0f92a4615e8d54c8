"""What a model folder holds: a digest over its content, read at the speed of the disk, and whether it is whole."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from toolsample_cli.errors import DataError
from toolsample_cli.shards.folder_sums import verify_folder

CONFIGS = ("config.json", "adapter_config.json")

_known: dict[tuple[tuple[str, int, int, int], ...], str] = {}


def model_digest(model: str, adapter: str = "") -> str:
    """What identifies a policy everywhere: 16 hex digits of a folder's content, or a hub id with its revision.

    An `adapter` on top is added after a plus sign.
    """
    base = folder_digest(Path(model)) or _hub_revision(model)
    return base if not adapter else f"{base}+{folder_digest(Path(adapter)) or adapter}"


def folder_digest(folder: Path) -> str | None:
    """16 hex digits over every byte of a local model folder's config and weights; None when it is no local folder.

    Within one process a file whose size, times and inode are those of the last reading is not read again.
    """
    if not folder.is_dir():
        return None
    files = sorted([*folder.glob("*.safetensors"), *(folder / n for n in CONFIGS if (folder / n).is_file())])
    marks, settled = [], True
    for file in files:
        now = file.stat()
        marks.append((str(file.resolve()), now.st_size, now.st_mtime_ns, now.st_ino))
        # a change within the clock's grain would leave the time as it was
        settled = settled and time.time_ns() - now.st_mtime_ns > 2_000_000_000
    if (key := tuple(marks)) in _known:
        return _known[key]
    digest = _content_digest(files)
    if settled:
        _known[key] = digest
    return digest


def _content_digest(files: list[Path]) -> str:
    state = hashlib.blake2b(digest_size=8)
    for file in files:
        state.update(f"{file.name}:{file.stat().st_size}\n".encode())
        with file.open("rb") as handle:
            while block := handle.read(1 << 22):
                state.update(block)
    return state.hexdigest()


def _hub_revision(model: str) -> str:
    """`name@commit` of the snapshot that the hub's cache holds, else the name alone."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return model
    return f"{model}@{Path(file).parent.name}" if isinstance(file, str) else model


def declared_vocabulary(model: str) -> int:
    """Rows of the embedding that a local folder's config declares; 0 where there is none."""
    try:
        declared = json.loads((Path(model) / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return 0
    return declared if isinstance(declared, int) else 0


def check_model(model: str) -> None:
    """DataError when a model folder is missing, is none, or holds damaged files; what may be a hub id passes."""
    folder = Path(model)
    if not folder.exists():
        if model.startswith(("/", "./", "../", "~")):
            raise DataError(f"{model}: no such model folder")
        return
    if not any((folder / name).is_file() for name in CONFIGS):
        raise DataError(f"{model}: no config.json, not a model folder")
    for file in sorted(folder.glob("*.safetensors")):
        if (wanted := _whole_size(file)) != file.stat().st_size:
            why = "its header cannot be read" if wanted is None else f"its header says {wanted:,}"
            raise DataError(f"{file}: torn: {file.stat().st_size:,} bytes, {why}", hint="copy or download it again")
    verify_folder(folder)


def _whole_size(file: Path) -> int | None:
    """Bytes that a safetensors file should have by its header: 8 bytes of length, JSON, then the tensors."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        try:
            if length >= file.stat().st_size:
                return None
            header = json.loads(handle.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, LookupError, AttributeError):
            return None
