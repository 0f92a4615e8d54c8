"""What selection knows about the run as a whole, carried from round to round in the manifest of `groups`.

Activation (DSCL): selection starts once the mean reward exceeded a threshold for so many consecutive batches,
and never stops again (a deactivation is not described anywhere). GRESO's and AdaRFT's moving numbers live here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolsample_cli.config import FilterConfig

GRESO_STEP, GRESO_RANGE = 0.01, (0.05, 0.95)
GRESO_TARGET_EASY, GRESO_TARGET_HARD = 0.25 / 3, 0.25 * 2 / 3
ADARFT_STEP, ADARFT_SLOPE, ADARFT_AIM = 50.0, 2.0, 0.5


@dataclass(frozen=True)
class Round:
    """Facts of one round's groups as a whole.

    `batch_means`: mean base reward of each consecutive batch; `scaled_mean`: mean reward scaled to [0, 1] by each
    task's bounds, null without a scored rollout; `easy`, `hard`: shares of groups all right and all wrong.
    """

    batch_means: Sequence[float]
    scaled_mean: float | None = None
    easy: float = 0.0
    hard: float = 0.0


@dataclass(frozen=True)
class Standing:
    """Batches in a row above the activation mean, whether selection is active, and the rivals' moving numbers."""

    batches_above: int = 0
    active: bool = False
    adarft_target: float = 0.0
    greso_easy: float = 0.5
    greso_hard: float = 0.5

    @classmethod
    def read(cls, counts: Mapping[str, float]) -> Standing:
        """From the counts of a `groups` manifest; what is not there starts anew."""
        start = cls()
        return cls(
            batches_above=int(counts.get("batches_above", 0)),
            active=bool(counts.get("active", 0)),
            adarft_target=float(counts.get("adarft_target", start.adarft_target)),
            greso_easy=float(counts.get("greso_easy", start.greso_easy)),
            greso_hard=float(counts.get("greso_hard", start.greso_hard)),
        )

    def record(self) -> dict[str, float]:
        """For the counts of a manifest; the inverse of `read`."""
        return {
            "batches_above": self.batches_above,
            "active": int(self.active),
            "adarft_target": self.adarft_target,
            "greso_easy": self.greso_easy,
            "greso_hard": self.greso_hard,
        }

    def after(self, round: Round, config: FilterConfig, first: bool) -> Standing:
        """The standing once this round is known. `first`: no round before it (GRESO adapts after the first epoch)."""
        above, active = self.batches_above, self.active or config.activation_batches == 0
        for mean in round.batch_means:
            above = above + 1 if mean > config.activation_mean else 0
            active = active or above >= config.activation_batches
        moved = replace(self, batches_above=above, active=active)
        if round.scaled_mean is not None:
            step = ADARFT_STEP * math.tanh(ADARFT_SLOPE * (round.scaled_mean - ADARFT_AIM))
            moved = replace(moved, adarft_target=min(100.0, max(0.0, self.adarft_target + step)))
        if first:
            return moved
        return replace(
            moved,
            greso_easy=_towards(self.greso_easy, round.easy, GRESO_TARGET_EASY),
            greso_hard=_towards(self.greso_hard, round.hard, GRESO_TARGET_HARD),
        )


def _towards(chance: float, share: float, target: float) -> float:
    # too many flat groups: draw such tasks more rarely
    step = -GRESO_STEP if share > target else GRESO_STEP
    return min(GRESO_RANGE[1], max(GRESO_RANGE[0], round(chance + step, 10)))
