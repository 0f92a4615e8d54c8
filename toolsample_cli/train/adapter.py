"""Low-rank adapters by peft: put one on a model, read it back, write it, and merge it without touching the model.

The checkpoint keeps the adapter in `adapter/` in peft's own form (vLLM takes it as it is; one of a packed base
belongs to that base unpacked) and the name of its base in the trainer state; the merged weights are computed beside
the model, so that training goes on from exact numbers.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError, DataError, MissingDependency
from toolsample_cli.train import four_bit
from toolsample_cli.train.distributed import whole

FOLDER = "adapter"


def check_adapter(config: TrainConfig) -> None:
    """Refuse settings of an adapter that cannot work, and missing packages, before anything is read."""
    if config.lora_4bit and not config.lora_rank:
        raise ConfigError("lora_4bit packs the base of an adapter, and there is none", hint="add --lora-rank 16")
    if config.lora_4bit and not config.merge:
        raise ConfigError(
            "lora_4bit: the adapter alone would be served on the unpacked base, which is another policy",
            hint="leave --no-merge out",
        )
    plain = TrainConfig()
    for name in () if config.lora_rank else ("lora_targets", "lora_alpha", "merge"):
        if getattr(config, name) != getattr(plain, name):
            raise ConfigError(f"{name} is a setting of an adapter, and there is none", hint="add --lora-rank 16")
    if config.lora_rank and not config.lora_alpha:
        raise ConfigError("lora_alpha = 0: the adapter would change nothing", hint="32 is usual")
    if config.lora_rank and "lm_head" in config.lora_targets.split(","):
        raise ConfigError("lora_targets: the head cannot be adapted", hint="leave lm_head out")
    flag, extra = ("--lora-4bit", "qlora") if config.lora_4bit else ("--lora-rank", "peft")
    needed = ("peft", "accelerate", "bitsandbytes") if config.lora_4bit else ("peft",) if config.lora_rank else ()
    for package in needed:
        if find_spec(package) is None:
            raise MissingDependency(package, needed_for=flag, install=f'pip install "toolsample[{extra}]"')


def attach(model: Any, config: TrainConfig, saved: Path | None) -> Any:
    """The model with an adapter: the one in `saved` (a checkpoint), else a fresh one that changes nothing yet."""
    four_bit.quiet()
    import peft

    targets, linear = config.lora_targets, _linear_names(model)
    asked = linear if targets == "all-linear" else targets.split(",")
    if saved is None:
        settings = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            target_modules=asked,
            task_type="CAUSAL_LM",
        )
        try:
            made = peft.get_peft_model(model, settings)
        except ValueError as error:
            raise ConfigError(
                f"lora_targets = {targets!r}: {str(error).splitlines()[0]}",
                hint=f"the linear ones are {', '.join(linear)}",
            ) from error
        _refuse_others(made, linear)
        return made
    found = peft.LoraConfig.from_pretrained(str(saved / FOLDER))
    if (found.r, float(found.lora_alpha)) != (config.lora_rank, config.lora_alpha):
        raise ConfigError(
            f"{saved / FOLDER}: an adapter of rank {found.r} and alpha {found.lora_alpha:g}, "
            f"asked for rank {config.lora_rank} and alpha {config.lora_alpha:g}"
        )
    if set(found.target_modules) != set(asked):
        raise ConfigError(
            f"{saved / FOLDER}: an adapter on {', '.join(sorted(found.target_modules))}, "
            f"asked for {', '.join(sorted(asked))}"
        )
    try:
        return peft.PeftModel.from_pretrained(model, str(saved / FOLDER), is_trainable=True)
    except (ValueError, OSError, RuntimeError) as error:
        raise DataError(f"{saved / FOLDER}: cannot be loaded: {str(error).splitlines()[0]}") from error


def _linear_names(model: Any) -> list[str]:
    """Last names of all linear layers but the head. (peft's own `all-linear` also takes experts stored together.)"""
    head = model.get_output_embeddings()
    linear = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    if not linear:
        raise ConfigError(f"lora_rank: {type(model).__name__} has no linear layers", hint="train all weights")
    return sorted({name.rpartition(".")[2] for name in linear})


def _refuse_others(model: Any, linear: list[str]) -> None:
    # merging adds a product to a matrix; anything else would be left out of the checkpoint without a word
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and not isinstance(getattr(module, "base_layer", None), torch.nn.Linear):
            name = name.removeprefix("base_model.model.")
            raise ConfigError(
                f"lora_targets: {name} is not a linear layer", hint=f"the linear ones are {', '.join(linear)}"
            )


def is_adapted(model: Any) -> bool:
    """Whether a model carries an adapter."""
    return hasattr(model, "peft_config")


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The adapter's own weights under peft's names, whole and on the CPU (a collective call when sharded)."""
    return {
        name.replace(".default.", "."): whole(parameter)
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }


def write_adapter(model: Any, tensors: dict[str, torch.Tensor], folder: Path, base: str) -> None:
    """`adapter_model.safetensors` and `adapter_config.json` as peft writes them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    settings = model.peft_config["default"]
    settings.base_model_name_or_path = base
    settings.inference_mode, before = True, settings.inference_mode
    settings.save_pretrained(str(folder))
    settings.inference_mode = before
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "adapter_model.safetensors")


def merged(model: Any) -> dict[str, torch.Tensor]:
    """Weights of the base with the adapter added, under the base's names (a collective call when sharded)."""
    inner = model.get_base_model()
    adapted = {name: module for name, module in inner.named_modules() if hasattr(module, "lora_A")}
    kept = dict(inner.named_parameters()) | dict(inner.named_buffers())
    weights = {}
    for name, tensor in inner.state_dict().items():
        if ".lora_" in name or name not in kept:
            continue
        owner, _, last = name.rpartition(".base_layer.")
        full = whole(four_bit.unpacked(kept[name]) if four_bit.is_packed(kept[name]) else tensor)
        if last == "weight" and owner in adapted:
            module = adapted[owner]
            low, high = (whole(part["default"].weight) for part in (module.lora_A, module.lora_B))
            full = full + (high @ low) * module.scaling["default"]
        weights[name.replace(".base_layer.", ".")] = full
    return weights
