"""Our losses against TRL's own code: value and gradient on random off-policy batches, whole and in two micro-batches.

TRL's method is called on a stand-in that holds its settings, so no model, data set or trainer is needed.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from toolsample_cli.train.batch import Group, Rollout, pack
from toolsample_cli.train.loss import Rule, StepSize, policy_loss

pytestmark = pytest.mark.slow

LONGEST = 64
ROWS = 8


def trl_loss(logp_BT, old_BT, reference_BT, mask_BT, advantage_B, *, parts: int = 1, **settings):
    """Sum of TRL's loss over `parts` micro-batches of equal size."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction="sum": x, sync_gradients=True
    )
    arguments = SimpleNamespace(
        delta=settings.pop("delta", None),
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=parts,
    )
    stand_in = SimpleNamespace(
        top_entropy_quantile=1.0, aux_loss_enabled=False, off_policy_mask_threshold=None, use_vllm=False,
        importance_sampling_level="token", beta=0.0, epsilon_low=0.2, epsilon_high=0.28, loss_type="dapo",
        max_completion_length=LONGEST, _entropy_bonus_enabled=False, use_adaptive_entropy=False, args=arguments,
        accelerator=accelerator, model=SimpleNamespace(training=True), current_gradient_accumulation_steps=parts,
        _metrics={"train": defaultdict(list)}, vllm_importance_sampling_correction=False,
    )  # fmt: skip
    for name, value in settings.items():
        assert hasattr(stand_in, name)
        setattr(stand_in, name, value)
    total = 0.0
    for rows in np.array_split(np.arange(ROWS), parts):
        stand_in._get_per_token_logps_and_entropies = lambda *_, rows=rows, **__: (
            logp_BT[rows], torch.zeros_like(logp_BT[rows]), None
        )  # fmt: skip
        inputs = {
            "prompt_ids": torch.zeros(len(rows), 2, dtype=torch.long),
            "prompt_mask": torch.ones(len(rows), 2, dtype=torch.long),
            "completion_ids": torch.zeros(len(rows), logp_BT.shape[1], dtype=torch.long),
            "completion_mask": mask_BT[rows],
            "advantages": advantage_B[rows],
            "old_per_token_logps": old_BT[rows],
            "ref_per_token_logps": reference_BT[rows],
            "num_items_in_batch": mask_BT.sum(),
        }
        total = total + trainer._compute_loss(stand_in, None, inputs)
    return total


def example(seed: int):
    """Eight rollouts of 2 to 60 tokens, off-policy by a sigma of 0.35, in both layouts over one leaf."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 61, ROWS)
    old = [random.normal(-2, 0.7, n).astype(np.float32) for n in lengths]
    advantage = random.normal(size=ROWS).astype(np.float32)
    rollouts = tuple(Rollout(i, np.zeros(n, np.int64), old[i], float(advantage[i])) for i, n in enumerate(lengths))
    tokens = pack([Group(np.arange(2), rollouts)]).tokens
    leaf = torch.tensor(np.concatenate(old) + random.normal(0, 0.35, lengths.sum()), dtype=torch.float32)
    leaf.requires_grad_()
    place = torch.zeros(ROWS, lengths.max(), dtype=torch.long)
    mask = torch.zeros_like(place)
    start = 0
    for row, n in enumerate(lengths):
        place[row, :n] = torch.arange(start, start + n)
        mask[row, :n] = 1
        start += n
    return leaf, tokens, place, mask, torch.tensor(advantage), StepSize(int(lengths.sum()), ROWS, LONGEST)


CASES = {
    "grpo": (Rule(loss="grpo"), {"loss_type": "grpo"}),
    "dapo": (Rule(loss="dapo"), {"loss_type": "dapo"}),
    "dr_grpo": (Rule(loss="dr_grpo"), {"loss_type": "dr_grpo"}),
    "cispo": (Rule(loss="cispo"), {"loss_type": "cispo", "epsilon_high": 5.0}),
    "cispo, cap 1.1": (Rule(loss="cispo", cispo_cap=1.1), {"loss_type": "cispo", "epsilon_high": 1.1}),
    "sapo": (Rule(loss="sapo"), {"loss_type": "sapo"}),
    "gspo": (
        Rule(loss="gspo", clip_low=3e-4, clip_high=4e-4),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
    "gspo, wide clip": (Rule(loss="gspo"), {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    "dual clip is TRL's delta": (Rule(loss="dapo", dual_clip=1.5), {"loss_type": "dapo", "delta": 1.5}),
    "k3 KL": (Rule(loss="dapo", kl=0.04), {"loss_type": "dapo", "beta": 0.04}),
    "grpo with KL": (Rule(loss="grpo", kl=0.04), {"loss_type": "grpo", "beta": 0.04}),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_trl(name: str, parts: int):
    """Within 1e-6 relative in float32."""
    rule, settings = CASES[name]
    for seed in range(5):
        leaf, tokens, place, mask, advantage, step = example(seed)
        reference = leaf.detach() + torch.randn(leaf.shape, generator=torch.Generator().manual_seed(seed)) * 0.3
        ours = policy_loss(leaf, tokens, rule, step, reference_N=reference).total
        (ours_grad,) = torch.autograd.grad(ours, leaf)
        arguments = (leaf[place], tokens.old_N[place], reference[place], mask, advantage)
        theirs = trl_loss(*arguments, parts=parts, **dict(settings))
        (their_grad,) = torch.autograd.grad(theirs, leaf)
        scale = max(abs(theirs.item()), their_grad.abs().sum().item())
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-6 * scale), name
        assert (ours_grad - their_grad).abs().max() <= 1e-6 * their_grad.abs().max() + 1e-9, name
