"""A causal model from a folder or the hub: its weights, adapter, device, number type, and what identifies them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from toolsample_cli.errors import ConfigError, DataError, MissingDependency, StageFailure, ToolsampleError
from toolsample_cli.models.digests import check_model
from toolsample_cli.models.out_of_memory import ran_out, within_memory

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SMALLER = "take dtype = bfloat16, a smaller model, or a device with more memory"
"""What helps when the weights alone do not fit."""


def read_config(model: str) -> PretrainedConfig:
    """A model's config; DataError when there is none."""
    from transformers import AutoConfig

    check_model(model)
    with _named(model):
        return AutoConfig.from_pretrained(model)


def read_weights(model: str, dtype: torch.dtype, **options: object) -> PreTrainedModel:
    """A causal model as transformers reads it. Safetensors only, no remote code.

    `options` go to `from_pretrained` as they are. DataError when it cannot be loaded, StageFailure without memory.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # ours says more
    check_model(model)
    with _named(model):
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, use_safetensors=True, **options)


@contextmanager
def _named(model: str) -> Iterator[None]:
    """Whatever transformers raises for a model that is none, as one line with its name."""
    from safetensors import SafetensorError

    try:
        yield
    except ToolsampleError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if ran_out(error):
            raise StageFailure(f"out of memory while loading {model}: {first}", hint=SMALLER) from error
        raise DataError(
            f"{model}: no causal model could be loaded: {first}",
            hint="expected config.json and safetensors weights, or a hub id while the hub can be reached",
        ) from error


def load_for_inference(model: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A causal model on its device, ready to generate."""
    loaded = read_weights(model, dtype)
    with within_memory(f"moving {model} to {device}", SMALLER):
        return loaded.eval().requires_grad_(False).to(device)


def with_adapter(model: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """The model with a LoRA adapter merged into its weights; DataError when the adapter cannot be loaded."""
    if importlib.util.find_spec("peft") is None:
        raise MissingDependency("peft", needed_for="--adapter", install="pip install 'toolsample[peft]'")
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload().eval().requires_grad_(False)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise DataError(f"{adapter}: no adapter of this model: {str(error).splitlines()[0]}") from error


def pick_device(name: str, local_rank: int | None = None) -> torch.device:
    """`auto`: CUDA, then MPS, then CPU; ConfigError when the one asked for is not there.

    With a `local_rank`, as one of several processes, `cuda` is the device of that number and `auto` never MPS, which
    has no collectives.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in present.items() if there and (kind != "mps" or local_rank is None))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device = {name!r}: not a device", hint="auto, cpu, cuda, cuda:1 or mps") from None
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if not present.get(device.type, False) or (device.index or 0) >= count:
        raise ConfigError(f"device = {name!r}: not available here", hint="--device auto takes what there is")
    if local_rank is not None and device.type == "cuda":
        if device.index is not None:
            raise ConfigError(f"device = {name!r}: each process takes a device of its own", hint="--device cuda")
        return torch.device("cuda", local_rank)
    return device


SMALL = 20_000_000
"""Parameters below which one CPU thread is fastest: more of them wait for each other longer than they work."""


def set_threads(threads: int, parameters: int, device: torch.device) -> None:
    """Fix torch's threads for this process (CPU only); 0 is one for a small model and torch's own choice otherwise."""
    if device.type == "cpu" and (threads or parameters < SMALL):
        torch.set_num_threads(threads or 1)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 on CUDA, else float32 (bfloat16 costs precision on a CPU, and MPS lacks parts of it)."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, name)


def tensor_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """16 hex digits over the names and bytes of a state dict."""
    state = hashlib.blake2b(digest_size=8)
    for key in sorted(weights):
        state.update(key.encode())
        state.update(weights[key].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
