"""Loads a model for training and makes its optimizer: attention, types of weights, sharding, recomputation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError
from toolsample_cli.models.loading import pick_dtype, read_config, read_weights
from toolsample_cli.train import adapter, attention, checkpoint, four_bit, fused_ops
from toolsample_cli.train.distributed import World, shard
from toolsample_cli.train.policy import Policy, supports_packing
from toolsample_cli.train.schedule import initial_rate


@dataclass(frozen=True)
class Loaded:
    """A transformers model with float32 weights; `packed` says which layout its attention was set up for."""

    model: Any
    packed: bool
    dtype: torch.dtype
    saved_dtype: torch.dtype

    @property
    def vocabulary(self) -> int:
        """Rows of its embedding."""
        return self.model.get_input_embeddings().num_embeddings

    @property
    def parameters(self) -> int:
        """How many weights it has, those in 4 bits counted singly."""
        return sum(map(four_bit.numel, self.model.parameters()))

    @property
    def longest(self) -> int:
        """Most positions it was made for; 0 when it has no limit."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", 0) or 0)


def load_policy(model: str, config: TrainConfig, world: World, base: str | None = None) -> Loaded:
    """Read a model folder (safetensors only) or hub id. DataError when there is none or it cannot be read.

    With lora_rank the adapter in `model` is put on `base`, or a fresh one on `model` itself.
    """
    if not config.lora_rank:
        return load_base(model, config, world)
    if base is not None and (Path(model) / adapter.FOLDER).is_dir():
        loaded, saved = load_base(base, config, world), Path(model)
    else:
        loaded, saved = load_base(model, config, world), None
    return replace(loaded, model=adapter.attach(loaded.model, config, saved))


def load_base(model: str, config: TrainConfig, world: World) -> Loaded:
    """`load_policy` without an adapter."""
    dtype = pick_dtype(config.dtype, world.device)
    settings = read_config(model)
    _refuse_quantised(model, settings)
    packed = _packed(settings, config)
    loaded = read_weights(
        model,
        dtype if config.lora_4bit else torch.float32,
        attn_implementation=attention.register() if packed else "sdpa",
        **(four_bit.loading(settings, dtype, world) if config.lora_4bit else {}),
    )
    if config.lora_4bit:
        four_bit.forget(loaded)
    loaded.config.use_cache = False
    fused_ops.lighten(loaded)
    if config.gradient_checkpointing:
        loaded.gradient_checkpointing_enable({"use_reentrant": False})
    return Loaded(loaded, packed, dtype, dtype)


def _refuse_quantised(model: str, settings: Any) -> None:
    if getattr(settings, "quantization_config", None):
        raise ConfigError(
            f"{model}: its weights are quantised, which train neither updates nor puts an adapter on",
            hint="give the unquantised model; --lora-4bit packs it while it is read",
        )


def _packed(settings: Any, config: TrainConfig) -> bool:
    able = supports_packing(settings)
    if config.layout == "packed" and not able:
        raise ConfigError(
            f"{settings.model_type} has layers that are not attention, so rollouts cannot be packed",
            hint="use --layout padded",
        )
    return able and config.layout != "padded"


def make_optimizer(policy: Policy, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; weight decay on matrices only."""
    decayed = [p for p in policy.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in policy.parameters() if p.requires_grad and p.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=initial_rate(config), fused=True)


def make_policy(loaded: Loaded, source: str, temperature: float, world: World) -> Policy:
    """The policy on its device, sharded when there are several ranks, with master weights where `source` has them."""
    policy = Policy(loaded.model, temperature=temperature, dtype=loaded.dtype)
    if Path(source).is_dir() and not adapter.is_adapted(loaded.model):
        checkpoint.load_master(Path(source), policy)
    if not any(map(four_bit.is_packed, policy.parameters())):  # those were read to their device
        policy.to(world.device)
    if world.size > 1:
        shard(policy, layers_of(policy), world, loaded.dtype)
    return policy


def layers_of(policy: Policy) -> list[torch.nn.Module]:
    """The decoder layers, the units of sharding."""
    decoder = policy.inner.get_decoder()
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise ConfigError(f"{json.dumps(type(decoder).__name__)}: no list of layers to shard")
    return list(layers)
