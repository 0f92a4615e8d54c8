"""Attention over a packed micro-batch: each completion sees its group's prompt and itself, nothing else.

On the CPU by segment with torch's fused kernel, no mask and no pair computed that is not seen; one FlexAttention call
from the same table on CUDA. Registered with transformers as `toolsample_segments`; models whose layers pass keyword
arguments through to the attention function can use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from toolsample_cli.errors import ConfigError
from toolsample_cli.train.batch import Segments

NAME = "toolsample_segments"


def register() -> str:
    """Make the function known to transformers and return its name for `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, segment_attention)
    return NAME


def segment_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    segments: Segments | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature; query [1, A, T, D], key and value [1, K, T, D], result [1, T, A, D]."""
    if segments is None:
        raise ConfigError(
            f"{type(module).__name__} does not hand the segment table to its attention",
            hint="train with --layout padded",
        )
    if sliding_window and segments.longest > sliding_window:
        raise ConfigError(
            f"a sequence of {segments.longest} tokens is longer than the model's sliding window of {sliding_window}",
            hint="train with --layout padded",
        )
    if dropout:
        raise ConfigError("the model drops out attention weights", hint="train with --layout padded")
    segments.seen += 1
    if query.device.type == "cuda":
        return _flex(query, key, value, segments, scaling), None
    if query.device.type != "cpu":
        mask = segments.cache.setdefault("visible", visible(segments).to(query.device))
        out = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2), None
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    return SegmentAttention.apply(query.to(kind), key.to(kind), value.to(kind), segments, scaling), None


class SegmentAttention(torch.autograd.Function):
    """Query [1, A, T, D], key and value [1, K, T, D] to [1, T, A, D] on the CPU, A = K times R query heads a key head.

    Prompts and completions attend to themselves, and all completions of a group at once to their prompt: causal
    squares and one full rectangle, which the kernel handles without a mask. The two softmaxes of a completion are
    joined by their logsumexp. The kernel's backward needs only the joint output and logsumexp, so it gives each
    part's exact gradient. Saved: inputs, output and T x A logsumexps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        segments: Segments,
        scaling: float | None,
    ) -> torch.Tensor:
        (_, heads, slots, width), shared = query.shape, key.shape[1]
        rest = heads // shared
        q_KRTD = query.reshape(shared, rest, slots, width)
        k_KRTD, v_KRTD = (x.transpose(0, 1).expand(shared, rest, slots, width) for x in (key, value))
        out_KRTD = query.new_empty(slots, shared, rest, width).permute(1, 2, 0, 3)
        exact = torch.promote_types(query.dtype, torch.float32)
        lse_KRT = query.new_empty(shared, slots, rest, dtype=exact).transpose(1, 2)

        def seen(rows: slice, columns: slice, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
            q, k, v = q_KRTD[:, :, rows], k_KRTD[:, :, columns], v_KRTD[:, :, columns]
            return _KERNEL(q, k, v, 0.0, causal, scale=scaling)

        for parts, prompt, completions in _spans(segments):
            for part in parts:
                out_KRTD[:, :, part], lse_KRT[:, :, part] = seen(part, part, True)
            if completions.stop > completions.start:
                out, lse = seen(completions, prompt, False)
                own_lse = lse_KRT[:, :, completions]
                share = torch.sigmoid(lse - own_lse)  # of the prompt in the joint softmax
                out_KRTD[:, :, completions].lerp_(out, share[..., None].to(out.dtype))
                lse_KRT[:, :, completions] = torch.logaddexp(own_lse, lse)
        ctx.save_for_backward(q_KRTD, k_KRTD, v_KRTD, out_KRTD, lse_KRT)
        ctx.segments, ctx.scaling = segments, scaling
        return out_KRTD.permute(2, 0, 1, 3).reshape(1, slots, heads, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        q_KRTD, k_KRTD, v_KRTD, out_KRTD, lse_KRT = ctx.saved_tensors
        shared, rest, slots, width = q_KRTD.shape
        grad_KRTD = grad.reshape(slots, shared, rest, width).permute(1, 2, 0, 3)
        dq_KRTD = grad.new_empty(slots, shared, rest, width).permute(1, 2, 0, 3)
        dk_KTD, dv_KTD = (grad.new_empty(slots, shared, width).transpose(0, 1) for _ in "kv")

        def gradients(rows: slice, columns: slice, causal: bool) -> tuple[torch.Tensor, ...]:
            by_row = (x[:, :, rows] for x in (out_KRTD, lse_KRT))
            q, k, v = q_KRTD[:, :, rows], k_KRTD[:, :, columns], v_KRTD[:, :, columns]
            dq, dk, dv = _KERNEL_BACKWARD(grad_KRTD[:, :, rows], q, k, v, *by_row, 0.0, causal, scale=ctx.scaling)
            return dq, dk, dv

        for parts, prompt, completions in _spans(ctx.segments):
            for part in parts:
                dq_KRTD[:, :, part], dk, dv = gradients(part, part, True)
                torch.sum(dk, 1, out=dk_KTD[:, part])
                torch.sum(dv, 1, out=dv_KTD[:, part])
            if completions.stop > completions.start:
                dq, dk, dv = gradients(completions, prompt, False)
                dq_KRTD[:, :, completions] += dq
                dk_KTD[:, prompt] += dk.sum(1)
                dv_KTD[:, prompt] += dv.sum(1)
        return dq_KRTD.reshape(1, shared * rest, slots, width), dk_KTD[None], dv_KTD[None], None, None


_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _spans(segments: Segments) -> Iterator[tuple[list[slice], slice, slice]]:
    """Slots of every group: its parts (prompt first), the prompt, all completions."""
    start = 0
    for prompt, sizes in segments.groups:
        ends = list(itertools.accumulate((prompt, *sizes), initial=start))
        parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
        yield parts, parts[0], slice(parts[0].stop, ends[-1])
        start = ends[-1]


def visible(segments: Segments) -> torch.Tensor:
    """The plain statement of who sees whom, [T, T] bool; the oracle of the fast ways."""
    group, part = table(segments)
    slot = torch.arange(len(group))
    same_group = group[:, None] == group[None, :]
    return same_group & (slot[None, :] <= slot[:, None]) & ((part[None, :] == 0) | (part[:, None] == part[None, :]))


def table(segments: Segments) -> tuple[torch.Tensor, torch.Tensor]:
    """Group number and part number (0 the prompt, then 1, 2, ...) of every slot, [T] each."""
    group, part = [], []
    for number, (prompt, parts) in enumerate(segments.groups):
        for index, size in enumerate((prompt, *parts)):
            group.append(torch.full((size,), number))
            part.append(torch.full((size,), index))
    return torch.cat(group), torch.cat(part)


def _flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float | None
) -> torch.Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if "flex" not in segments.cache:
        group, part = (x.to(query.device) for x in table(segments))

        def seen(_b: Any, _h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return (group[q] == group[k]) & (k <= q) & ((part[k] == 0) | (part[q] == part[k]))

        size = len(group)
        segments.cache["flex"] = create_block_mask(seen, None, None, size, size, device=query.device)
    if "compiled" not in _COMPILED:
        _COMPILED["compiled"] = torch.compile(flex_attention, dynamic=True)
    mask = segments.cache["flex"]
    out = _COMPILED["compiled"](
        query, key, value, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2).contiguous()


_COMPILED: dict[str, Any] = {}
