"""Drawing tokens from logits so that one completion depends on its own seed alone.

Each (seed, step) has its own uniform number from a counter-based hash, and a token is the inverse of the
cumulative distribution at it. Batching changes logits only in their last bits, so it changes a token only where
the uniform falls within that rounding of a boundary (3 of 24,000 tokens for a flat distribution over 1,600).
"""

from __future__ import annotations

import numpy as np
import torch

from toolsample_cli.hashing import GOLDEN, finalise
from toolsample_cli.rollout.types import Sampling


def token_uniforms(seeds: np.ndarray, start: int, steps: int) -> np.ndarray:
    """Uniform numbers in [0, 1) of shape [rows, steps] for steps start..start+steps-1 (splitmix64, 53 bits).

    `seeds` is a uint64 array [rows]; the same (seed, step) always gives the same number.
    """
    counters = np.arange(start + 1, start + steps + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = finalise(seeds)[:, None] + counters[None, :] * GOLDEN
        return (finalise(z) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def log_distribution(logits_RV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities [R, V] of the distribution that is sampled; -inf for tokens that were cut off.

    Order as in transformers: temperature, top-k, top-p, min-p, then renormalised. Greedy (temperature 0) gives
    the distribution at temperature 1, since a point mass carries no information.
    """
    logits_RV = logits_RV.float()
    if sampling.temperature == 0:
        return torch.log_softmax(logits_RV, -1)
    if sampling.temperature != 1:
        logits_RV = logits_RV / sampling.temperature
    if 0 < sampling.top_k < logits_RV.shape[-1]:
        lowest_R1 = logits_RV.topk(sampling.top_k, -1).values[:, -1:]
        logits_RV = logits_RV.masked_fill(logits_RV < lowest_R1, -torch.inf)
    if sampling.top_p < 1:
        ordered_RV, index_RV = logits_RV.sort(dim=-1, descending=True, stable=True)
        probability_RV = ordered_RV.softmax(-1)
        before_RV = probability_RV.cumsum(-1) - probability_RV
        drop_RV = before_RV >= sampling.top_p
        drop_RV[:, 0] = False
        logits_RV = logits_RV.masked_fill(drop_RV.scatter(-1, index_RV, drop_RV), -torch.inf)
    if sampling.min_p > 0:
        least_R1 = logits_RV.amax(-1, keepdim=True) + float(np.log(sampling.min_p))
        logits_RV = logits_RV.masked_fill(logits_RV < least_R1, -torch.inf)
    return torch.log_softmax(logits_RV, -1)


def draw(logits_RV: torch.Tensor, uniform_R: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its log-probability: ([R] int64, [R] float32). `uniform_R` in [0, 1), ignored if greedy.

    A row with non-finite logits gets a non-finite log-probability; its token means nothing.
    """
    logp_RV = log_distribution(logits_RV, sampling)
    if sampling.temperature == 0:
        token_R = logp_RV.argmax(-1)
    else:
        wide = torch.float32 if logp_RV.device.type == "mps" else torch.float64
        cumulative_RV = logp_RV.exp().cumsum(-1, dtype=wide)
        total_R1 = cumulative_RV[:, -1:]
        aim_R1 = uniform_R.to(wide)[:, None] * total_R1
        aim_R1 = torch.minimum(aim_R1, torch.nextafter(total_R1, torch.zeros_like(total_R1)))
        token_R = torch.searchsorted(cumulative_RV, aim_R1, right=True)[:, 0].clamp_(max=logp_RV.shape[-1] - 1)
    return token_R, logp_RV.gather(-1, token_R[:, None])[:, 0]
