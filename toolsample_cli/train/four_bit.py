"""The frozen base of an adapter in 4 bits (QLoRA, Dettmers et al. 2023): NF4 by bitsandbytes, unpacked for merging.

Merged weights are the unpacked base plus the adapter, which is the policy that was trained, not the unpacked base's
original: rollouts of the checkpoint and the trainer agree about every logprob. A packed model stays in training mode:
on a CPU bitsandbytes takes another kernel in evaluation, which is less exact and has no gradient.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from toolsample_cli.errors import ConfigError
from toolsample_cli.train.distributed import World


def loading(settings: Any, dtype: torch.dtype, world: World) -> dict[str, Any]:
    """What `from_pretrained` needs to pack a model's projections while it reads them, head and embedding left out.

    `settings` is the model's config. ConfigError where packing would not do what is expected of it.
    """
    from transformers import BitsAndBytesConfig

    if world.size > 1:
        raise ConfigError("lora_4bit: a packed base cannot be sharded", hint="train on one device, or without it")
    _refuse_unfit(settings)
    quiet()
    packing = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": packing, "device_map": {"": world.device}}


def _refuse_unfit(settings: Any) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings)
    if any(type(module).__name__ == "Conv1D" for module in model.modules()):
        raise ConfigError(
            f"lora_4bit: {settings.model_type} keeps its weights transposed, which bitsandbytes would mix up",
            hint="train without it",
        )
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    outside = {id(parameter) for end in ends for parameter in end.parameters()}
    inside = [parameter for parameter in model.parameters() if id(parameter) not in outside]
    linear = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    packed = sum(p.numel() for p in inside if id(p) in linear) / max(sum(p.numel() for p in inside), 1)
    if packed < 0.5:
        raise ConfigError(
            f"lora_4bit packs linear layers, which hold {packed:.0%} of the weights of {settings.model_type} "
            "(experts stored together are none)",
            hint="train without it",
        )


def quiet() -> None:
    """Say before the first import of bitsandbytes (peft imports it too) that its wish for a faster kernel is noted."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def forget(model: Any) -> None:
    """Let transformers save what it is given: the checkpoint is merged, so it is not packed."""
    model.hf_quantizer = None
    del model.config.quantization_config


def is_packed(parameter: torch.Tensor) -> bool:
    """Whether a weight is packed."""
    return hasattr(parameter, "quant_state")


def numel(parameter: Any) -> int:
    """How many numbers a weight stands for, packed or not."""
    return parameter.quant_state.shape.numel() if is_packed(parameter) else parameter.numel()


def unpacked(parameter: Any) -> torch.Tensor:
    """The weight that a packed one stands for."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state)
