"""The learning rate as a closed form of progress, so that resuming needs no scheduler state.

ToolExpander couples an exponential decay to its rounds, which go over all of the data; so the unit is a pass over the
corpus, whatever its size and that of a batch. The constants are our reading (the paper's are not public to us):
lr * gamma ** passes, continuous within a pass, never below a floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from toolsample_cli.config import TrainConfig

RATES = {("grpo", False): 1e-6, ("grpo", True): 1e-5, ("sft", False): 1e-5, ("sft", True): 1e-4}
"""(objective, with an adapter) -> initial rate where none is asked for: ToolRL's for GRPO; ten times that where a gold
answer is imitated, and ten times either for an adapter (our reading)."""

OUTLOOK = 3.0
"""Passes that the printed schedule of a single round looks ahead."""


@dataclass(frozen=True)
class Passes:
    """Passes over the corpus before and after a round: 0.5 is half of one."""

    before: float
    after: float

    def at(self, done: float) -> float:
        """Passes when this share of the round is done."""
        return self.before + done * (self.after - self.before)


def passes_of(counts: Mapping[str, float], rounds: int, config: TrainConfig) -> Passes:
    """What a batch's manifest says. A round counts as a pass where it says nothing, and so does an epoch of SFT."""
    if config.objective == "sft":
        return Passes(rounds * config.epochs, (rounds + 1) * config.epochs)
    known = counts.get("passes before"), counts.get("passes")
    if known[0] is None or known[1] is None:
        return Passes(rounds, rounds + 1)
    return Passes(known[0], known[1])


@dataclass(frozen=True)
class Schedule:
    """`decay` per pass over the corpus, round of the loop or optimizer step; cosine and linear end after `horizon`
    passes (with unit pass) or rounds."""

    lr: float
    kind: str = "constant"
    decay: float = 0.7
    unit: str = "pass"
    floor: float = 0.0
    horizon: float = 10.0
    warmup: int = 0

    def at(self, passes: float, rounds: float, step: int) -> float:
        """Rate at `passes` and `rounds` (2.25: a quarter into the third) and optimizer step `step` of the run."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = min((passes if self.unit == "pass" else rounds) / self.horizon, 1.0)
        if self.kind == "exponential":
            value = self.lr * self.decay ** {"pass": passes, "round": rounds, "step": step}[self.unit]
        elif self.kind == "cosine":
            value = self.lr * 0.5 * (1.0 + math.cos(math.pi * done))
        elif self.kind == "linear":
            value = self.lr * (1.0 - done)
        else:
            value = self.lr
        return warm * max(value, min(self.floor, self.lr))

    def describe(self, passes: float, rounds: int, steps: int) -> str:
        """Start, middle and end of a run of so many passes, rounds and optimizer steps, in one line."""
        if self.kind == "constant" and not self.warmup:
            return f"{self.lr:.3g} from start to end"
        points = [self.at(share * passes, share * rounds, round(share * steps)) for share in (0.0, 0.5, 1.0)]
        how = f"{self.kind}, x {self.decay:g} per {self.unit}" if self.kind == "exponential" else self.kind
        how += f", {self.warmup} steps of warm-up" if self.warmup else ""
        start, middle, end = (f"{rate:.3g}" for rate in points)
        return f"{start} at the start, {middle} in the middle, {end} at the end of {passes:.3g} passes ({how})"


def initial_rate(config: TrainConfig) -> float:
    """The rate that is asked for, else that of the objective."""
    return RATES[config.objective, config.lora_rank > 0] if config.lr is None else config.lr


def schedule_of(config: TrainConfig) -> Schedule:
    """The learning-rate part of the settings."""
    return Schedule(
        initial_rate(config),
        config.lr_schedule,
        config.lr_decay,
        config.lr_decay_unit,
        config.lr_floor,
        config.lr_horizon,
        config.warmup_steps,
    )


def outlook(config: TrainConfig, passes: Passes) -> str:
    """The rate of the next passes, for someone who trains one round at a time."""
    per_round = passes.after - passes.before
    rounds = math.ceil(OUTLOOK / per_round) if per_round > 0 else 0
    return schedule_of(config).describe(OUTLOOK, rounds, rounds * config.steps * config.epochs)
