"""The frozen base of an adapter in 4 bits (QLoRA, Dettmers et al. 2023): NF4 by bitsandbytes, unpacked for merging.

Merged weights are the unpacked base plus the adapter, which is the policy that was trained, not the unpacked base's
original: rollouts of the checkpoint and the trainer agree about every logprob.
"""

from __future__ import annotations

from typing import Any

import torch

from toolsample_cli.errors import ConfigError, MissingDependency
from toolsample_cli.grpo.world import World


def loading(dtype: torch.dtype, world: World) -> dict[str, Any]:
    """What `from_pretrained` needs to pack a model's projections while it reads them, head and embedding left out."""
    if world.size > 1:
        raise ConfigError(
            "lora_4bit: a packed base cannot be sharded", hint="train on one device, or without lora_4bit"
        )
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "bitsandbytes", needed_for="--lora-4bit", install='pip install "toolsample[qlora]"'
        ) from None
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": settings, "device_map": {"": world.device}}


def forget(model: Any) -> None:
    """Let transformers save what it is given: the checkpoint is merged, so it is not packed."""
    model.hf_quantizer = None
    del model.config.quantization_config


def is_packed(parameter: torch.Tensor) -> bool:
    """Whether a weight is packed."""
    return hasattr(parameter, "quant_state")


def unpacked(parameter: Any) -> torch.Tensor:
    """The weight that a packed one stands for."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state)
