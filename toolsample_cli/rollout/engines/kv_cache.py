"""What a model remembers while it generates: two layouts behind one interface.

`SharedPrompt` keeps the prompt's keys and values once a task and only the completion's once a sample; attention over
the two parts is merged by their log-sum-exp. `Repeated` copies the prompt to every sample and works for every
causal model of transformers; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, in one forward pass of the prefill: bounds its activations."""

SHARED = "toolsample_shared_prompt"
"""Name of the attention function in transformers' registry."""


def padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded ids and mask, both [B, P]."""
    width = max(map(len, prompts))
    ids_BP = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    mask_BP = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return ids_BP, mask_BP


def prefill_slices(lengths: Sequence[int]) -> list[slice]:
    """Cuts of prompts (in order of length) so that no padded slice holds more than PREFILL_TOKENS."""
    slices, start, width = [], 0, 0
    for i, length in enumerate(lengths):
        wider = max(width, length)
        if i > start and (i - start + 1) * wider > PREFILL_TOKENS:
            slices.append(slice(start, i))
            start, wider = i, length
        width = wider
    return [*slices, slice(start, len(lengths))]


def _forward_prompts(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], pad: int
) -> tuple[list, torch.Tensor, torch.Tensor]:
    """Per layer (keys, values) [B, H, P, D] left-padded to one width, the mask [B, P], and the last logits [B, V]."""
    from transformers import DynamicCache

    width = max(map(len, prompts))
    parts, masks, logits = [], [], []
    for cut in prefill_slices([len(p) for p in prompts]):
        ids_BP, mask_BP = padded(prompts[cut], pad, model.device)
        position_BP = (mask_BP.cumsum(-1) - 1).clamp_(min=0)
        cache = DynamicCache(config=model.config)
        out = model(
            input_ids=ids_BP,
            attention_mask=None if bool(mask_BP.all()) else mask_BP,
            position_ids=position_BP,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        extra = width - ids_BP.shape[1]
        grow = (0, 0, extra, 0)  # on the left of the length axis
        parts.append(
            [
                tuple(torch.nn.functional.pad(getattr(layer, name), grow) for name in ("keys", "values"))
                for layer in cache.layers
            ]
        )
        masks.append(torch.nn.functional.pad(mask_BP, (extra, 0)))
        logits.append(out.logits[:, -1].float())
    layers = [tuple(torch.cat([part[i][j] for part in parts]) for j in (0, 1)) for i in range(len(parts[0]))]
    return layers, torch.cat(masks), torch.cat(logits)


class Repeated:
    """Prompt copied to every sample; transformers' own cache and attention, whatever kind its layers are."""

    shares = False

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], task_R: torch.Tensor, pad: int
    ) -> None:
        from transformers import DynamicCache

        self.model, self.cache = model, DynamicCache(config=model.config)
        ids_BP, mask_BP = padded(prompts, pad, model.device)
        out = model(
            input_ids=ids_BP,
            attention_mask=mask_BP,
            position_ids=(mask_BP.cumsum(-1) - 1).clamp_(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache.batch_select_indices(task_R)
        self.logits_RV = out.logits[:, -1].float()[task_R]
        self.mask_RT = mask_BP[task_R]
        self.position_R = self.mask_RT.sum(-1)

    def step(self, token_R: torch.Tensor) -> torch.Tensor:
        """Feed one token per row; the next logits [R, V]."""
        self.mask_RT = torch.cat([self.mask_RT, self.mask_RT.new_ones(len(token_R), 1)], 1)
        out = self.model(
            input_ids=token_R[:, None],
            attention_mask=self.mask_RT,
            position_ids=self.position_R[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.position_R = self.position_R + 1
        return out.logits[:, -1].float()

    def keep(self, row_K: torch.Tensor) -> None:
        """Go on with these rows only, in this order."""
        self.mask_RT, self.position_R = self.mask_RT[row_K], self.position_R[row_K]
        self.cache.batch_select_indices(row_K)


class SharedPrompt:
    """Prompt once a task, completion once a sample; for decoders whose layers all attend to everything."""

    shares = True

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], task_R: torch.Tensor, pad: int
    ) -> None:
        register()
        self.model = model
        layers, mask_BP, logits_BV = _forward_prompts(model, prompts, pad)
        self.logits_RV = logits_BV[task_R]
        self.task_R = task_R
        self.position_R = mask_BP.sum(-1)[task_R]
        self.layers = [_Layer(keys, values, len(task_R)) for keys, values in layers]
        self.bias_BP = torch.zeros(mask_BP.shape, device=mask_BP.device).masked_fill_(mask_BP == 0, -torch.inf)
        self._arrange()

    def _arrange(self) -> None:
        """Grid [B, G] of row numbers per task (short rows filled with row 0) and each row's place in it."""
        count_B = torch.bincount(self.task_R, minlength=len(self.bias_BP))
        width = int(count_B.max())
        start_B = count_B.cumsum(0) - count_B  # rows of one task stand side by side
        place_R = torch.arange(len(self.task_R), device=self.task_R.device) - start_B[self.task_R]
        self.slot_R = self.task_R * width + place_R
        grid = torch.zeros(len(self.bias_BP) * width, dtype=torch.long, device=self.task_R.device)
        grid[self.slot_R] = torch.arange(len(self.task_R), device=self.task_R.device)
        self.grid_BG = grid.view(-1, width)

    def step(self, token_R: torch.Tensor) -> torch.Tensor:
        """Feed one token per row; the next logits [R, V]."""
        config = self.model.config
        usual, config._attn_implementation = config._attn_implementation, SHARED
        try:
            out = self.model(
                input_ids=token_R[:, None],
                attention_mask=self.bias_BP.new_zeros(1, 1, 1, 1),  # four axes: taken as made, so none is built
                position_ids=self.position_R[:, None],
                past_key_values=_Bridge(self),
                use_cache=True,
                shared_prompt=self,
            )
        finally:
            config._attn_implementation = usual
        self.position_R = self.position_R + 1
        return out.logits[:, -1].float()

    def keep(self, row_K: torch.Tensor) -> None:
        """Go on with these rows only (ascending); prompts are dropped once half of them have no row left."""
        self.task_R, self.position_R = self.task_R[row_K], self.position_R[row_K]
        for layer in self.layers:
            layer.keep_rows(row_K)
        alive_b, renumbered_R = torch.unique(self.task_R, return_inverse=True)
        if 2 * len(alive_b) <= len(self.bias_BP):
            self.task_R, self.bias_BP = renumbered_R, self.bias_BP[alive_b]
            for layer in self.layers:
                layer.keep_tasks(alive_b)
        self._arrange()

    def attend(self, index: int, query_RHD: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention output [R, H, D] of layer `index` for one new token per row, its key and value already stored."""
        layer = self.layers[index]
        rows, heads, depth = query_RHD.shape
        tasks, group = self.grid_BG.shape
        kv = layer.prompt_keys.shape[1]
        query = (query_RHD * scaling).view(rows, kv, heads // kv, depth)
        grid = query[self.grid_BG.view(-1)].view(tasks, group, kv, -1, depth).transpose(1, 2)
        score = _product(grid.reshape(tasks * kv, -1, depth), layer.prompt_keys.flatten(0, 1))
        score = score.view(tasks, kv, -1, score.shape[-1]) + self.bias_BP[:, None, None, :]
        top_p, sum_p, out_p = _partial(score.flatten(0, 1), layer.prompt_values.flatten(0, 1))
        by_row = [
            x.view(tasks, kv, group, -1, x.shape[-1]).transpose(1, 2).flatten(0, 1)[self.slot_R]
            for x in (top_p, sum_p, out_p)
        ]
        keys, values = layer.completion()
        score = _product(query.flatten(0, 1), keys.transpose(1, 2))
        here = [x.view(rows, kv, -1, x.shape[-1]) for x in _partial(score, values)]
        return _merge(by_row, here).to(query_RHD.dtype).reshape(rows, heads, depth)


class _Layer:
    """One layer: prompts [B, H, D, P] and [B, H, P, D], completions [R, H, T, D] in a growing buffer."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: int) -> None:
        self.prompt_keys = keys.transpose(2, 3).contiguous()
        self.prompt_values = values.contiguous()
        _, heads, _, depth = keys.shape
        self.length = 0
        self.keys = keys.new_empty(rows, heads, 16, depth)
        self.values = values.new_empty(rows, heads, 16, values.shape[-1])

    def append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store one token per row, each [R, H, 1, D]."""
        if self.length == self.keys.shape[2]:
            self.keys, self.values = (torch.cat([x, torch.empty_like(x)], 2) for x in (self.keys, self.values))
        self.keys[:, :, self.length] = key[:, :, 0]
        self.values[:, :, self.length] = value[:, :, 0]
        self.length += 1

    def completion(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values so far as views [R * H, T, D]."""
        return self.keys.flatten(0, 1)[:, : self.length], self.values.flatten(0, 1)[:, : self.length]

    def keep_rows(self, row_K: torch.Tensor) -> None:
        self.keys, self.values = self.keys[row_K], self.values[row_K]

    def keep_tasks(self, task_K: torch.Tensor) -> None:
        self.prompt_keys, self.prompt_values = self.prompt_keys[task_K], self.prompt_values[task_K]


class _Bridge:
    """What a model of transformers sees as its cache: stores the new keys and values, hands them back alone."""

    is_compileable = False
    is_sliding = (False,)

    def __init__(self, state: SharedPrompt) -> None:
        self.state = state

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: object, **__: object) -> tuple:
        self.state.layers[layer_idx].append(key, value)
        return key, value

    def get_seq_length(self, *_: object) -> int:
        return self.state.bias_BP.shape[1] + self.state.layers[0].length


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched product with float32 result."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def _partial(score: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax over one part of the positions: (maximum, sum, unnormalised output), float32."""
    top = score.amax(-1, keepdim=True)
    weight = (score - top).exp_()
    return top, weight.sum(-1, keepdim=True), _product(weight.to(value.dtype), value)


def _merge(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> torch.Tensor:
    top = torch.maximum(one[0], two[0])
    a, b = (one[0] - top).exp(), (two[0] - top).exp()
    return (a * one[2] + b * two[2]) / (a * one[1] + b * two[1])


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    del key, value, attention_mask
    refused = [k for k in ("softcap", "s_aux", "sliding_window", "position_bias") if options.get(k) is not None]
    if refused:
        raise NotImplementedError(f"attention with {', '.join(refused)}")
    state: SharedPrompt = options["shared_prompt"]
    out = state.attend(module.layer_idx, query[:, :, 0], options.get("scaling") or query.shape[-1] ** -0.5)
    return out[:, None], None


def register() -> None:
    """Make the attention function known to transformers (again is harmless)."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(SHARED, _attention)
    AttentionMaskInterface.register(SHARED, lambda *_, **__: None)
