"""Policy losses over a flat list of scored tokens, normalised over the whole optimizer step.

GRPO, DAPO (2503.14476), Dr.GRPO (2503.20783), GSPO (2507.18071), CISPO (2506.13585), SAPO (2511.20347) as one
table: how the ratio is taken, what surrogate it enters, what the sum is divided by. Deviations: (1) the log-ratio
is clamped to +-20 before exp; (2) tokens without a usable stored logprob are left out; (3) CISPO's cap is an
absolute upper bound on the ratio (`cispo_cap`, 5.0), no lower one, as TRL has it; (4) dual clip for A < 0 on request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from toolsample_cli.config import TrainConfig
from toolsample_cli.train.batch import Tokens

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: beyond it the ratio says nothing, and exp would turn a bad logprob into a NaN gradient."""


@dataclass(frozen=True)
class LossForm:
    """What a loss is made of and the numbers it was published with.

    ratio: token | sequence. surrogate: clip | cispo | sapo. divide: tokens | rollouts | constant. None of the papers
    clips a second time for A < 0 (`dual_clip` 0). `advantage` is what the paper takes with it.
    """

    ratio: str
    surrogate: str
    divide: str
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    advantage: str = "group_std"


LOSSES: dict[str, LossForm] = {
    # 2402.03300 writes epsilon without a value; 0.2 is PPO's and what the code around it uses
    "grpo": LossForm("token", "clip", "rollouts"),
    "dapo": LossForm("token", "clip", "tokens", clip_high=0.28),
    "dr_grpo": LossForm("token", "clip", "constant", advantage="group_mean"),
    "gspo": LossForm("sequence", "clip", "rollouts", clip_low=3e-4, clip_high=4e-4),
    "cispo": LossForm("token", "cispo", "tokens"),  # neither clip is used; its cap is `cispo_cap`
    "sapo": LossForm("token", "sapo", "rollouts"),  # nor here; its slopes are 1 and 1.05
}
"""Name of a loss -> its form; whatever a user leaves open is taken from here."""


@dataclass(frozen=True)
class Rule:
    """A loss and its numbers; `dual_clip` 0 is off; `kl` and `entropy` are coefficients."""

    loss: str = "dapo"
    divide: str = "auto"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    cispo_cap: float = 5.0
    sapo_positive: float = 1.0
    sapo_negative: float = 1.05
    kl: float = 0.0
    kl_kind: str = "k3"
    entropy: float = 0.0
    is_cap: float = 0.0
    is_mode: str = "truncate"

    @property
    def form(self) -> LossForm:
        """The entry of LOSSES with the divisor that was asked for."""
        form = LOSSES[self.loss]
        return form if self.divide == "auto" else replace(form, divide=self.divide)

    def describe(self) -> str:
        """The numbers in force, in one line."""
        form, parts = self.form, [self.loss]
        if form.surrogate == "clip":
            parts.append(f"clip {self.clip_low:g}/{self.clip_high:g}")
            parts.append(f"dual clip {self.dual_clip:g}" if self.dual_clip else "no dual clip")
        elif form.surrogate == "cispo":
            parts.append(f"ratio capped at {self.cispo_cap:g}")
        else:
            parts.append(f"slopes {self.sapo_positive:g}/{self.sapo_negative:g}")
        parts.append(f"over {form.divide}")
        parts += [f"kl {self.kl:g}"] if self.kl else []
        parts += [f"entropy {self.entropy:g}"] if self.entropy else []
        return " ".join([parts[0], ", ".join(parts[1:])])


def rule_of(config: TrainConfig) -> Rule:
    """The loss part of the settings; what they leave open is as the loss was published."""
    names = ("loss", "cispo_cap", "kl", "kl_kind", "is_cap", "is_mode")
    form = LOSSES[config.loss]
    clips = {name: getattr(config, name) for name in ("clip_low", "clip_high", "dual_clip")}
    return Rule(
        **{name: getattr(config, name) for name in names},
        **{name: getattr(form, name) if value is None else value for name, value in clips.items()},
        divide=config.loss_divide,
        entropy=config.entropy_bonus,
    )


def advantage_of(config: TrainConfig) -> str:
    """The advantage that is asked for, or the one that the loss was published with."""
    return LOSSES[config.loss].advantage if config.advantage == "auto" else config.advantage


@dataclass(frozen=True)
class StepSize:
    """What one optimizer step holds over all micro-batches and ranks: usable tokens, rollouts, and the constant
    length of Dr.GRPO."""

    tokens: int
    rollouts: int
    constant: int = 1


@dataclass(frozen=True)
class Loss:
    """`total` is this micro-batch's share of the step's loss (a scalar with gradient); the rest is detached.

    `share_N` sums to `total`; `ratio_N`; `log_ratio_N` unclamped; `low_N`/`high_N` mark clipped tokens.
    """

    total: torch.Tensor
    share_N: torch.Tensor
    ratio_N: torch.Tensor
    log_ratio_N: torch.Tensor
    low_N: torch.Tensor
    high_N: torch.Tensor
    kl_N: torch.Tensor | None = None


def policy_loss(
    logp_N: torch.Tensor,
    tokens: Tokens,
    rule: Rule,
    step: StepSize,
    *,
    entropy_N: torch.Tensor | None = None,
    reference_N: torch.Tensor | None = None,
    anchor_N: torch.Tensor | None = None,
) -> Loss:
    """The loss of N tokens under logprobs `logp_N` (float32, with gradient).

    `reference_N`: logprobs of the reference policy (kl > 0). `anchor_N`: logprobs of the policy at the start of the
    round (decoupled mode): the ratio is then taken against it, and its own ratio to the stored logprobs becomes an
    importance weight, truncated at `is_cap`. All sums are over usable tokens; nothing else has a gradient.
    """
    assert logp_N.ndim == 1 and logp_N.shape == tokens.old_N.shape, (logp_N.shape, tokens.old_N.shape)
    use_N = tokens.use_N
    logp_N = torch.where(use_N, logp_N, logp_N.detach())
    base_N = tokens.old_N if anchor_N is None else anchor_N
    log_ratio_N = torch.where(use_N, logp_N - base_N, torch.zeros_like(logp_N))
    advantage_N = tokens.advantage_R.index_select(0, tokens.row_N)
    length_N = _per_rollout(use_N.to(logp_N.dtype), tokens).clamp(min=1.0)
    form = rule.form
    if form.ratio == "sequence":
        level_N = _per_rollout(log_ratio_N, tokens) / length_N
    else:
        level_N = log_ratio_N
    ratio_N = level_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    loss_N, low_N, high_N = _surrogate(ratio_N, logp_N, advantage_N, form, rule)
    if anchor_N is not None and rule.is_cap > 0:
        gap_N = (anchor_N.detach() - tokens.old_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        loss_N = loss_N * importance_weight(gap_N, rule)
    kl_N = None
    if rule.kl > 0 and reference_N is not None:
        kl_N = divergence(logp_N, reference_N, rule.kl_kind)
        loss_N = loss_N + rule.kl * kl_N
    weight_N = _weights(use_N, length_N, form.divide, step)
    share_N = torch.where(use_N, loss_N * weight_N, torch.zeros_like(loss_N))
    if rule.entropy > 0 and entropy_N is not None:  # the mean over tokens, whatever divides the policy term
        share_N = share_N - torch.where(use_N, rule.entropy * entropy_N / max(step.tokens, 1), 0.0)
    return Loss(
        total=share_N.sum(),
        share_N=share_N.detach(),
        ratio_N=ratio_N.detach(),
        log_ratio_N=log_ratio_N.detach(),
        low_N=(low_N & use_N).detach(),
        high_N=(high_N & use_N).detach(),
        kl_N=None if kl_N is None else kl_N.detach(),
    )


def _surrogate(
    ratio_N: torch.Tensor, logp_N: torch.Tensor, advantage_N: torch.Tensor, form: LossForm, rule: Rule
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if form.surrogate == "cispo":
        high_N = ratio_N > rule.cispo_cap
        weight_N = ratio_N.clamp(max=rule.cispo_cap).detach()
        return -weight_N * advantage_N * logp_N, torch.zeros_like(high_N), high_N
    if form.surrogate == "sapo":
        slope_N = torch.full_like(ratio_N, rule.sapo_positive).masked_fill(advantage_N <= 0, rule.sapo_negative)
        none_N = torch.zeros_like(ratio_N, dtype=torch.bool)
        return -torch.sigmoid(slope_N * (ratio_N - 1)) * 4 / slope_N * advantage_N, none_N, none_N
    clipped_N = ratio_N.clamp(1 - rule.clip_low, 1 + rule.clip_high)
    gain_N = torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
    if rule.dual_clip > 0:
        gain_N = torch.where(advantage_N < 0, torch.maximum(gain_N, rule.dual_clip * advantage_N), gain_N)
    low_N = (ratio_N < 1 - rule.clip_low) & (advantage_N < 0)
    high_N = (ratio_N > 1 + rule.clip_high) & (advantage_N > 0)
    return -gain_N, low_N, high_N


def importance_weight(gap_N: torch.Tensor, rule: Rule) -> torch.Tensor:
    """exp of the log-ratio between the policy at the start of the round and the one that sampled, cut or masked at
    `is_cap` (0: no weights, all 1)."""
    if rule.is_cap <= 0:
        return torch.ones_like(gap_N)
    weight_N = gap_N.exp()
    if rule.is_mode == "mask":
        return torch.where(weight_N <= rule.is_cap, weight_N, torch.zeros_like(weight_N))
    return weight_N.clamp(max=rule.is_cap)


def divergence(logp_N: torch.Tensor, reference_N: torch.Tensor, kind: str) -> torch.Tensor:
    """Estimators of KL(policy | reference) a token (Schulman's k1, k2, k3), with gradient in `logp_N`."""
    gap_N = (reference_N - logp_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if kind == "k1":
        return -gap_N
    if kind == "k2":
        return 0.5 * gap_N**2
    return gap_N.exp() - gap_N - 1


def _per_rollout(value_N: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    total_R = torch.zeros(len(tokens.row_ids), dtype=value_N.dtype, device=value_N.device)
    return total_R.index_add(0, tokens.row_N, value_N).index_select(0, tokens.row_N)


def _weights(use_N: torch.Tensor, length_N: torch.Tensor, divide: str, step: StepSize) -> torch.Tensor:
    if divide == "tokens":
        return torch.full_like(length_N, 1.0 / max(step.tokens, 1))
    if divide == "rollouts":
        return 1.0 / (length_N * max(step.rollouts, 1))
    return torch.full_like(length_N, 1.0 / (max(step.rollouts, 1) * step.constant))


def likelihood_loss(logp_N: torch.Tensor, tokens: Tokens, step: StepSize) -> Loss:
    """Negative log-likelihood, mean over the step's tokens (supervised objective)."""
    use_N = tokens.use_N
    share_N = torch.where(use_N, -logp_N / max(step.tokens, 1), torch.zeros_like(logp_N))
    one_N, none_N = torch.ones_like(logp_N), torch.zeros_like(use_N)
    return Loss(share_N.sum(), share_N.detach(), one_N.detach(), torch.zeros_like(share_N.detach()), none_N, none_N)
