"""A LoRA adapter in the files that peft writes, and the same addition made by hand, which engines are held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

RANK, ALPHA = 20, 30.0
"""A rank that vLLM has to round up to one it knows."""
TARGETS = ("q_proj", "v_proj", "down_proj")


def deltas(model: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Name of an adapted layer -> (A [rank, in], B [out, rank]), random but always the same."""
    generator = torch.Generator().manual_seed(5)
    shapes = {n: m.weight.shape for n, m in model.named_modules() if n.rpartition(".")[2] in TARGETS}
    return {
        name: (
            torch.randn(RANK, columns, generator=generator) * 0.2,
            torch.randn(rows, RANK, generator=generator) * 0.2,
        )
        for name, (rows, columns) in shapes.items()
    }


def write_adapter(folder: Path, model: Any) -> Path:
    """adapter_config.json and adapter_model.safetensors for this model."""
    folder.mkdir(parents=True)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": list(TARGETS)}))
    tensors = {}
    for name, pair in deltas(model).items():
        for letter, tensor in zip("AB", pair, strict=True):
            tensors[f"base_model.model.{name}.lora_{letter}.weight"] = tensor
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merge_by_hand(model: Any) -> None:
    """Add alpha / rank * B A to the adapted weights, in place."""
    with torch.no_grad():
        for name, (a, b) in deltas(model).items():
            model.get_submodule(name).weight += ALPHA / RANK * (b @ a)
