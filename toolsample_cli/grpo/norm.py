"""RMS normalisation with half the passes over memory: small models spend as long on it as on a projection.

transformers writes it out in six operations, each with a gradient of its own. Here the gradient is one closed form,
and only the input and one number a row are kept for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class RootMeanSquare(torch.autograd.Function):
    """x [..., H] and weight [H] to weight * x / sqrt(mean(x^2) + epsilon), float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_H: torch.Tensor, epsilon: float) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight_H, scale)
        return (x * scale).mul_(weight_H)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, weight_H, scale = ctx.saved_tensors
        unit = x * scale
        by_unit = grad * unit
        grad_weight_H = by_unit.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        along = (by_unit @ weight_H).div_(-x.shape[-1]).unsqueeze(-1)
        return torch.addcmul(grad * weight_H, unit, along).mul_(scale), grad_weight_H, None


def lighten(model: torch.nn.Module) -> int:
    """Let a model's RMS norms compute this way where they mean this (tried on a probe); returns how many do."""
    count = 0
    for module in model.modules():
        epsilon, weight = getattr(module, "variance_epsilon", None), getattr(module, "weight", None)
        if epsilon is None or weight is None or not type(module).__name__.endswith("RMSNorm"):
            continue
        with torch.no_grad():
            probe = torch.linspace(-1, 2, len(weight), device=weight.device)[None]
            alike = torch.allclose(module(probe), RootMeanSquare.apply(probe, weight, epsilon), rtol=1e-5)
        if alike:
            module.forward = partial(_forward, module, module.forward)
            count += 1
    return count


def _forward(module: Any, original: Any, x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32 or module.weight.dtype != torch.float32:
        return original(x)
    return RootMeanSquare.apply(x, module.weight, module.variance_epsilon)
