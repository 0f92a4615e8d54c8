"""A run folder as tables, plots and one self-contained page.

Arms are compared at equal rollouts: the difference to the baseline arm is paired by seed and its interval is a
percentile bootstrap over seeds. Plots are SVG made by matplotlib (extra `report`).
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from toolsample_cli.errors import DataError, MissingDependency
from toolsample_cli.experiment.round_metrics import read_summary, round_metrics, score_metrics
from toolsample_cli.json_types import Row
from toolsample_cli.shards.schema import COMPONENTS
from toolsample_cli.shards.sealed import read_json
from toolsample_cli.terminal import printable

BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class RunRecord:
    """One run: its arm ("" without arms), seed and the metrics of each round in order."""

    arm: str
    seed: int
    rounds: tuple[Row, ...]

    def series(self, get: Callable[[Row], float | None]) -> tuple[list[int], list[float]]:
        """(rollouts so far, value) of every round in which `get` finds a value."""
        values = [(entry["rollouts"], get(entry)) for entry in self.rounds]
        pairs = [(x, y) for x, y in values if y is not None]
        return [x for x, _ in pairs], [y for _, y in pairs]


def collect(folder: Path) -> list[RunRecord]:
    """The runs below a folder: from the `summary.json` of `toolsample run`, else from its round-N folders."""
    path = folder / "summary.json"
    # examples/summarize.py writes an object of that name
    if path.exists() and isinstance(read_json(path, hint="delete it"), list):
        return [RunRecord(e["arm"], e["seed"], tuple(e["rounds"])) for e in read_summary(path)]
    numbered = sorted(
        (int(match[1]), place)
        for place in folder.glob("round-*")
        if (match := re.fullmatch(r"round-(\d+)", place.name))
    )
    rounds, rollouts = [], 0
    for number, here in numbered:
        if number == 0 or not (here / "scores.manifest.json").exists():
            continue
        metrics = {"round": number, **round_metrics(here)}
        rollouts = metrics["rollouts"] = metrics["rollouts"] + rollouts
        rounds.append(metrics)
    if not rounds:
        raise DataError(
            f"{folder}: no summary.json and no finished round in it",
            hint="expected the output of `toolsample run` or of examples/round.sh",
        )
    return [RunRecord("", 0, tuple(_with_heldout(folder, rounds)))]


def _with_heldout(folder: Path, rounds: list[Row]) -> list[Row]:
    """Held-out scores that stand beside the rounds as before/NAME/scores and after/NAME/scores."""
    start: Row = {"round": 0, "rollouts": 0}
    for when, entry in (("before", start), ("after", rounds[-1])):
        found = {place.parent.name: score_metrics(place) for place in sorted((folder / when).glob("*/scores"))}
        if found:
            entry["heldout"] = found
            if when == "before":
                rounds = [entry, *rounds]
    return rounds


def heldout_names(runs: list[RunRecord]) -> list[str]:
    """Names of the held-out sets, in the order of the first run."""
    return list(dict.fromkeys(name for run in runs for entry in run.rounds for name in entry.get("heldout", {})))


def final(run: RunRecord, heldout: str) -> float | None:
    """Exact share on a held-out set after the last round that measured it."""
    values = run.series(lambda entry: entry.get("heldout", {}).get(heldout, {}).get("exact"))[1]
    return values[-1] if values else None


def rollouts_to(run: RunRecord, heldout: str, target: float) -> int | None:
    """Rollouts spent when the held-out share first reached `target`, or None."""
    xs, ys = run.series(lambda entry: entry.get("heldout", {}).get(heldout, {}).get("exact"))
    return next((x for x, y in zip(xs, ys, strict=True) if y >= target), None)


def collapsed(run: RunRecord, heldout: str) -> bool:
    """Whether held-out exact match ever fell below half of its best so far (our reading of collapse)."""
    best = 0.0
    for value in run.series(lambda entry: entry.get("heldout", {}).get(heldout, {}).get("exact"))[1]:
        if value < best / 2:
            return True
        best = max(best, value)
    return False


def interval(values: list[float], level: float = 0.95, seed: int = 0) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    draws = np.random.default_rng(seed).choice(np.asarray(values), size=(BOOTSTRAPS, len(values)))
    low, high = np.quantile(draws.mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def arm_table(runs: list[RunRecord], heldout: str, baseline: str | None = None) -> list[Row]:
    """One row per arm: final exact share with its interval, paired difference to the baseline, cost to reach it.

    `baseline` defaults to the first arm. `rollouts_to_baseline` is the median over seeds of the rollouts after
    which the run reached the baseline's mean final score; None when fewer than half of its seeds did.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    base = baseline if baseline is not None else arms[0]
    scores = {
        arm: {run.seed: value for run in runs if run.arm == arm and (value := final(run, heldout)) is not None}
        for arm in arms
    }
    if not scores[base]:
        raise DataError(f"no held-out set {heldout!r} was measured in the arm {base!r}")
    target = float(np.mean(list(scores[base].values())))
    rows = []
    for arm in arms:
        values = list(scores[arm].values())
        both = [scores[arm][seed] - scores[base][seed] for seed in scores[arm] if seed in scores[base]]
        cost = [rollouts_to(run, heldout, target) for run in runs if run.arm == arm]
        reached = sorted(value for value in cost if value is not None)
        rows.append(
            {
                "arm": arm,
                "seeds": len(values),
                "exact": _mean(values),
                "exact_interval": interval(values),
                "difference": _mean(both),
                "difference_interval": interval(both),
                "rollouts_to_baseline": reached[(len(cost) - 1) // 2] if 2 * len(reached) > len(cost) else None,
                "collapsed": sum(collapsed(run, heldout) for run in runs if run.arm == arm),
            }
        )
    return rows


def _of(name: str, entry: Row) -> float | None:
    value: float | None = entry.get(name)
    return value


CURVES: dict[str, Callable[[Row], float | None]] = {
    "mean reward of the round's tasks": lambda entry: entry.get("reward"),
    "exactly right, round's tasks": lambda entry: entry.get("exact"),
    "dead groups": lambda entry: entry.get("dead"),
    **{f"mastery: {name}": partial(_of, name) for name in COMPONENTS},
}


def figure(runs: list[RunRecord], get: Callable[[Row], float | None], title: str) -> str:
    """One plot against rollouts as SVG text: the mean of each arm's seeds with each seed faintly behind it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency(
            "matplotlib", needed_for="the report", install="pip install 'toolsample[report]'"
        ) from None
    matplotlib.use("svg")
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "toolsample"  # the same runs give the same file
    plot = Figure(figsize=(5.2, 3.0), layout="constrained")
    axes = plot.subplots()
    for number, arm in enumerate(dict.fromkeys(run.arm for run in runs)):
        lines = [run.series(get) for run in runs if run.arm == arm]
        for xs, ys in lines:
            axes.plot(xs, ys, color=f"C{number}", alpha=0.25, linewidth=0.8)
        points: dict[int, list[float]] = {}
        for _, ys in lines:
            for position, y in enumerate(ys):
                points.setdefault(position, []).append(y)
        longest = max((xs for xs, _ in lines), key=len, default=[])
        axes.plot(
            longest,
            [float(np.mean(points[i])) for i in range(len(longest))],
            color=f"C{number}",
            label=_plotted(arm or "run"),
        )
    axes.set_title(_plotted(title), fontsize=10)
    axes.set_xlabel("rollouts")
    axes.grid(alpha=0.3)
    if len({run.arm for run in runs}) > 1:
        axes.legend(fontsize=7)
    buffer = io.StringIO()
    plot.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _plotted(text: str) -> str:
    return printable(text).replace("$", r"\$")  # a dollar would begin a formula


def figures(runs: list[RunRecord]) -> dict[str, str]:
    """Title -> SVG of every curve for which the runs have at least two points."""
    curves = {
        f"held-out exact: {name}": (lambda entry, name=name: entry.get("heldout", {}).get(name, {}).get("exact"))
        for name in heldout_names(runs)
    }
    wanted = {**curves, **CURVES}
    return {
        title: figure(runs, get, title)
        for title, get in wanted.items()
        if any(len(run.series(get)[0]) > 1 for run in runs)
    }


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.plots{display:flex;flex-wrap:wrap;gap:1em}"
)


def page(folder: Path, runs: list[RunRecord]) -> str:
    """The whole report as one HTML text without outside references."""
    title = _escaped(f"toolsample: {folder.name}")
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    ]
    if len({run.arm for run in runs}) > 1:
        for name in heldout_names(runs):
            parts.append(f"<h2>Held-out: {_escaped(name)}</h2>{_html_table(arm_table(runs, name))}")
    elif heldout_names(runs):  # nothing to compare: one table says where each set started and ended
        parts.append(f"<h2>Held-out, exactly right</h2>{_html_table([_course(runs, n) for n in heldout_names(runs)])}")
    parts.append(
        f"<h2>Curves</h2><div class=plots>{''.join(f'<div>{svg}</div>' for svg in figures(runs).values())}</div>"
    )
    parts.append(f"<h2>Rounds</h2>{_html_table([_flat(run, entry) for run in runs for entry in run.rounds])}</html>")
    return "\n".join(parts)


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _course(runs: list[RunRecord], heldout: str) -> Row:
    """First and last exact share on a held-out set, as means over seeds, and the interval of the last over several."""
    series = [run.series(lambda entry: entry.get("heldout", {}).get(heldout, {}).get("exact"))[1] for run in runs]
    starts, ends = ([values[at] for values in series if values] for at in (0, -1))
    row = {"set": heldout, "start": float(np.mean(starts)), "end": float(np.mean(ends))}
    return row if len(ends) < 2 else {**row, "end_interval": interval(ends), "seeds": len(ends)}


def _flat(run: RunRecord, entry: Row) -> Row:
    held = {f"held-out {name}": values["exact"] for name, values in entry.get("heldout", {}).items()}
    plain = {key: value for key, value in entry.items() if not isinstance(value, dict | list)}
    return {"arm": run.arm or "run", "seed": run.seed, **plain, **held}


def _html_table(rows: list[Row]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{_escaped(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_escaped(cell_text(row.get(c)))}</td>" for c in columns) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def cell_text(value: Any) -> str:
    """A table cell: three digits for numbers, a range for an interval, a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, tuple | list):
        return f"{value[0]:.3f} to {value[1]:.3f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
