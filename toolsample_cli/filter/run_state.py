"""What selection knows about the run as a whole, carried from round to round in the manifest of `groups`.

GRESO's and AdaRFT's moving numbers live here. When RDS begins to steer the draw is the curriculum's to say
(`curriculum.activation`), because it knows how much of the corpus was visited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

GRESO_STEP, GRESO_RANGE = 0.01, (0.05, 0.95)
GRESO_TARGET_EASY, GRESO_TARGET_HARD = 0.25 / 3, 0.25 * 2 / 3
ADARFT_STEP, ADARFT_SLOPE, ADARFT_AIM = 50.0, 2.0, 0.5


@dataclass(frozen=True)
class RoundFacts:
    """Facts of one round's groups as a whole.

    `scaled_mean`: mean reward scaled to [0, 1] by each task's bounds, null without a scored rollout; `easy`, `hard`:
    shares of groups all right and all wrong.
    """

    scaled_mean: float | None = None
    easy: float = 0.0
    hard: float = 0.0


@dataclass(frozen=True)
class RunState:
    """The rivals' moving numbers: AdaRFT's target in [0, 100], GRESO's chances for flat groups in [0.05, 0.95]."""

    adarft_target: float = 0.0
    greso_easy: float = 0.5
    greso_hard: float = 0.5

    @classmethod
    def read(cls, counts: Mapping[str, float]) -> RunState:
        """From the counts of a `groups` manifest; what is not there starts anew."""
        start = cls()
        return cls(
            adarft_target=float(counts.get("adarft_target", start.adarft_target)),
            greso_easy=float(counts.get("greso_easy", start.greso_easy)),
            greso_hard=float(counts.get("greso_hard", start.greso_hard)),
        )

    def record(self) -> dict[str, float]:
        """For the counts of a manifest; the inverse of `read`."""
        return {"adarft_target": self.adarft_target, "greso_easy": self.greso_easy, "greso_hard": self.greso_hard}

    def after(self, round: RoundFacts, first_epoch: bool) -> RunState:
        """The state once this round is known. `first_epoch`: none of its tasks was visited before."""
        moved = self
        if round.scaled_mean is not None:
            step = ADARFT_STEP * math.tanh(ADARFT_SLOPE * (round.scaled_mean - ADARFT_AIM))
            moved = replace(moved, adarft_target=min(100.0, max(0.0, self.adarft_target + step)))
        if first_epoch:
            return moved
        return replace(
            moved,
            greso_easy=_towards(self.greso_easy, round.easy, GRESO_TARGET_EASY),
            greso_hard=_towards(self.greso_hard, round.hard, GRESO_TARGET_HARD),
        )


def _towards(chance: float, share: float, target: float) -> float:
    # too many flat groups: draw such tasks more rarely
    step = -GRESO_STEP if share >= target else GRESO_STEP
    return min(GRESO_RANGE[1], max(GRESO_RANGE[0], round(chance + step, 10)))
