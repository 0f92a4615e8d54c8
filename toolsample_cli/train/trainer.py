"""The training loop of one round: groups to steps, steps to micro-batches, one optimizer update each.

Everything is normalised over the whole step and all ranks: FSDP averages gradients, so each rank scales its part by
the number of ranks, and every rank runs the same number of micro-batches (a weightless one where it has fewer).
A step whose gradient is not finite is refused and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import torch

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import StageFailure
from toolsample_cli.stage import silent
from toolsample_cli.train.batch import Group, GroupOutline, Pack, Rollout, pack, pad, plan, usable_tokens
from toolsample_cli.train.checkpoint import Position, StepValue
from toolsample_cli.train.collapse import collapse
from toolsample_cli.train.data import TrainSet
from toolsample_cli.train.distributed import World, sharded, whole
from toolsample_cli.train.loss import (
    LOG_RATIO_LIMIT,
    StepSize,
    importance_weight,
    likelihood_loss,
    policy_loss,
    rule_of,
)
from toolsample_cli.train.policy import Policy
from toolsample_cli.train.schedule import Passes, schedule_of
from toolsample_cli.train.step_metrics import RolloutSums, StepTally, batch_facts, record_row
from toolsample_cli.train.tracking import Tracker

STRANGE = 0.05
"""Mean |log-ratio| before the first update that is warned about. (Our reading: engines in bfloat16 differ by 0.01 to
0.03. The mean ratio tells nothing, since its expectation under the policy that drew the tokens is 1 for any model.)"""


@dataclass
class Feed:
    """What is forwarded: the round's groups and how they are cut and laid out."""

    data: TrainSet
    config: TrainConfig
    world: World
    packed: bool = True

    @property
    def budget(self) -> int:
        """Slots of a micro-batch; small by default where there is no GPU, as caches are."""
        return self.config.token_budget or (16384 if self.world.device.type == "cuda" else 2048)


@dataclass(kw_only=True)
class Run(Feed):
    """What the loop works with. `save(position)` is called after a step when it is due."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    position: Position
    passes: Passes = field(default_factory=lambda: Passes(0.0, 1.0))
    constant: int = 1
    save: Callable[[Position], None] | None = None
    tick: Callable[[int], None] = silent
    expect: Callable[[int], None] = silent
    reference: Policy | None = None
    anchored: bool = False
    spans: Callable[[np.ndarray], np.ndarray] | None = None
    trackers: Sequence[Tracker] = ()


def step_order(count: int, config: TrainConfig, rounds: int) -> list[np.ndarray]:
    """Group numbers of each optimizer step of a round, whole groups shuffled by (seed, round, epoch)."""
    steps = []
    for epoch in range(config.epochs):
        shuffled = np.random.default_rng([config.seed, rounds, epoch]).permutation(count)
        steps += [part for part in np.array_split(shuffled, min(config.steps, count)) if len(part)]
    return steps


def train_round(run: Run) -> Position:
    """Run the steps that are left of this round; returns the position at its end."""
    order = step_order(len(run.data.groups), run.config, run.position.rounds)
    schedule = schedule_of(run.config)
    run.policy.train()
    run.expect(sum(len(run.data.groups.outline(n).rollouts) for step in order[run.position.done :] for n in step))
    for index in range(run.position.done, len(order)):
        groups = [run.data.groups.outline(number) for number in order[index]]
        done = index / len(order)
        rate = schedule.at(run.passes.at(done), run.position.rounds + done, run.position.step)
        metrics, rows = one_step(run, groups, rate)
        _note(run, groups, metrics, rows)
        run.position.done = index + 1
        run.position.step += 1
        run.tick(sum(len(group.rollouts) for group in groups))
        last = index + 1 == len(order)
        if run.save and not last and run.config.save_every and (index + 1) % run.config.save_every == 0:
            run.save(run.position)
    return run.position


def one_step(run: Run, groups: Sequence[GroupOutline], rate: float) -> tuple[dict[str, float], dict[int, RolloutSums]]:
    """One optimizer update. Returns its metrics and, for each rollout of this rank, its sums."""
    size = StepSize(
        tokens=sum(r.usable for g in groups for r in g.rollouts),
        rollouts=sum(len(g.rollouts) for g in groups),
        constant=run.constant,
    )
    live = _live(groups, run.config)
    plans = micro_plans(live, run)
    tally = StepTally()
    for parameters in run.optimizer.param_groups:
        parameters["lr"] = rate
    for index, members in enumerate(plans):
        _sync(run, index + 1 == len(plans))
        micro_step(run, micro_batch(members, run), size, tally)
    norm, refused = _update(run, bool(plans))
    metrics = tally.metrics(run.world)
    metrics |= {"lr": rate, "grad_norm": norm, "refused": float(refused), "rollouts": float(size.rollouts)}
    metrics |= {"groups": float(len(groups)), "dead_groups": float(len(groups) - len(live))}
    metrics["dropped_tokens"] = float(sum(r.tokens for g in groups for r in g.rollouts) - size.tokens)
    return metrics, tally.rows


def _live(groups: Sequence[GroupOutline], config: TrainConfig) -> list[GroupOutline]:
    # the gradient of a group without advantages is zero, so it is counted but not forwarded
    if config.objective == "sft" or config.kl > 0 or config.entropy_bonus > 0:
        return list(groups)
    return [group for group in groups if any(r.advantage != 0.0 and r.usable for r in group.rollouts)]


def micro_plans(groups: Iterable[GroupOutline], feed: Feed) -> list[list[GroupOutline]]:
    """What each of this rank's micro-batches holds; all ranks get the same number, if need be a filler."""
    bins = plan(groups, feed.budget)
    mine = bins[feed.world.rank :: feed.world.size]
    if len(mine) < math.ceil(len(bins) / feed.world.size):
        first = bins[0][0]
        mine.append([replace(first, rollouts=first.rollouts[:1], filler=True)])
    return mine


def micro_batch(members: Sequence[GroupOutline], feed: Feed) -> Pack:
    """Those groups with their tokens, read for this one forward pass."""
    groups = [feed.data.groups.load(member) for member in members]
    groups = [_weightless(g) if m.filler else g for m, g in zip(members, groups, strict=True)]
    return (pack if feed.packed else pad)(groups)


def _weightless(group: Group) -> Group:
    rollout = group.rollouts[0]
    empty = np.full(len(rollout.completion), np.nan, dtype=np.float32)
    return Group(group.prompt, (Rollout(-1, rollout.completion, empty, 0.0),))


def micro_step(run: Run, micro: Pack, size: StepSize, tally: StepTally) -> None:
    """Forward, loss, backward and count of one micro-batch."""
    span_N, spans = None, run.spans
    if spans is not None:
        span_N = torch.from_numpy(per_token(micro, lambda row, ids: spans(ids))).to(run.world.device)
    micro = micro.to(run.world.device)
    reference_N = reference_logprobs(run, micro) if run.config.kl > 0 else None
    anchor_N = anchor_logprobs(run, micro) if run.anchored else None
    logp_N, entropy_N = run.policy(micro, entropy=True)
    if run.config.objective == "sft":
        loss = likelihood_loss(logp_N, micro.tokens, size)
    else:
        loss = policy_loss(
            logp_N,
            micro.tokens,
            rule_of(run.config),
            size,
            entropy_N=entropy_N,
            reference_N=reference_N,
            anchor_N=anchor_N,
        )
    (loss.total * run.world.size).backward()
    tally.add(micro, loss, entropy_N, span_N)


def per_token(micro: Pack, value: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """`value(row in the step, completion ids)` of every rollout of a micro-batch, laid out as its scored tokens."""
    counts = np.bincount(micro.tokens.row_N.cpu().numpy(), minlength=len(micro.tokens.row_ids))
    parts = np.split(micro.tokens.target_N.cpu().numpy(), np.cumsum(counts)[:-1])
    rows = micro.tokens.row_ids.tolist()
    return np.concatenate([value(row, ids) for row, ids in zip(rows, parts, strict=True)])


def reference_logprobs(run: Run, micro: Pack) -> torch.Tensor:
    """Logprobs under the reference policy; with an adapter and no other reference, the model without it."""
    with torch.no_grad():
        if run.reference is not None:
            return run.reference(micro, entropy=False)[0]
        wrapped: Any = run.policy.model  # by peft
        with wrapped.disable_adapter():
            return run.policy(micro, entropy=False)[0]


def anchor_logprobs(run: Run, micro: Pack) -> torch.Tensor:
    """Logprobs at the start of the round (0 for the weightless filler of a rank)."""
    known = run.data.groups.anchor
    values = per_token(micro, lambda row, ids: known(row) if row >= 0 else np.zeros(len(ids), np.float32))
    return torch.from_numpy(values).to(run.world.device)


def anchor_rollouts(feed: Feed, policy: Policy, *, every: bool) -> None:
    """Anchor rollouts: their logprobs under a policy, in one pass without gradient; the same on every rank.

    With `every` False only those are scored that are off-policy by their prompt; the anchors of the others are their
    stored logprobs, so that their loss is what it is without anchors.
    """
    policy.train()
    groups = feed.data.groups
    moved = [any(r.row in feed.data.off_policy for r in group.rollouts) for group in groups.outlines()]
    chosen = [group for group, off in zip(groups.outlines(), moved, strict=True) if every or off]
    if not every:
        for group, off in zip(groups.outlines(), moved, strict=True):
            for rollout in () if off else groups.load(group).rollouts:
                known = usable_tokens(rollout.logprobs)
                groups.set_anchor(rollout.row, np.where(known, rollout.logprobs, 0.0).astype(np.float32))
    with torch.no_grad():
        for members in micro_plans(chosen, feed):
            micro = micro_batch(members, feed)
            logp = policy(micro.to(feed.world.device), entropy=False)[0].cpu().numpy()
            counts = np.bincount(micro.tokens.row_N.numpy(), minlength=len(micro.tokens.row_ids))
            parts = np.split(logp, np.cumsum(counts)[:-1])
            for found in feed.world.gather(list(zip(micro.tokens.row_ids.tolist(), parts, strict=True))):
                for row, part in found:
                    if row >= 0:
                        groups.set_anchor(row, part)
    if feed.world.size > 1:  # no backward pass follows here that would fold the root's weights up again
        sharded(policy).reshard()
    for row in feed.data.unscored:
        groups.take_anchor(row)


def off_policy_line(run: Run) -> str:
    """How many completions are trained on under another prompt than they were sampled with, and what they weigh."""
    groups, weights = run.data.groups, [np.zeros(0)]
    for group in groups.outlines():
        for rollout in groups.load(group).rollouts:
            if rollout.row in run.data.off_policy:
                known = usable_tokens(rollout.logprobs)
                gap = np.clip((groups.anchor(rollout.row) - rollout.logprobs)[known], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
                weights.append(importance_weight(torch.from_numpy(gap), rule_of(run.config)).numpy())
    every = np.concatenate(weights)
    mean = f"{every.mean():.3f}" if len(every) else "unknown"
    return f"{len(run.data.off_policy)} completions, off-policy, mean weight {mean}"


def _sync(run: Run, last: bool) -> None:
    if run.world.size > 1:
        sharded(run.policy).set_requires_gradient_sync(last)


def _update(run: Run, any_work: bool) -> tuple[float, bool]:
    if not any_work:
        return 0.0, False
    parameters = [p for p in run.policy.parameters() if p.grad is not None]
    limit = run.config.max_grad_norm or math.inf
    norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters, limit)))
    finite = math.isfinite(norm)
    if finite:
        run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    return norm, not finite


def _note(run: Run, groups: Sequence[GroupOutline], metrics: dict[str, float], rows: dict[int, RolloutSums]) -> None:
    step = run.position.step
    metrics |= batch_facts(run.data, groups) if run.config.objective == "grpo" else {}
    if run.position.done == 0:
        metrics["ratio_first"] = metrics["ratio_mean"]
        metrics["log_ratio_first"] = metrics["log_ratio_abs"]
        if metrics["log_ratio_abs"] > STRANGE:
            run.data.warnings.append(
                f"before the first update the rollouts' logprobs lie {metrics['log_ratio_abs']:.3f} a token from this "
                "model's: another policy drew them, or another engine rounds otherwise"
            )
    for tracker in run.trackers:
        shown = {name: value for name, value in metrics.items() if not math.isnan(value)}
        tracker.log(step, shown | {"round": float(run.data.round)})
    watch(run, metrics)
    number = run.data.round
    run.position.metrics += [
        StepValue(step, number, name, None if math.isnan(value) else value) for name, value in sorted(metrics.items())
    ]
    sums: dict[int, RolloutSums] = {}
    for part in run.world.gather(rows):
        sums |= part
    lines = [record_row(rollout, step, sums.get(rollout.row)) for group in groups for rollout in group.rollouts]
    known = run.position.records
    run.position.records = known.vstack(pl.DataFrame(lines, schema=known.schema))
    if metrics["refused"] and run.config.max_refused:
        refused = sum(1 for one in run.position.metrics if one.metric == "refused" and one.value)
        if refused >= run.config.max_refused:
            raise StageFailure(
                f"{refused} steps of this round had a gradient that is not finite; nothing was written",
                hint="look at ratio_max and loss in the step metrics; lower --lr, or check the rollouts' logprobs",
            )


def watch(run: Run, metrics: dict[str, float]) -> None:
    """Remember what the collapse alarm looks at, and ring it."""
    if "exact" not in metrics:
        return
    history = run.position.history
    for name in ("exact", "format"):
        if not math.isnan(metrics[name]):
            history.setdefault(name, []).append(metrics[name])
    why = collapse(history.get("exact", []), history.get("format", []))
    metrics["collapse"] = float(why is not None)
    if why is not None and run.config.stop_on_collapse:
        raise StageFailure(f"the policy collapsed at step {run.position.step}: {why}", hint=_COLLAPSE)
    if why is not None and _COLLAPSE not in run.data.warnings:
        run.data.warnings += [f"collapse: {why}", _COLLAPSE]


_COLLAPSE = "go back to an earlier checkpoint; lower --lr or --lr-decay, or mix in easier tasks"
