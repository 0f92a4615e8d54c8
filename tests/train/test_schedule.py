"""The learning rate by passes over the corpus, what a default run does, and what each loss starts from."""

from __future__ import annotations

import numpy as np
import pytest
from support.training_runs import metric, train
from support.training_world import world

from toolsample_cli.config import TrainConfig
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.train.loss import advantage_of, rule_of
from toolsample_cli.train.schedule import Passes, outlook, passes_of, schedule_of


@pytest.mark.parametrize("corpus", [200, 4_000, 100_000])
@pytest.mark.parametrize(
    ("settings", "share"), [({}, 1.0), ({"lr_schedule": "exponential"}, 0.61)], ids=["default", "toolexpander"]
)
def test_the_rate_lasts_three_passes_over_any_corpus(corpus: int, settings: dict, share: float):
    """The summed rate of the first three passes, against a constant one, does not depend on the size of a batch."""
    config = TrainConfig(**settings)
    rounds = round(3 * corpus / 64)
    step = 64 / corpus
    schedule = schedule_of(config)
    rates = [
        schedule.at(Passes(r * step, (r + 1) * step).at(i / config.steps), r, r * config.steps + i)
        for r in range(rounds)
        for i in range(config.steps)
    ]
    assert np.mean(rates) / 1e-6 == pytest.approx(share, abs=0.04)
    assert np.mean(rates) / 1e-6 >= 0.5


def test_a_round_decays_by_its_share_of_a_pass(tmp_path):
    """The batch says how far the corpus has been gone through; the rate follows it and not the round."""
    model, rollouts, batch = world(tmp_path)
    with Output(tmp_path / "known", schema.BATCH, {}) as output:
        output.write(0, open_folder(batch, schema.BATCH).load())
        output.counts.update({"passes before": 1.0, "passes": 1.5})
        output.finish()
    account = train((model, rollouts, tmp_path / "known"), tmp_path / "out", steps=2, lr_schedule="exponential")
    assert metric(tmp_path / "out", "lr") == pytest.approx([1e-3 * 0.7**1.0, 1e-3 * 0.7**1.25])
    assert account.extra["learning rate"].endswith("at the end of 3 passes (exponential, x 0.7 per pass)")


def test_passes_where_nobody_counts_them():
    """A round is one, an epoch of imitation too."""
    assert passes_of({}, 3, TrainConfig()) == Passes(3, 4)
    assert passes_of({"passes": 2.0, "passes before": 1.75}, 9, TrainConfig()) == Passes(1.75, 2.0)
    assert passes_of({"passes": 2.0}, 1, TrainConfig(objective="sft", epochs=3)) == Passes(3, 6)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 1e-6),
        ({"lora_rank": 16}, 1e-5),
        ({"objective": "sft"}, 1e-5),
        ({"objective": "sft", "lora_rank": 16}, 1e-4),
        ({"objective": "sft", "lr": 3e-6}, 3e-6),
    ],
)
def test_each_objective_brings_a_rate(settings: dict, rate: float):
    assert schedule_of(TrainConfig(**settings)).lr == rate


def test_the_schedule_in_one_line():
    """Start, middle and end, whatever the size of a round."""
    exponential = TrainConfig(lr_schedule="exponential")
    line = "1e-06 at the start, 5.86e-07 in the middle, 3.43e-07 at the end of 3 passes (exponential, x 0.7 per pass)"
    assert outlook(exponential, Passes(0.0, 0.32)) == outlook(exponential, Passes(4.0, 4.0064)) == line
    assert outlook(TrainConfig(), Passes(0.0, 0.1)) == "1e-06 from start to end"


@pytest.mark.parametrize(
    ("loss", "line", "advantage"),
    [
        ("grpo", "grpo clip 0.2/0.2, no dual clip, over rollouts", "group_std"),
        ("dapo", "dapo clip 0.2/0.28, no dual clip, over tokens", "group_std"),
        ("dr_grpo", "dr_grpo clip 0.2/0.2, no dual clip, over constant", "group_mean"),
        ("gspo", "gspo clip 0.0003/0.0004, no dual clip, over rollouts", "group_std"),
        ("cispo", "cispo ratio capped at 5, over tokens", "group_std"),
        ("sapo", "sapo slopes 1/1.05, over rollouts", "group_std"),
    ],
)
def test_a_loss_brings_its_own_numbers(loss: str, line: str, advantage: str):
    """As published, unless the user says otherwise; the line says which are in force."""
    assert rule_of(TrainConfig(loss=loss)).describe() == line
    assert advantage_of(TrainConfig(loss=loss)) == advantage
    given = TrainConfig(loss=loss, clip_low=0.1, clip_high=0.3, dual_clip=3.0, loss_divide="tokens", advantage="gdpo")
    rule = rule_of(given)
    assert (rule.clip_low, rule.clip_high, rule.dual_clip, rule.form.divide) == (0.1, 0.3, 3.0, "tokens")
    assert advantage_of(given) == "gdpo"
