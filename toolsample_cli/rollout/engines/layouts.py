"""Which layout a model gets: the shared prompt where that gives the model's own logits, else one prompt per sample."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from toolsample_cli.models.out_of_memory import ran_out
from toolsample_cli.rollout.engines.kv_cache import Repeated, SharedPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MISFITS = (NotImplementedError, KeyError, TypeError, AttributeError, RuntimeError)
"""What a model raises whose attention or cache is not as the shared-prompt layout takes it."""


def choose_layout(model: PreTrainedModel, pad: int) -> type[Repeated] | type[SharedPrompt]:
    """The layout for this model; the slower one is named on stderr with the reason."""
    why = misfit(model, pad)
    if why is None:
        return SharedPrompt
    print(f"rollout: {type(model).__name__} runs the slower layout, one prompt per sample: {why}", file=sys.stderr)
    return Repeated


def misfit(model: PreTrainedModel, pad: int) -> str | None:
    """Why the shared-prompt layout does not fit, tried once on a few tokens; None when it does.

    Running out of memory and a device that failed are no misfit: they are raised.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"layers of kind {', '.join(sorted(kinds))}"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention cannot be replaced"
    prompts = [[1, 2, 3], [3, 2, 1, 2, 3]]
    task_R = torch.tensor([0, 0, 1], device=model.device)
    token_R = torch.tensor([1, 2, 3], device=model.device)
    with torch.inference_mode():
        plain = Repeated(model, prompts, task_R, pad).step(token_R)
        try:
            ours = SharedPrompt(model, prompts, task_R, pad).step(token_R)
        except MISFITS as error:
            # torch tells shapes that do not fit by a plain RuntimeError; its subclasses mean other things
            if ran_out(error) or type(error) not in MISFITS:
                raise
            first = (str(error).strip() or "no message").splitlines()[0]
            return f"{type(error).__name__}: {first}"
    allowed = (1e-3 if model.dtype == torch.float32 else 0.1) * float(plain.abs().max())
    gap = float((ours - plain).abs().max())
    return None if gap <= allowed else f"its logits differ by {gap:.3g}"
