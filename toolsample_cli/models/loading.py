"""A causal model from a folder or the hub: its weights, adapter, device, number type, and what identifies them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from toolsample_cli.errors import ConfigError, DataError, MissingDependency, StageFailure
from toolsample_cli.models.digests import folder_digest
from toolsample_cli.models.out_of_memory import ran_out, within_memory

SMALLER = "take dtype = bfloat16, a smaller model, or a device with more memory"
"""What helps when the weights alone do not fit."""


def load_model(model: str, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal model for inference; DataError when it cannot be loaded. Safetensors only, no remote code."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, use_safetensors=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if ran_out(error):
            raise StageFailure(f"out of memory while loading {model}: {first}", hint=SMALLER) from error
        raise DataError(
            f"{model}: no causal model could be loaded: {first}",
            hint="expected config.json and safetensors weights, or a hub id while the hub can be reached",
        ) from error
    with within_memory(f"moving {model} to {device}", SMALLER):
        return loaded.eval().requires_grad_(False).to(device)


def with_adapter(model: Any, adapter: str) -> Any:
    """The model with a LoRA adapter merged into its weights; DataError when the adapter cannot be loaded."""
    if importlib.util.find_spec("peft") is None:
        raise MissingDependency("peft", needed_for="--adapter", install="pip install 'toolsample[peft]'")
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload().eval().requires_grad_(False)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise DataError(f"{adapter}: no adapter of this model: {str(error).splitlines()[0]}") from error


def pick_device(name: str) -> torch.device:
    """`auto`: CUDA, then MPS, then CPU; ConfigError when the one asked for is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, present in there.items() if present))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device = {name!r}: not a device", hint="auto, cpu, cuda, cuda:1 or mps") from None
    if not there.get(device.type, False):
        raise ConfigError(f"device = {name!r}: not available here", hint="--device auto takes what there is")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: float32 on CPU (bfloat16 costs precision there), bfloat16 elsewhere."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return getattr(torch, name)


def model_digest(model: str, loaded: Any) -> str:
    """The content of a local folder as 16 hex digits, or the hub's revision."""
    return folder_digest(Path(model)) or str(getattr(loaded.config, "_commit_hash", None) or model)


def tensor_digest(weights: Mapping[str, torch.Tensor]) -> str:
    state = hashlib.blake2b(digest_size=8)
    for key in sorted(weights):
        state.update(key.encode())
        state.update(weights[key].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
