"""What one optimizer step did, as named numbers (schema STEPS) and one line per rollout (schema RECORDS).

Sums are collected on the device, one host transfer a micro-batch, and added over ranks before any division.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from toolsample_cli.json_types import Row
from toolsample_cli.train.batch import GroupOutline, Pack, RolloutOutline
from toolsample_cli.train.data import TrainSet
from toolsample_cli.train.distributed import World
from toolsample_cli.train.loss import LOG_RATIO_LIMIT, Loss

SUMS = (
    "loss",
    "tokens",
    "ratio",
    "low",
    "high",
    "entropy",
    "log_ratio_abs",
    "kl_behaviour",
    "kl_reference",
    "clamped",
    "slots",
)
SPANS = ("name", "key", "value")
SPAN_SHARES = tuple(f"loss_{name}" for name in SPANS)


class RolloutSums(NamedTuple):
    """Sums over the usable tokens of one rollout; those of the loss on sub-tasks are NaN where nobody asked."""

    tokens: float
    ratio: float
    clipped: float
    loss: float
    name: float = math.nan
    key: float = math.nan
    value: float = math.nan


@dataclass
class StepTally:
    """Sums over a step's micro-batches; `rows` maps a rollout's row to its sums."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    ratio_max: float = 0.0
    rows: dict[int, RolloutSums] = field(default_factory=dict)

    def add(self, pack: Pack, loss: Loss, entropy_N: torch.Tensor | None, span_N: torch.Tensor | None = None) -> None:
        """Count one micro-batch. `span_N` says which sub-task a token belongs to: 0 none, 1 name, 2 key, 3 value."""
        if pack.ids.device.type == "mps":  # which has no float64
            pack, loss, entropy_N, span_N = _on_cpu(pack, loss, entropy_N, span_N)
        tokens, use_N = pack.tokens, pack.tokens.use_N
        used = use_N.to(torch.float64)
        log_ratio_N = loss.log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio_N = log_ratio_N.exp()  # of the token, also where the loss takes the sequence's
        columns = {
            "loss": loss.share_N,
            "tokens": used,
            "ratio": ratio_N,
            "low": loss.low_N,
            "high": loss.high_N,
            "entropy": torch.zeros_like(ratio_N) if entropy_N is None else entropy_N.detach(),
            "log_ratio_abs": log_ratio_N.abs(),
            "kl_behaviour": ratio_N - 1 - log_ratio_N,
            "kl_reference": torch.zeros_like(ratio_N) if loss.kl_N is None else loss.kl_N,
            "clamped": loss.log_ratio_N.abs() > LOG_RATIO_LIMIT,
        }
        columns_NC = torch.stack([value.to(torch.float64) * used for value in columns.values()], dim=1)
        spans = [loss.share_N.to(torch.float64) * used * (span_N == k) for k in (1, 2, 3)] if span_N is not None else []
        wide_NC = torch.cat([columns_NC, *[span[:, None] for span in spans]], dim=1)
        sum_RC = torch.zeros(len(tokens.row_ids), wide_NC.shape[1], dtype=torch.float64, device=wide_NC.device)
        per_RC = sum_RC.index_add(0, tokens.row_N, wide_NC).cpu().numpy()
        for name, value in zip(columns, per_RC.sum(0), strict=False):
            self.sums[name] += float(value)
        self.sums["slots"] += pack.slots
        if used.any():
            self.ratio_max = max(self.ratio_max, float((ratio_N * used).max()))
        names = [*columns, *(f"span {name}" for name in (SPANS if spans else ()))]
        for row, line in zip(tokens.row_ids.tolist(), per_RC.tolist(), strict=True):
            summed = dict(zip(names, line, strict=True))
            own = {name: summed[name] for name in ("tokens", "ratio", "loss")}
            own |= {name: summed[f"span {name}"] for name in (SPANS if spans else ())}
            self.rows[row] = RolloutSums(clipped=summed["low"] + summed["high"], **own)

    def metrics(self, world: World) -> dict[str, float]:
        """Means over the tokens of all ranks."""
        names = list(self.sums)
        total = dict(zip(names, world.sum([self.sums[name] for name in names]), strict=True))
        tokens = max(total["tokens"], 1.0)
        means = {
            "ratio_mean": "ratio",
            "clip_low": "low",
            "clip_high": "high",
            "entropy": "entropy",
            "log_ratio_abs": "log_ratio_abs",
            "kl_behaviour": "kl_behaviour",
            "kl_reference": "kl_reference",
        }
        found = {name: total[key] / tokens for name, key in means.items()}
        found |= {"loss": total["loss"], "tokens": total["tokens"], "slots": total["slots"]}
        found |= {"clamped_tokens": total["clamped"], "ratio_max": max(world.gather(self.ratio_max))}
        return found


def _on_cpu(
    pack: Pack, loss: Loss, entropy_N: torch.Tensor | None, span_N: torch.Tensor | None
) -> tuple[Pack, Loss, torch.Tensor | None, torch.Tensor | None]:
    moved = {name: value.cpu() for name, value in vars(loss).items() if value is not None}
    entropy_N, span_N = (mark if mark is None else mark.cpu() for mark in (entropy_N, span_N))
    return pack.to(torch.device("cpu")), Loss(**moved), entropy_N, span_N


def record_row(rollout: RolloutOutline, step: int, sums: RolloutSums | None) -> Row:
    """A row of RECORDS, with the rollout's row in the round in place of its id.

    Without `sums` it is of a dead group, which was never forwarded because its gradient is zero.
    """
    known = {"row": rollout.row, "step": step, "advantage": rollout.advantage, "tokens": rollout.usable}
    known["dropped_tokens"] = rollout.tokens - rollout.usable
    if sums is None:
        return known | {"ratio_mean": None, "clipped_share": None, "loss": 0.0} | dict.fromkeys(SPAN_SHARES)
    # shares only mean something against a loss that is not itself rounding
    telling = abs(sums.loss) >= 1e-12
    shares = dict.fromkeys(SPAN_SHARES)
    if telling:
        spans = ((f"loss_{name}", getattr(sums, name) / sums.loss) for name in SPANS)
        shares |= {name: share for name, share in spans if not math.isnan(share)}
    return known | {
        "ratio_mean": sums.ratio / sums.tokens if sums.tokens else None,
        "clipped_share": sums.clipped / sums.tokens if sums.tokens else None,
        "loss": sums.loss,
        **shares,
    }


def batch_facts(data: TrainSet, groups: Sequence[GroupOutline]) -> dict[str, float]:
    """Signs of health of a step's rollouts (section 2.5 of our notes on ToolExpander's failure modes)."""
    rows = [rollout.row for group in groups for rollout in group.rollouts]
    facts = data.facts[rows]
    exact = facts["exact"].to_numpy().astype(float)
    ends = np.cumsum([0, *[len(group.rollouts) for group in groups]])
    right = np.array([exact[a:b].mean() for a, b in itertools.pairwise(ends)])
    shots = facts["task_id"].str.contains(r"@\d+shot$").to_numpy()
    base, form = facts["base_reward"].to_numpy(), facts["format"].drop_nulls().to_numpy()
    lengths = [rollout.tokens for group in groups for rollout in group.rollouts]
    return {
        "reward": float(facts["reward"].to_numpy().mean()),
        "base_reward": float(base.mean()),
        "base_reward_zero_shot": float(base[~shots].mean()) if (~shots).any() else math.nan,
        "base_reward_few_shot": float(base[shots].mean()) if shots.any() else math.nan,
        "exact": float(exact.mean()),
        "none_right": float((right == 0).mean()),
        "all_right": float((right == 1).mean()),
        "format": float(form.mean()) if len(form) else math.nan,
        "bonus_rate": float((facts["bonus"].to_numpy() > 0).mean()),
        "advantage_abs": float(np.abs(facts["advantage"].to_numpy()).mean()),
        "completion_tokens": float(np.mean(lengths)),
    }
