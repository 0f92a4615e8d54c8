"""What a round must not be mixed up with: another round's output, test data, another tokenizer's rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolsample_cli.config import TrainConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.json_types import Row
from toolsample_cli.shards import made_from
from toolsample_cli.shards.folder_sums import verify_folder
from toolsample_cli.shards.made_from import lineage
from toolsample_cli.shards.reading import Folder
from toolsample_cli.shards.test_rows import refuse_test_folder
from toolsample_cli.train import checkpoint
from toolsample_cli.train.checkpoint import Position

MARKS = ("config.json", "adapter_config.json")
FREE = frozenset({"save_every", "keep", "track"})
"""Settings of what is kept and told, not of what is trained: they may change between a round and its rerun."""


def refuse_test_data(tasks: Folder | None, config: TrainConfig) -> None:
    """DataError for benchmark rows among the tasks, unless the settings allow them."""
    if tasks is not None and not config.allow_test_data:
        refuse_test_folder(tasks, hint="train on another split, or say --allow-test-data")


def refuse_other_tokenizer(rollouts: Folder | None, model: str, tokenizer: Any) -> list[str]:
    """Token ids mean something else under another tokenizer: DataError. Another template only earns a warning."""
    if rollouts is None:
        return []
    made_with = rollouts.config
    if not made_with.get("tokenizer") or not getattr(tokenizer, "chat_template", None):
        return []
    from toolsample_cli.models.chat import Chat

    mine = Chat(tokenizer).fingerprint
    if made_with["tokenizer"] != mine["tokenizer"]:
        raise DataError(
            f"{rollouts.path}: made with tokenizer {made_with['tokenizer']}, {model} has {mine['tokenizer']}",
            hint="give the model that made the rollouts, or roll out again",
        )
    if made_with.get("template") not in (None, mine["template"]):
        return ["the chat template differs from that of the rollouts"]
    return []


def finished(out: Path, record: Row, inputs: dict[str, str], *, overwrite: bool) -> bool:
    """Whether this very round stands there. ConfigError when another one or something foreign does."""
    if not out.exists():
        return False
    if overwrite:
        if not any((out / mark).exists() for mark in MARKS):
            raise ConfigError(f"{out}: exists and is not a checkpoint", hint="choose another output folder")
        return False
    position = checkpoint.read_position(out)
    if position is None:
        raise ConfigError(f"{out}: exists and is not a checkpoint of train", hint="choose another output folder")
    refuse_another_round(out, position, record, inputs)
    verify_folder(out)
    return True


def bytes_needed(model: str, config: TrainConfig) -> int:
    """Bytes that a round's checkpoint takes, about: weights, moments, master weights, twice where steps are saved.

    0 for a model that is no local folder, of which nothing is known before it is loaded.
    """
    folder = Path(model)
    if not folder.is_dir():
        return 0
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    try:
        said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        half = str(said.get("dtype") or said.get("torch_dtype") or "").endswith("16")
    except (OSError, ValueError, AttributeError):
        half = False
    if config.lora_rank:
        return weights + weights // 10
    one = weights * (7 if half else 3)  # weights and, in float32, two moments and the master copy
    return one * 2 if config.save_every else one


def refuse_other_base(model: str, before: Position, config: TrainConfig) -> None:
    """ConfigError when an adapter would go on from a base in another form than the one that it was trained on."""
    packed = bool(before.config.get("lora_4bit", False))
    if before.base and config.lora_rank and packed != config.lora_4bit:
        forms = {True: "in 4 bits", False: "in full"}
        raise ConfigError(
            f"{model}: its adapter was trained on a base {forms[packed]}, and is asked to go on {forms[not packed]}",
            hint="add --lora-4bit" if packed else "leave --lora-4bit out",
        )


def refuse_another_round(folder: Path, position: Position, record: Row, inputs: dict[str, str]) -> None:
    """ConfigError with the keys that differ between a checkpoint and what is asked for."""
    # a setting that is younger than the checkpoint stood at its default
    old = lineage({**as_record(TrainConfig()), **position.config}, position.inputs)
    new = lineage(record, inputs)
    younger = {key for key in new if key not in old and not key.startswith("input ")}
    hint = "give --overwrite to train this round again, or choose another output folder"
    made_from.refuse_changes(folder, old, new, free=FREE | younger, hint=hint)
