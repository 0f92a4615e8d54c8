"""The collapse alarm (our reading of ToolExpander's mid-training collapse; the paper's test is not public to us).

Collapse: the moving mean of the exact-match share over 50 steps falls below half of its running maximum, or the
format share falls below 0.5 after having been above 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 50
FORMAT_HIGH, FORMAT_LOW = 0.9, 0.5
NOISE = 0.02
"""A running maximum below this is noise: nothing was there that could collapse."""


def collapse(exact: Sequence[float], form: Sequence[float]) -> str | None:
    """Why the alarm rings after the last of these steps (one value per step, oldest first), or None."""
    if len(exact) >= WINDOW:
        sums = [sum(exact[:WINDOW])]
        for old, new in zip(exact, exact[WINDOW:], strict=False):
            sums.append(sums[-1] + new - old)
        best = max(sums) / WINDOW
        if best > NOISE and sums[-1] / WINDOW < best / 2:
            return f"exact share fell to {sums[-1] / WINDOW:.1%} from {best:.1%} (means of {WINDOW} steps)"
    if form and max(form) > FORMAT_HIGH and form[-1] < FORMAT_LOW:
        return f"format share fell to {form[-1]:.1%} after having been {max(form):.1%}"
    return None
