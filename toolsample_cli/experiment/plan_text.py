"""A plan as people read it before they start it: what runs, on what, how much, at which rate, and how arms differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from toolsample_cli.config import STAGES
from toolsample_cli.config.settings import as_record
from toolsample_cli.curriculum import activation
from toolsample_cli.experiment.recipe import Plan
from toolsample_cli.filter.decide import METHODS
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.train.loss import advantage_of, rule_of
from toolsample_cli.train.schedule import schedule_of


def describe_plans(plans: Sequence[Plan], out: Path) -> str:
    """The runs in a few lines each arm. The inputs must have been checked."""
    by_arm = {plan.arm: plan for plan in reversed(plans)}
    arms = [by_arm[arm] for arm in dict.fromkeys(plan.arm for plan in plans)]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(plan.seed for plan in plans))
    first = arms[0]
    tasks = open_folder(Path(first.run.corpus), schema.TASKS).rows
    lines = [
        f"{len(plans)} run{'s' if len(plans) > 1 else ''} in {out}: seed{'s' if ',' in seeds else ''} {seeds}",
        f"start   {first.run.model}",
        f"corpus  {first.run.corpus}: {tasks:,} tasks",
        *(f"held-out {folder}: {_heldout(folder, first)}" for folder in first.heldout),
    ]
    for plan in arms:
        lines += ["", *([f"arm {plan.arm}"] if plan.arm else []), *(f"  {line}" for line in _arm(plan, tasks))]
    return "\n".join(lines)


def _heldout(folder: Path, plan: Plan) -> str:
    rows, limit = open_folder(folder, schema.TASKS).rows, plan.run.heldout_limit
    shown = f"the first {limit:,} of {rows:,} tasks" if 0 < limit < rows else f"{rows:,} tasks"
    every = plan.run.evaluate_every
    return f"{shown}, answered {f'every {every} rounds' if every > 1 else 'every round' if every else 'at both ends'}"


def _arm(plan: Plan, corpus: int) -> list[str]:
    run, rollout, train = plan.run, plan.configs["rollout"], plan.configs["train"]
    drawn = min(plan.configs["curriculum"].tasks_per_round, corpus)
    passes, steps = run.rounds * drawn / corpus, run.rounds * train.steps * train.epochs
    total = run.rounds * drawn * rollout.n
    filled = plan.configs["filter"].method == "dapo" and run.refill > 1
    more = f", up to {run.refill} times as many until the batch is full" if filled else ""
    delayed = METHODS[plan.configs["filter"].method].delayed
    begins = f"; {activation.describe(plan.configs['curriculum'], corpus)}" if delayed else ""
    return [
        f"rounds         {run.rounds} of {drawn:,} tasks x {rollout.n} completions = {total:,} rollouts{more}; "
        f"{passes:.3g} passes over the corpus",
        f"selection      {plan.configs['filter'].method}; weighting {plan.configs['curriculum'].weighting}; "
        f"hard tasks {plan.configs['curriculum'].hard}{begins}",
        f"learning rate  {schedule_of(train).describe(passes, run.rounds, steps)}",
        f"loss           {rule_of(train).describe()}; advantage {advantage_of(train)}; {steps:,} optimizer steps",
        f"settings       {_changed(plan) or 'all as by default'}",
    ]


def _changed(plan: Plan) -> str:
    """Settings that are not at their defaults, stage by stage."""
    parts = []
    for stage, config in plan.configs.items():
        plain = as_record(STAGES[stage]())
        changed = {key: value for key, value in as_record(config).items() if value != plain[key]}
        hidden = {"corpus", "model", "heldout", "rounds", "seeds", "seed"} if stage == "run" else {"seed"}
        listed = [f"{key} = {_plain(value)}" for key, value in changed.items() if key not in hidden]
        parts += [f"[{stage}] {', '.join(listed)}"] if listed else []
    return " ".join(parts)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
