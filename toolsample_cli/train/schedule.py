"""The learning rate as a closed form of progress, so that resuming needs no scheduler state.

ToolExpander couples an exponential decay to its rounds; the constants are our reading (the paper's are not public
to us): lr * gamma ** rounds, continuous within a round, never below a floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEDULES = ("exponential", "constant", "cosine", "linear")


@dataclass(frozen=True)
class Schedule:
    """`decay` per round (or per optimizer step with unit `step`); cosine and linear end after `horizon` rounds."""

    lr: float
    kind: str = "exponential"
    decay: float = 0.7
    unit: str = "round"
    floor: float = 0.0
    horizon: float = 10.0
    warmup: int = 0

    def at(self, rounds: float, step: int) -> float:
        """Rate at `rounds` (2.25: a quarter into the third) and optimizer step `step` since the first round."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = min(rounds / self.horizon, 1.0)
        if self.kind == "exponential":
            value = self.lr * self.decay ** (step if self.unit == "step" else rounds)
        elif self.kind == "cosine":
            value = self.lr * 0.5 * (1.0 + math.cos(math.pi * done))
        elif self.kind == "linear":
            value = self.lr * (1.0 - done)
        else:
            value = self.lr
        return warm * max(value, min(self.floor, self.lr))
