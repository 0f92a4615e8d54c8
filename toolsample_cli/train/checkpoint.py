"""A checkpoint is a model folder that transformers and vLLM load as it is, plus `trainer/` to go on exactly.

`trainer/` holds optimizer moments by parameter name, RNG states, float32 master weights where the model is saved in
bfloat16, and state.json: schedule position, settings and the digests of the inputs. Everything is written beside its
place, synced and renamed; a folder without state.json was never finished and is refused.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import torch

from toolsample_cli.errors import DataError, StageFailure
from toolsample_cli.json_types import Json, Row
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import KEPT, in_words
from toolsample_cli.shards.folder_sums import verify_folder, write_sums
from toolsample_cli.shards.sealed import sync_folder
from toolsample_cli.train import adapter
from toolsample_cli.train.distributed import World, like, whole

TRAINER = "trainer"
STATE = "state.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "tekken.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


def no_records() -> pl.DataFrame:
    """An empty table of RECORDS, with the row in the round in place of the rollout's id."""
    return pl.DataFrame(schema={"row": pl.Int64} | {c.name: c.dtype for c in schema.RECORDS.columns[1:]})


class StepValue(NamedTuple):
    """One metric of one optimizer step, as a row of STEPS."""

    step: int
    round: int
    metric: str
    value: float | None


@dataclass
class Position:
    """Where training stands: rounds done, optimizer steps in all, steps done of the round at hand.

    `dead_rounds` counts successive rounds without a single live group. `config` and `inputs` are those of the round
    at hand; `metrics` and `records` its finished steps' rows; `history` what the collapse alarm looks back on;
    `base` the model that an adapter belongs to.
    """

    rounds: int = 0
    step: int = 0
    done: int = 0
    dead_rounds: int = 0
    config: Row = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    metrics: list[StepValue] = field(default_factory=list)
    records: pl.DataFrame = field(default_factory=no_records)
    history: dict[str, list[float]] = field(default_factory=dict)
    base: str | None = None


def read_position(folder: Path) -> Position | None:
    """The position in a checkpoint, None when the folder holds a plain model; DataError when it is torn."""
    place = folder / TRAINER
    if not place.is_dir():
        return None
    file = place / STATE
    if file.exists():
        verify_folder(folder, only=[f"{TRAINER}/{STATE}"])
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        for table in ("metrics", "records"):
            found[table] = [list(map(_number, row)) for row in found[table]]
        found["metrics"] = [StepValue(*row) for row in found["metrics"]]
        found["records"] = pl.DataFrame(found["records"], schema=no_records().schema, orient="row")
        return Position(**found)
    except FileNotFoundError:
        raise DataError(
            f"{file}: missing, this checkpoint was never finished",
            hint="use the checkpoint before it, or delete the folder and rerun train",
        ) from None
    except (ValueError, TypeError, KeyError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{file}: not a trainer state: {error}") from None


NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
"""What a diverged step measures and JSON has no number for, as the words that stand for it."""


def position_record(position: Position) -> Row:
    """A position as JSON values; `read_position` is the inverse."""
    tables: dict[str, Sequence[Sequence[Json]]] = {"metrics": position.metrics, "records": position.records.rows()}
    words = {name: [[_word(value) for value in row] for row in rows] for name, rows in tables.items()}
    return vars(position) | words


def _word(value: Json) -> Json:
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _number(value: Json) -> Json:
    return NUMBERS.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Writer:
    """Writes checkpoints of one model; `source` is the folder or hub id that its tokenizer comes from."""

    world: World
    source: str
    dtype: torch.dtype
    merge: bool = True

    def write(self, folder: Path, policy: Any, optimizer: torch.optim.Optimizer, position: Position) -> None:
        """Gather (all ranks), write beside `folder` (rank 0), rename. An older folder there is replaced last."""
        low_rank = adapter.adapter_tensors(policy.model) if adapter.is_adapted(policy.model) else None
        weights = _weights(policy.inner) if low_rank is None else adapter.merged(policy.model)
        moments = optimizer_tensors(policy, optimizer)
        if self.world.first:
            with _as_failure(folder):
                self._write_whole(folder, policy, low_rank, weights, moments, position)
        self.world.barrier()

    def _write_whole(
        self,
        folder: Path,
        policy: Any,
        low_rank: dict[str, torch.Tensor] | None,
        weights: dict[str, torch.Tensor],
        moments: dict[str, torch.Tensor],
        position: Position,
    ) -> None:
        beside = folder.parent / f".{folder.name}.tmp"
        shutil.rmtree(beside, ignore_errors=True)
        (beside / TRAINER).mkdir(parents=True)
        if low_rank is not None:
            adapter.write_adapter(policy.model, low_rank, beside / adapter.FOLDER, position.base or self.source)
        elif self.dtype != torch.float32:
            _save(beside / TRAINER / "master.safetensors", weights)
        if low_rank is not None and not self.merge:
            adapter.write_adapter(policy.model, low_rank, beside, position.base or self.source)
        else:
            saved = {name: w.to(self.dtype) if w.is_floating_point() else w for name, w in weights.items()}
            policy.inner.save_pretrained(beside, state_dict=saved)
            _say_dtype(beside / "config.json", self.dtype)
        copy_tokenizer(self.source, beside)
        _save(beside / TRAINER / "optimizer.safetensors", moments)
        _save(beside / TRAINER / "rng.safetensors", rng_tensors())
        _text(beside / TRAINER / STATE, json.dumps(position_record(position), ensure_ascii=False, allow_nan=False))
        _open_up(beside)
        write_sums(beside)
        _sync_tree(beside)
        replace(beside, folder)


@contextlib.contextmanager
def _as_failure(folder: Path) -> Iterator[None]:
    """Say in plain words why a checkpoint could not be written."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StageFailure(f"{folder}: could not be written: {in_words(error, folder.parent)}", hint=KEPT) from error


def keep_step(saved: Path, out: Path, step: int, keep: int) -> None:
    """Let the saved step stay as `<out>.step-<step>` (hard links: no second copy) with the `keep - 1` before it."""
    place = out.parent / f"{out.name}.step-{step}"
    if not place.exists():
        beside = out.parent / f".{place.name}.tmp"
        shutil.rmtree(beside, ignore_errors=True)
        with _as_failure(place):
            shutil.copytree(saved, beside, copy_function=_link)
            replace(beside, place)
    for old in kept_steps(out)[:-keep]:
        remove(old)


def kept_steps(out: Path) -> list[Path]:
    """The step checkpoints beside `out`, oldest first."""
    found = [(place.name.rpartition("-")[2], place) for place in out.parent.glob(f"{glob.escape(out.name)}.step-*")]
    return [place for _, place in sorted((int(number), place) for number, place in found if number.isdecimal())]


def remove(folder: Path) -> None:
    """Delete a checkpoint so that no half of one is ever seen under its name."""
    doomed = folder.parent / f".{folder.name}.gone"
    shutil.rmtree(doomed, ignore_errors=True)
    if folder.is_dir():
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(out: Path) -> None:
    """Take away what a killed run left beside the checkpoint `out`: half-written, replaced and pruned folders.

    A folder that was moved aside and whose successor never took its name gets it back.
    """
    for folder in (out, partial_of(out)):
        old = folder.parent / f".{folder.name}.old"
        if old.is_dir() and not folder.exists():
            old.rename(folder)
    name = glob.escape(out.name)
    for base in (name, f".{name}.partial", f"{name}.step-*"):
        for ending in ("tmp", "old", "gone"):
            for left in out.parent.glob(f".{base}.{ending}"):
                shutil.rmtree(left, ignore_errors=True)


def partial_of(out: Path) -> Path:
    """Where the last saved step of an unfinished round is."""
    return out.parent / f".{out.name}.partial"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _say_dtype(file: Path, dtype: torch.dtype) -> None:
    # save_pretrained writes the type of the live model, which is float32, whatever is saved
    config = json.loads(file.read_text(encoding="utf-8"))
    config["dtype"] = str(dtype).removeprefix("torch.")
    _text(file, json.dumps(config, indent=2, sort_keys=True))


def _weights(model: Any) -> dict[str, torch.Tensor]:
    # a tied head has no weight of its own; named_parameters lists it once
    kept = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: whole(tensor) for name, tensor in model.state_dict().items() if name in kept}


def copy_tokenizer(source: str, folder: Path) -> None:
    """Tokenizer and template along with the weights, byte for byte where the source is a local folder."""
    place = Path(source)
    if not place.is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        return
    for name in TOKENIZER_FILES:
        if (place / name).is_file():
            shutil.copyfile(place / name, folder / name)


def optimizer_tensors(policy: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Optimizer moments as `<moment>.<parameter name>`, whole and on the CPU (a collective call when sharded)."""
    tensors = {}
    for name, parameter in policy.model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = whole(value) if torch.is_tensor(value) else torch.tensor(value)
    return tensors


def load_optimizer(folder: Path, policy: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Put saved moments back; False when there are none. DataError when they belong to another model."""
    from safetensors.torch import load_file

    file = folder / TRAINER / "optimizer.safetensors"
    if not file.exists():
        return False
    saved = _read(file, load_file)
    names = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    for full_name, tensor in saved.items():
        key, name = full_name.split(".", 1)
        parameter = names.get(name)
        if parameter is None or (tensor.ndim and tensor.shape != parameter.shape):
            raise DataError(f"{file}: {name} does not fit the model", hint="delete the trainer folder to start afresh")
        state = optimizer.state[parameter]
        state[key] = like(tensor, parameter) if tensor.ndim else tensor.clone()
    return True


def load_master(folder: Path, policy: Any) -> None:
    """Float32 master weights into a model that was read in bfloat16; nothing when there are none."""
    from safetensors.torch import load_file

    file = folder / TRAINER / "master.safetensors"
    if file.exists():
        policy.inner.load_state_dict(_read(file, load_file), strict=False)


def rng_tensors() -> dict[str, torch.Tensor]:
    """States of torch's generators (they matter only to models with dropout)."""
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def load_rng(folder: Path) -> None:
    """Put the generators' states back."""
    from safetensors.torch import load_file

    file = folder / TRAINER / "rng.safetensors"
    if file.exists():
        saved = _read(file, load_file)
        torch.set_rng_state(saved["cpu"])
        if "cuda" in saved and torch.cuda.is_available():
            torch.cuda.set_rng_state(saved["cuda"])


def _read(file: Path, load: Any) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError

    try:
        return load(file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file}: cannot be read: {error}", hint="use the checkpoint before it") from None


def _save(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def _text(file: Path, text: str) -> None:
    file.write_text(text + "\n", encoding="utf-8")


def _open_up(folder: Path) -> None:
    # safetensors writes files that only their owner can read; a server may run as somebody else
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o666 & ~mask)


def _sync_tree(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        elif file.is_dir():
            sync_folder(file)
    sync_folder(folder)


def replace(beside: Path, folder: Path) -> None:
    """Put a finished folder in its place; the one that stood there goes only after the new one is complete."""
    old = folder.parent / f".{folder.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
