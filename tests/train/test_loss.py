"""Policy losses: closed forms, a plain loop twin for every kind, and what bad logprobs may not do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from toolsample_cli.train.batch import Group, Rollout, Tokens, pack
from toolsample_cli.train.loss import LOSSES, Rule, StepSize, divergence, policy_loss

LENGTHS = (3, 1, 5, 2)


def example(seed: int = 0, spread: float = 0.5) -> tuple[torch.Tensor, Tokens, StepSize]:
    """Four rollouts with off-policy logprobs; a leaf of new logprobs, the tokens, the step's size."""
    random = np.random.default_rng(seed)
    rollouts = [
        Rollout(row, random.integers(0, 9, n), random.normal(-2, spread, n).astype(np.float32), float(a))
        for row, (n, a) in enumerate(zip(LENGTHS, (1.5, -0.7, 0.4, -1.2), strict=True))
    ]
    tokens = pack([Group(np.arange(2), tuple(rollouts))]).tokens
    logp = torch.tensor(random.normal(-2, spread, sum(LENGTHS)), dtype=torch.float64, requires_grad=True)
    return logp, tokens, StepSize(tokens=sum(LENGTHS), rollouts=4, constant=7)


def plain(logp: list[float], tokens: Tokens, rule: Rule, step: StepSize) -> float:
    """The same loss one token at a time, straight from the papers' formulas."""
    total, at = 0.0, 0
    for row, length in enumerate(LENGTHS):
        advantage = tokens.advantage_R[row].item()
        gaps = [logp[at + t] - tokens.old_N[at + t].item() for t in range(length)]
        for t in range(length):
            ratio = math.exp(gaps[t] if rule.form.ratio == "token" else sum(gaps) / length)
            if rule.form.surrogate == "cispo":
                value = -min(ratio, rule.cispo_cap) * advantage * logp[at + t]
            elif rule.form.surrogate == "sapo":
                slope = rule.sapo_positive if advantage > 0 else rule.sapo_negative
                value = -advantage * 4 / slope / (1 + math.exp(-slope * (ratio - 1)))
            else:
                clipped = min(max(ratio, 1 - rule.clip_low), 1 + rule.clip_high)
                value = -min(ratio * advantage, clipped * advantage)
                if rule.dual_clip and advantage < 0:
                    value = min(value, -rule.dual_clip * advantage)
            divisor = {
                "tokens": step.tokens,
                "rollouts": length * step.rollouts,
                "constant": step.rollouts * step.constant,
            }[rule.form.divide]
            total += value / divisor
        at += length
    return total


RULES = [
    *(Rule(loss=name) for name in LOSSES),
    *(Rule(loss=name, divide=divide) for name in LOSSES for divide in ("tokens", "rollouts", "constant")),
    Rule(loss="dapo", dual_clip=1.5),
    Rule(loss="cispo", cispo_cap=1.1),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.loss}-{r.divide}-{r.dual_clip:g}-{r.cispo_cap:g}")
def test_equals_a_plain_loop(rule: Rule):
    for seed in range(3):
        logp, tokens, step = example(seed)
        got = policy_loss(logp, tokens, rule, step)
        assert got.total.item() == pytest.approx(plain(logp.tolist(), tokens, rule, step), rel=1e-9)
        assert got.share_N.sum().item() == pytest.approx(got.total.item(), rel=1e-9)


@pytest.mark.parametrize("rule", [Rule(loss=name) for name in LOSSES if name != "cispo"], ids=lambda r: r.loss)
def test_gradient_equals_finite_differences(rule: Rule):
    """CISPO is left out: its ratio is a constant to the gradient, by design."""
    logp, tokens, step = example(1)
    policy_loss(logp, tokens, rule, step).total.backward()
    for index in range(len(logp)):
        moved = logp.detach().clone()
        values = []
        for shift in (1e-6, -1e-6):
            moved[index] = logp[index].item() + shift
            values.append(plain(moved.tolist(), tokens, rule, step))
        assert logp.grad[index].item() == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-6)


def test_cispo_gradient_is_the_capped_ratio():
    logp, tokens, step = example(1)
    rule = Rule(loss="cispo", cispo_cap=1.1)
    policy_loss(logp, tokens, rule, step).total.backward()
    ratio = (logp.detach() - tokens.old_N).exp().clamp(max=1.1)
    advantage = tokens.advantage_R[tokens.row_N]
    torch.testing.assert_close(logp.grad, -ratio * advantage / step.tokens)


def test_on_policy_loss_is_minus_the_advantage():
    """Ratio 1 everywhere: the loss is the negative token mean of the advantages, whatever the clip."""
    _, tokens, step = example()
    logp = tokens.old_N.clone().requires_grad_()
    got = policy_loss(logp, tokens, Rule(), step)
    weights = torch.tensor(LENGTHS) / sum(LENGTHS)
    assert got.total.item() == pytest.approx(-(weights * tokens.advantage_R).sum().item(), rel=1e-6)
    assert not got.low_N.any() and not got.high_N.any()


def test_clip_marks_and_stops_the_gradient_on_the_right_side():
    """Ratios e^0.5 and e^-0.5 with advantages of both signs: only (up, +) and (down, -) are clipped."""
    old = np.array([-2.0], np.float32)
    rollouts = tuple(Rollout(row, np.array([1]), old, a) for row, a in enumerate((1.0, -1.0, 1.0, -1.0)))
    tokens = pack([Group(np.arange(2), rollouts)]).tokens
    logp = torch.tensor([-1.5, -1.5, -2.5, -2.5], requires_grad=True)
    got = policy_loss(logp, tokens, Rule(), StepSize(4, 4))
    got.total.backward()
    assert got.high_N.tolist() == [True, False, False, False]
    assert got.low_N.tolist() == [False, False, False, True]
    assert [g != 0 for g in logp.grad.tolist()] == [False, True, True, False]


@pytest.mark.parametrize("bad", [-60.0, -100.0, -9999.0, -math.inf, math.nan, math.inf])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_bad_stored_logprob_never_poisons_the_gradient(bad: float, advantage: float, loss: str):
    old = np.array([-2.0, bad, -1.0], np.float32)
    tokens = pack([Group(np.arange(2), (Rollout(0, np.array([1, 2, 3]), old, advantage),))]).tokens
    logp = torch.tensor([-2.1, -1.0, -1.1], requires_grad=True)
    got = policy_loss(logp, tokens, Rule(loss=loss, dual_clip=3.0), StepSize(3, 1))
    got.total.backward()
    assert torch.isfinite(got.total) and torch.isfinite(logp.grad).all()
    if not math.isfinite(bad) or bad <= -9000:
        assert logp.grad[1] == 0 and got.share_N[1] == 0


def test_kl_estimators_by_hand():
    logp, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert divergence(logp, reference, "k1").item() == pytest.approx(0.5)
    assert divergence(logp, reference, "k2").item() == pytest.approx(0.125)
    assert divergence(logp, reference, "k3").item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)


def test_kl_and_entropy_enter_with_their_signs():
    """KL raises the loss, entropy lowers it; both by coefficient times the token mean."""
    logp, tokens, step = example()
    reference, entropy = logp.detach() - 0.3, torch.full_like(logp, 1.7)
    base = policy_loss(logp, tokens, Rule(), step).total.item()
    kl = policy_loss(logp, tokens, Rule(kl=0.1), step, reference_N=reference).total.item()
    assert kl - base == pytest.approx(0.1 * (math.exp(-0.3) + 0.3 - 1), rel=1e-6)
    bonus = policy_loss(logp, tokens, Rule(entropy=0.01), step, entropy_N=entropy).total.item()
    assert bonus - base == pytest.approx(-0.017, rel=1e-6)


@pytest.mark.parametrize(("mode", "weights"), [("truncate", [math.exp(0.2), 2.0]), ("mask", [math.exp(0.2), 0.0])])
def test_decoupled_ratio_is_against_the_anchor_and_weighted(mode: str, weights: list[float]):
    old = np.array([-2.0, -2.0], np.float32)
    tokens = pack([Group(np.arange(2), (Rollout(0, np.array([1, 2]), old, 1.0),))]).tokens
    anchor = torch.tensor([-1.8, -1.0])
    logp = torch.tensor([-1.7, -1.0], requires_grad=True)
    rule = Rule(is_cap=2.0, is_mode=mode)
    got = policy_loss(logp, tokens, rule, StepSize(2, 1), anchor_N=anchor)
    expected = -(weights[0] * math.exp(0.1) + weights[1] * 1.0) / 2
    assert got.total.item() == pytest.approx(expected, rel=1e-6)


def test_splitting_a_step_changes_nothing():
    """Each part is normalised by the whole step, so parts add up."""
    for name in LOSSES:
        logp, tokens, step = example(2)
        whole = policy_loss(logp, tokens, Rule(loss=name), step).total
        parts, at = [], 0
        for row, length in enumerate(LENGTHS):
            keep = slice(at, at + length)
            part = Tokens(
                tokens.target_N[keep],
                tokens.old_N[keep],
                tokens.use_N[keep],
                torch.zeros(length, dtype=torch.long),
                tokens.advantage_R[row : row + 1],
                tokens.row_ids[row : row + 1],
            )
            parts.append(policy_loss(logp[keep], part, Rule(loss=name), step).total)
            at += length
        torch.testing.assert_close(sum(parts), whole, rtol=1e-9, atol=0)
