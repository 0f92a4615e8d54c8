"""Few-shot completions trained under the plain prompt: weight, gradient by a plain twin, and what it moves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
import torch
from support.tiny_model import task_row, tiny_model
from support.training_world import batch_rows, load, plain_logprobs, rollout_rows, write

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.models.chat import Chat
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, open_folder
from toolsample_cli.train.checkpoint import Position
from toolsample_cli.train.data import TrainSet, scored_rollouts
from toolsample_cli.train.distributed import World
from toolsample_cli.train.loss import StepSize
from toolsample_cli.train.plain_prompts import prompts_of
from toolsample_cli.train.setup import load_base, make_optimizer, make_policy
from toolsample_cli.train.step_metrics import StepTally
from toolsample_cli.train.trainer import (
    Feed,
    Run,
    anchor_rollouts,
    micro_batch,
    micro_plans,
    micro_step,
    off_policy_line,
)

CONFIG = TrainConfig(lr=3e-3, steps=1, subtasks=False, is_cap=1.5)
FEW = ("t000", "t002")


class Made(NamedTuple):
    """A model, its rollouts, a batch of which two of four tasks ask for a plain prompt, and the plain tasks."""

    model: Path
    rollouts: Folder
    batch: pl.DataFrame
    tasks: Folder
    chat: Chat

    def plain(self, task: str) -> list[int]:
        """The plain prompt that takes the place of a task's own."""
        number = int(task[1:])
        return self.chat.prompt_ids(task_row(number, f"find the weather in {number}"))

    def dataset(self, batch: pl.DataFrame | None = None) -> TrainSet:
        marked = self.batch if batch is None else batch
        return scored_rollouts(self.rollouts, marked, CONFIG, 512, partial(prompts_of, self.tasks, self.chat))

    def run(self, data: TrainSet) -> Run:
        world = World()
        policy = make_policy(load_base(str(self.model), CONFIG, world), str(self.model), 1.0, world)
        anchor_rollouts(Feed(data, CONFIG, world), policy.train(), every=False)
        optimizer = make_optimizer(policy, CONFIG)
        return Run(data, CONFIG, world, policy=policy, optimizer=optimizer, position=Position(), anchored=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("plain")
    path = tiny_model(folder)
    rows = rollout_rows(load(path), groups=4, samples=3, noise=0.1)
    rollouts = write(folder / "rollouts", schema.ROLLOUTS, rows)
    tasks = write(folder / "tasks", schema.TASKS, [task_row(i, f"find the weather in {i}") for i in range(4)])
    moved = pl.col("task_id").is_in(FEW)
    batch = pl.DataFrame(batch_rows(rows)).with_columns(
        prompt=pl.when(moved).then(pl.lit("plain")),
        plain_task_id=pl.when(moved).then("t00" + pl.col("task_id").str.slice(1)),
    )
    folders = open_folder(rollouts, schema.ROLLOUTS), open_folder(tasks, schema.TASKS)
    return Made(path, folders[0], batch, folders[1], Chat.load(str(path)))


def gradient(run: Run) -> dict[str, torch.Tensor]:
    """That of one step over all rollouts."""
    groups = list(run.data.groups.outlines())
    size = StepSize(sum(r.usable for g in groups for r in g.rollouts), sum(len(g.rollouts) for g in groups))
    for members in micro_plans(groups, run):
        micro_step(run, micro_batch(members, run), size, StepTally())
    return {name: p.grad.clone() for name, p in run.policy.model.named_parameters() if p.grad is not None}


def test_the_gradient_is_that_of_a_plain_loop(made: Made):
    """Weight min(pi_start(y | plain) / pi_old(y | shown), 1.5) times the ratio, one rollout at a time, by autograd."""
    run = made.run(made.dataset())
    got = gradient(run)
    model = load(made.model)
    sampled = {row["rollout_id"]: row for row in made.rollouts.load().iter_rows(named=True)}
    total = sum(len(row["completion_ids"]) for row in sampled.values())
    loss, weights = torch.zeros((), dtype=torch.float64), []
    for row in run.data.facts.iter_rows(named=True):
        rollout, moved = sampled[row["rollout_id"]], row["task_id"] in FEW
        prompt = made.plain(row["task_id"]) if moved else rollout["prompt_ids"]
        ids = torch.tensor([[*prompt, *rollout["completion_ids"]]])
        logp = model(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        logp = logp.gather(1, ids[0, len(prompt) :, None])[:, 0]
        old = torch.tensor(rollout["logprobs"], dtype=torch.float64)
        start = logp.detach() if moved else old
        weight = (start - old).exp().clamp(max=1.5)
        weights += weight.tolist() if moved else []
        ratio = (logp - start).exp()
        gain = torch.minimum(ratio * row["advantage"], ratio.clamp(0.8, 1.28) * row["advantage"])
        loss = loss - (weight * gain).sum() / total
    loss.backward()
    for name, parameter in model.named_parameters():
        if name in got and parameter.grad is not None:
            torch.testing.assert_close(got[name], parameter.grad, rtol=2e-3, atol=2e-6)
    assert off_policy_line(run) == f"6 completions, off-policy, mean weight {np.mean(weights):.3f}"


def test_what_is_not_marked_is_trained_as_before(made: Made):
    """Rollouts under their own prompt have the same gradient, to the bit, whether anchors are kept or not."""
    shown = made.batch.with_columns(prompt=pl.lit("shown"), plain_task_id=pl.lit(None, pl.String))
    kept = made.run(made.dataset(shown))
    assert kept.anchored
    assert not kept.data.off_policy
    plain = made.run(made.dataset(made.batch.drop("prompt", "plain_task_id")))
    plain.anchored = False
    one, other = gradient(kept), gradient(plain)
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_the_prompt_is_the_plain_tasks(made: Made):
    """Groups of marked tasks stand behind the plain prompt; the others behind the one that was sent."""
    data = made.dataset()
    for number, row in enumerate(made.rollouts.load().unique("task_id").sort("task_id").iter_rows(named=True)):
        expected = made.plain(row["task_id"]) if row["task_id"] in FEW else row["prompt_ids"]
        np.testing.assert_array_equal(data.groups[number].prompt, expected)
    assert len(data.off_policy) == 6


def test_plain_prompts_need_their_tasks(made: Made):
    with pytest.raises(ConfigError, match="asks to train 2 few-shot tasks under their plain prompts"):
        scored_rollouts(made.rollouts, made.batch, CONFIG, 512)
    with pytest.raises(DataError, match="task x is not there"):
        prompts_of(made.tasks, made.chat, {"x"})


def test_a_step_moves_the_plain_prompt(made: Made):
    """What was rewarded with demonstrations becomes likelier without them."""
    run = made.run(made.dataset())
    moved = [(g.prompt, r) for g in run.data.groups for r in g.rollouts if r.row in run.data.off_policy]
    before = [plain_logprobs(load(made.model), prompt, rollout.completion) for prompt, rollout in moved]
    for _ in range(5):
        gradient(run)
        run.optimizer.step()
        run.optimizer.zero_grad()
    model = run.policy.model.eval()
    model.set_attn_implementation("eager")
    after = [plain_logprobs(model, prompt, rollout.completion) for prompt, rollout in moved]
    gains = [float((new - old).mean()) for new, old in zip(after, before, strict=True)]
    assert np.corrcoef(gains, [rollout.advantage for _, rollout in moved])[0, 1] > 0.5
