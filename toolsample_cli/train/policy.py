"""A causal language model as a function from a micro-batch to the logprob (and entropy) of each scored token.

Only scored positions pass the head. Statistics are float32 whatever the weights are. Above `KEEP` logits the head
runs in chunks and recomputes them in the backward pass, so memory does not grow with vocabulary times tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from toolsample_cli.errors import ConfigError
from toolsample_cli.train.batch import Pack

KEEP = 1 << 25
"""Logits kept for the backward pass (128 MB of float32); more are recomputed chunk by chunk."""

CHUNK = 1 << 23
"""Logits of one chunk."""

HOT = 1 << 18
"""Logits worked on at a time where they are kept and no GPU needs many at once: 1 MB stays in a core's cache."""

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})


class Policy(torch.nn.Module):
    """`model` (transformers, or wrapped by peft) with the temperature that the rollouts were sampled at."""

    def __init__(self, model: torch.nn.Module, *, temperature: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = dtype
        config = self.inner.config.get_text_config()
        self.softcap = getattr(config, "final_logit_softcapping", None)
        # Granite divides its logits, Cohere multiplies them; both are a temperature
        scale = (getattr(config, "logits_scaling", None) or 1.0) / (getattr(config, "logit_scale", None) or 1.0)
        self.temperature = temperature * scale

    @property
    def inner(self) -> Any:
        """The transformers model itself, whose attributes its own class decides."""
        model: Any = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def forward(self, pack: Pack, *, entropy: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`logp_N` and `entropy_N` (None unless asked for), float32, both with gradient."""
        device = pack.ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16):
            hidden_BTH = self._hidden(pack)
            hidden_NH = hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, pack.source_N)
            return self._score(hidden_NH, pack.tokens.target_N, entropy)

    def _hidden(self, pack: Pack) -> torch.Tensor:
        body = self.inner.get_decoder()
        if pack.segments is None:
            out = body(input_ids=pack.ids, attention_mask=pack.mask, position_ids=pack.positions, use_cache=False)
            return out.last_hidden_state
        out = body(input_ids=pack.ids, position_ids=pack.positions, use_cache=False, segments=pack.segments)
        if not pack.segments.seen:
            raise ConfigError(
                f"{type(self.inner).__name__} does not use the registered attention", hint="train with --layout padded"
            )
        return out.last_hidden_state

    def _score(
        self, hidden_NH: torch.Tensor, target_N: torch.Tensor, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        head = self.inner.get_output_embeddings()
        if type(head) is not torch.nn.Linear or head.bias is not None or self.softcap:
            logits_NV = head(hidden_NH).float()
            if self.softcap:
                logits_NV = torch.tanh(logits_NV / self.softcap) * self.softcap
            return _plain(logits_NV / self.temperature, target_N, entropy)
        weight_VH = head.weight
        if self.compute_dtype != weight_VH.dtype and self.compute_dtype == torch.bfloat16:
            hidden_NH, weight_VH = hidden_NH.to(torch.bfloat16), weight_VH.to(torch.bfloat16)
        elif hidden_NH.dtype != weight_VH.dtype:
            hidden_NH = hidden_NH.to(weight_VH.dtype)
        logp_N, entropy_N = TokenScores.apply(hidden_NH, weight_VH, target_N, self.temperature, entropy)
        return logp_N, entropy_N if entropy else None


def supports_packing(config: Any) -> bool:
    """Whether every layer is attention: recurrent and linear-attention layers would mix packed rollouts."""
    text = config.get_text_config()
    layers = getattr(text, "layer_types", None) or []
    recurrent = ("mamba", "rwkv", "recurrent", "jamba", "zamba", "bamba", "falcon_h1", "lfm", "kimi_linear")
    return set(layers) <= ATTENTION_LAYERS and not any(word in text.model_type for word in recurrent)


def _plain(logits_NV: torch.Tensor, target_N: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    logp_NV = logits_NV.log_softmax(-1)
    entropy_N = -(logp_NV.exp() * logp_NV).sum(-1) if entropy else None
    return logp_NV.gather(1, target_N[:, None])[:, 0], entropy_N


class TokenScores(torch.autograd.Function):
    """hidden [N, H] and head weight [V, H] to logprob and entropy of each target, with at most KEEP logits in memory.

    The gradient of a logprob in the logits is onehot - p, that of the entropy -p (log p + entropy). Where the logits
    are kept it is kept as (p - onehot) times the row's sum of exponentials, so that no pass over [N, V] is left.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        target_N: torch.Tensor,
        temperature: float,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, vocabulary = len(target_N), len(weight_VH)
        keep = count * vocabulary <= KEEP
        ctx.rows = max(CHUNK // vocabulary, 1)
        hot = max(HOT // vocabulary, 1) if keep and hidden_NH.device.type == "cpu" else ctx.rows
        ctx.temperature, ctx.entropy = temperature, entropy
        logp_N = hidden_NH.new_empty(count, dtype=torch.float32)
        sum_N, total_N, entropy_N = (torch.empty_like(logp_N) for _ in range(3))
        kept_NV = hidden_NH.new_empty(count, vocabulary, dtype=torch.float32) if keep else None
        for start in range(0, count, hot):
            part = slice(start, start + hot)
            logits_CV = _logits(hidden_NH[part], weight_VH, temperature)
            peak_C1 = logits_CV.amax(-1, keepdim=True)
            logits_CV -= peak_C1
            p_CV = logits_CV.exp() if kept_NV is None else torch.exp(logits_CV, out=kept_NV[part])
            sum_C = torch.sum(p_CV, -1, out=sum_N[part])
            log_sum_C = sum_C.log()
            total_N[part] = log_sum_C + peak_C1[:, 0]
            logp_N[part] = logits_CV.gather(1, target_N[part, None])[:, 0] - log_sum_C
            if entropy:
                entropy_N[part] = log_sum_C - logits_CV.mul_(p_CV).sum(-1) / sum_C
        if kept_NV is not None:
            kept_NV.scatter_add_(1, target_N[:, None], -sum_N[:, None])
        ctx.save_for_backward(hidden_NH, weight_VH, target_N, total_N, entropy_N, kept_NV, sum_N)
        return logp_N, entropy_N if entropy else torch.zeros_like(logp_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor, grad_entropy_N: torch.Tensor | None) -> tuple[Any, ...]:
        hidden_NH, weight_VH, target_N, total_N, entropy_N, kept_NV, sum_N = ctx.saved_tensors
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        with_entropy = ctx.entropy and grad_entropy_N is not None and bool(grad_entropy_N.any())
        grad_N = grad_N / ctx.temperature
        if kept_NV is not None and not with_entropy:
            kept_NV, scale_N1 = kept_NV.to(weight_VH.dtype), (-grad_N / sum_N)[:, None]
            grad_hidden_NH = (kept_NV @ weight_VH).mul_(scale_N1) if want_hidden else None
            grad_weight_VH = kept_NV.t() @ (hidden_NH * scale_N1).to(weight_VH.dtype) if want_weight else None
            return grad_hidden_NH, grad_weight_VH, None, None, None
        heat_N = grad_entropy_N / ctx.temperature if grad_entropy_N is not None and with_entropy else None
        grad_hidden_NH = torch.empty_like(hidden_NH) if want_hidden else None
        # partial sums of the weight's gradient stay float32: bfloat16 would round each chunk away
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if want_weight else None
        for start in range(0, len(target_N), ctx.rows):
            part = slice(start, start + ctx.rows)
            logp_CV = _logits(hidden_NH[part], weight_VH, ctx.temperature).sub_(total_N[part, None])
            grad_CV = logp_CV.exp()
            spread_CV = None
            if heat_N is not None:
                spread_CV = logp_CV.add_(entropy_N[part, None]).mul_(grad_CV).mul_(-heat_N[part, None])
            grad_CV.mul_(-grad_N[part, None])
            if spread_CV is not None:
                grad_CV += spread_CV
            grad_CV.scatter_add_(1, target_N[part, None], grad_N[part, None])
            grad_CV = grad_CV.to(weight_VH.dtype)
            if grad_hidden_NH is not None:
                torch.mm(grad_CV, weight_VH, out=grad_hidden_NH[part])
            if grad_weight_VH is not None and weight_VH.dtype == torch.float32:
                grad_weight_VH.addmm_(grad_CV.t(), hidden_NH[part])
            elif grad_weight_VH is not None:
                grad_weight_VH += grad_CV.t() @ hidden_NH[part]
        if grad_weight_VH is not None:
            grad_weight_VH = grad_weight_VH.to(weight_VH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None


def _logits(hidden_CH: torch.Tensor, weight_VH: torch.Tensor, temperature: float) -> torch.Tensor:
    logits_CV = (hidden_CH @ weight_VH.t()).float()
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)
