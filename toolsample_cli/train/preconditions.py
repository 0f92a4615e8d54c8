"""What a round must not be mixed up with: another round's output, test data, another tokenizer's rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.config import TrainConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.shards.reading import Folder
from toolsample_cli.train import checkpoint
from toolsample_cli.train.checkpoint import Position

MARKS = ("config.json", "adapter_config.json")
FREE = frozenset({"save_every", "keep", "track"})
"""Settings of what is kept and told, not of what is trained: they may change between a round and its rerun."""


def refuse_test_data(tasks: Folder | None, config: TrainConfig) -> None:
    """Benchmark rows are refused: a score on data that was trained on says nothing."""
    if tasks is None or config.allow_test_data:
        return
    for shard, frame in tasks.frames(["task_id", "split"]):
        test = frame.with_row_index("line__").filter(pl.col("split") == "test")
        if test.height:
            first = test.row(0, named=True)
            raise DataError(
                f"{shard.path} row {first['line__'] + 1} (task {first['task_id']}): marked as benchmark test data",
                hint="train on another split, or say --allow-test-data",
            )


def refuse_other_tokenizer(rollouts: Folder | None, model: str, tokenizer: Any) -> list[str]:
    """Token ids mean something else under another tokenizer: DataError. Another template only earns a warning."""
    made_with = rollouts.config if rollouts is not None else {}
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


def finished(out: Path, record: dict[str, Any], inputs: dict[str, str], *, overwrite: bool) -> bool:
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
    refuse_changes(out, position, record, inputs)
    return True


def refuse_other_base(model: str, before: Position, config: TrainConfig) -> None:
    """ConfigError when an adapter would go on from a base in another form than the one that it was trained on."""
    packed = bool(before.config.get("lora_4bit", False))
    if before.base and config.lora_rank and packed != config.lora_4bit:
        forms = {True: "in 4 bits", False: "in full"}
        raise ConfigError(
            f"{model}: its adapter was trained on a base {forms[packed]}, and is asked to go on {forms[not packed]}",
            hint="add --lora-4bit" if packed else "leave --lora-4bit out",
        )


def refuse_changes(place: Path, position: Position, record: dict[str, Any], inputs: dict[str, str]) -> None:
    """ConfigError with the keys that differ between a checkpoint and what is asked for."""
    # a setting that is younger than the checkpoint stood at its default
    made_with = {**as_record(TrainConfig()), **position.config}
    old = {**made_with, **{f"input {key}": value for key, value in position.inputs.items()}}
    new = {**record, **{f"input {key}": value for key, value in inputs.items()}}
    asked = {*old, *(key for key in new if key.startswith("input "))} - FREE
    changed = [key for key in sorted(asked) if old.get(key) != new.get(key)]
    if changed:
        changes = "; ".join(f"{key} was {old.get(key)!r}, now {new.get(key)!r}" for key in changed)
        raise ConfigError(
            f"{place}: was made with other settings or inputs: {changes}",
            hint="give --overwrite to train this round anew, or another output folder",
        )
