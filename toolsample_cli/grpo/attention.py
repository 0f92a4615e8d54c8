"""Attention over a packed micro-batch: each completion sees its group's prompt and itself, nothing else.

Per segment with torch's fused kernel on CPU, so that cost is that of the tokens that may see each other; one
FlexAttention call from the same table on CUDA. Registered with transformers as `toolsample_segments`; models whose
layers pass keyword arguments through to the attention function can use it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from toolsample_cli.errors import ConfigError
from toolsample_cli.grpo.batch import Segments

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
    segments.seen += 1
    heads = query.shape[1] // key.shape[1]
    if query.device.type == "cuda":
        return _flex(query, key, value, segments, scaling), None
    if heads > 1:
        key, value = (x.repeat_interleave(heads, dim=1) for x in (key, value))
    return _by_segment(query, key, value, segments, scaling, dropout), None


def _by_segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    sizes = [size for prompt, parts in segments.groups for size in (prompt, *parts)]
    queries, keys, values = (x.split(sizes, dim=2) for x in (query, key, value))
    options = {"scale": scaling, "dropout_p": dropout}
    out, at = [], 0
    for length, parts in segments.groups:
        q_P, k_P, v_P = queries[at], keys[at], values[at]
        prompt_out = None
        for index in range(at + 1, at + 1 + len(parts)):
            size = parts[index - at - 1]
            k = torch.cat((k_P, keys[index]), dim=2)
            v = torch.cat((v_P, values[index]), dim=2)
            if size >= length or len(parts) == 1:  # cheaper to run the prompt's queries along than to read a mask
                both = F.scaled_dot_product_attention(
                    torch.cat((q_P, queries[index]), dim=2), k, v, is_causal=True, **options
                )
                prompt_out = both[:, :, :length]
                out.append(both[:, :, length:])
            else:
                mask = _late_mask(segments, size, length, query)
                out.append(F.scaled_dot_product_attention(queries[index], k, v, attn_mask=mask, **options))
        if prompt_out is None:
            prompt_out = F.scaled_dot_product_attention(q_P, k_P, v_P, is_causal=True, **options)
        out.insert(len(out) - len(parts), prompt_out)
        at += 1 + len(parts)
    return torch.cat(out, dim=2).transpose(1, 2)


def _late_mask(segments: Segments, size: int, length: int, like: torch.Tensor) -> torch.Tensor:
    # all masks of a pass are windows on one matrix: row i sees the columns up to `widest + i`
    if "mask" not in segments.cache:
        late = [(p, n) for p, parts in segments.groups for n in parts if n < p]
        tall, widest = max(n for _, n in late), max(p for p, _ in late)
        mask = torch.full((tall, widest + tall), float("-inf"), dtype=like.dtype, device=like.device)
        segments.cache["mask"] = (mask.triu(widest + 1), widest)
    mask, widest = segments.cache["mask"]
    return mask[:size, widest - length : widest + size]


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
