"""Two evaluations of the same questions, paired: who got what right, how surely, and which entries flipped.

The test is McNemar's exact one: among the entries that flipped, gains and losses are equally likely under no change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from toolsample_cli.bfcl.categories import in_order
from toolsample_cli.json_types import Row


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value of `gained` against `lost` flips; 1 without any flip."""
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n)


def compare_verdicts(mine: Mapping[str, tuple[str, bool | None]], base: Mapping[str, tuple[str, bool | None]]) -> Row:
    """Entry id -> (category, verdict) of both: paired counts by category and in all, and the flipped ids.

    Entries that either model has no verdict on (failed inference) are in `unpaired`.
    """
    paired = {key: (category, bool(valid), bool(base[key][1])) for key, (category, valid) in mine.items()
              if valid is not None and key in base and base[key][1] is not None}  # fmt: skip
    names = in_order({category for category, _, _ in paired.values()})
    by_category = {name: [pair for pair in paired.values() if pair[0] == name] for name in names}
    return {
        "all": _counts(list(paired.values())),
        "categories": {name: _counts(pairs) for name, pairs in by_category.items()},
        "gained": sorted(key for key, (_, now, before) in paired.items() if now and not before),
        "lost": sorted(key for key, (_, now, before) in paired.items() if before and not now),
        "unpaired": len(mine.keys() | base.keys()) - len(paired),
    }


def _counts(pairs: list[tuple[str, bool, bool]]) -> Row:
    gained = sum(now and not before for _, now, before in pairs)
    lost = sum(before and not now for _, now, before in pairs)
    n = len(pairs)
    return {
        "n": n,
        "accuracy": sum(now for _, now, _ in pairs) / n if n else None,
        "base_accuracy": sum(before for _, _, before in pairs) / n if n else None,
        "gained": gained,
        "lost": lost,
        "p_value": mcnemar(gained, lost),
    }


def comparison_table(record: Row) -> str:
    """The comparison as lines of text."""
    lines = [f"{'against the base':<26}{'base':>9}{'model':>9}{'gained':>8}{'lost':>6}{'p':>9}"]
    for name, item in [*record["categories"].items(), ("all paired entries", record["all"])]:
        if item["n"]:
            shares = f"{item['base_accuracy'] * 100:>7.2f} %{item['accuracy'] * 100:>7.2f} %"
            lines.append(f"{name:<26}{shares}{item['gained']:>8}{item['lost']:>6}{item['p_value']:>9.2g}")
    if record["unpaired"]:
        lines.append(f"{record['unpaired']} entries have no verdict from one of the two and are left out")
    return "\n".join(lines)
