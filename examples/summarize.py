"""The demo's table: exact match and official BFCL accuracy before and after, with a paired test.

    python examples/summarize.py RUN [--seconds S]

Reads the shards that the commands left in RUN and writes RUN/summary.json.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

KINDS = {"fresh": "fresh requests", "phrasing": "unseen phrasings", "tools": "unseen tools"}
COMPONENTS = ("format", "name", "key", "value")


def read(folder: Path) -> pl.DataFrame:
    """All shards of a folder, in order."""
    return pl.concat([pl.read_parquet(file, glob=False) for file in sorted(folder.glob("*.parquet"))])


def mcnemar(before: pl.Series, after: pl.Series) -> float:
    """Two-sided exact p-value that before and after are equally often right on the same tasks."""
    gained, lost = int((~before & after).sum()), int((before & ~after).sum())
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(max(gained, lost), n + 1))
    return min(1.0, 2 * tail / 2**n)


def paired(run: Path, kind: str) -> pl.DataFrame:
    """Scores before and after of the same held-out tasks, side by side."""
    before, after = (read(run / when / kind / "scores") for when in ("before", "after"))
    joined = before.join(after, on="task_id", suffix="_after", validate="1:1")
    if not joined.height == before.height == after.height:
        raise SystemExit(f"{run}: before and after are not the same tasks ({before.height}, {after.height})")
    return joined


def share(frame: pl.DataFrame, component: str, suffix: str = "") -> float | None:
    """Mean of a component over its maximum, where the task has one."""
    return frame.select((pl.col(component + suffix) / pl.col(f"{component}_max{suffix}")).mean()).item()


def bfcl_accuracy(folder: Path) -> float:
    """Share of entries the official checker calls valid; failed inference counts as wrong."""
    return read(folder / "entries")["valid"].fill_null(False).mean()


def percents(before: float, after: float) -> tuple[str, str, str]:
    """Before, after and gain for the table."""
    return f"{before:.1%}", f"{after:.1%}", f"{after - before:+.1%}"


def summarise(run: Path, seconds: float | None) -> tuple[dict, Table]:
    """The summary record and its table."""
    table = Table("held-out", "n", "exact before", "exact after", "gain", "p", title=f"{run}: greedy, zero-shot")
    kinds = {}
    for kind, label in KINDS.items():
        frame = paired(run, kind)
        before, after = frame["exact"].fill_null(False), frame["exact_after"].fill_null(False)
        p = mcnemar(before, after)
        kinds[kind] = {"n": frame.height, "exact_before": before.mean(), "exact_after": after.mean(), "p_value": p}
        for component in COMPONENTS:
            kinds[kind][f"{component}_before"] = share(frame, component)
            kinds[kind][f"{component}_after"] = share(frame, component, "_after")
        gain = after.mean() - before.mean()
        table.add_row(
            label, str(frame.height), f"{before.mean():.1%}", f"{after.mean():.1%}", f"{gain:+.1%}", f"{p:.2g}"
        )
    official = [bfcl_accuracy(run / when / "bfcl") for when in ("before", "after")]
    table.add_row(
        "BFCL checker", "", f"{official[0]:.1%}", f"{official[1]:.1%}", f"{official[1] - official[0]:+.1%}", ""
    )
    fresh = kinds["fresh"]
    summary = {
        "exact_before": fresh["exact_before"],
        "exact_after": fresh["exact_after"],
        "n_heldout": fresh["n"],
        "p_value": fresh["p_value"],
        "bfcl_before": official[0],
        "bfcl_after": official[1],
        "seconds": seconds,
        "heldout": kinds,
    }
    return summary, table


def main() -> None:
    """Print the table and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=None, help="wall time of the whole demo, for the record")
    arguments = parser.parse_args()
    summary, table = summarise(arguments.run, arguments.seconds)
    (arguments.run / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    Console().print(table)
    print(f"wrote {arguments.run / 'summary.json'}")


if __name__ == "__main__":
    main()
