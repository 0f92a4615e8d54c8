"""What a model folder's tokenizer files tell without transformers, whose import takes seconds.

Whether they are there and whole, and the fingerprint that `Chat` gave for exactly these bytes before.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from pathlib import Path

import msgspec

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.models.chat import TOKENIZER_FILES, Chat, refuse_no_tokenizer

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_BESIDE = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")


class _Fingerprint(msgspec.Struct):
    tokenizer: str
    template: str


def cache_folder() -> Path:
    """`$TOOLSAMPLE_CACHE`, else `$XDG_CACHE_HOME/toolsample`, else `~/.cache/toolsample`."""
    if os.environ.get("TOOLSAMPLE_CACHE"):
        return Path(os.environ["TOOLSAMPLE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolsample"


def check_tokenizer(model: str) -> None:
    """For a plan: DataError when a local model has no whole tokenizer, ConfigError when it has no chat template.

    What may be a hub id passes: a plan downloads nothing.
    """
    refuse_no_tokenizer(model)
    folder = Path(model)
    if not folder.is_dir():
        return
    settings = _json(folder / "tokenizer_config.json")
    if not any((folder / name).is_file() for name in TEMPLATE_FILES) and "chat_template" not in settings:
        raise ConfigError(
            f"{folder}: the tokenizer has no chat template",
            hint="use an instruction-tuned model, or put a chat_template.jinja beside its tokenizer",
        )
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # what it raises has no class of its own
            raise DataError(f"{folder / 'tokenizer.json'}: no tokenizer: {error}", hint="copy it again") from None


def _json(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def known_fingerprint(model: str) -> dict[str, str] | None:
    """`Chat.fingerprint` of a local folder, where it was found before for the same bytes and packages."""
    try:
        read = msgspec.json.decode(_place(Path(model)).read_bytes(), type=_Fingerprint)
    except (OSError, msgspec.DecodeError):
        return None
    return msgspec.structs.asdict(read)


def remember_fingerprint(model: str, chat: Chat) -> None:
    """Keep a folder's fingerprint for the next process; a cache that cannot be written is done without."""
    if not Path(model).is_dir():
        return
    place = _place(Path(model))
    beside = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(msgspec.json.encode(chat.fingerprint))
        beside.replace(place)
    except OSError:
        beside.unlink(missing_ok=True)


def _place(folder: Path) -> Path:
    state = hashlib.blake2b(digest_size=16)
    for package in ("tokenizers", "transformers"):
        state.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    for name in sorted({*TOKENIZER_FILES, *TEMPLATE_FILES, *_BESIDE}):
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            state.update(f"{name} {len(content)}\n".encode() + content)
    return cache_folder() / "tokenizers" / f"{state.hexdigest()}.json"
