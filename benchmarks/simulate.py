"""Plans a run without a model: every selection method spends the same rollouts on the same simulated learners.

`python benchmarks/simulate.py --json [--seeds 20] [--rounds 70] [--plot FILE.svg]`. The decisions are made by the
project's own functions (groups, selection, curriculum, hardness, draw); only the rollouts and the learner are
simulated (`simulated_world.py`). Prints, for each arm, rollouts until 90 % of the reachable gain, the share of dead
groups and the final value, as means over seeds with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # frames are small; the seeds are the parallel part

import numpy as np
from simulated_fleet import Arm, Fleet
from simulated_world import Settings

from toolsample_cli.filter import decide as selection

PLAIN = {"weighting": "none"}
ONCE = {"hard_after": 8}  # one group without a right completion, as 10 are in the paper

ARMS = {
    "none": Arm({"method": "none"}, PLAIN),
    **{m: Arm({"method": m}, PLAIN) for m in selection.METHODS if m != "none"},
    "rds lambda 0": Arm({"method": "rds", "state_weight": 0.0}, PLAIN),
    "rds lambda 1": Arm({"method": "rds", "state_weight": 1.0}, PLAIN),
    "dapo reward": Arm({"method": "dapo", "metric": "reward"}, PLAIN),
    "tdcl": Arm({"method": "none"}),
    "dscl": Arm({"method": "rds"}),
    "dmhs": Arm({"method": "none"}, {**PLAIN, "hard": "fewshot", **ONCE}),
    "drop": Arm({"method": "none"}, {**PLAIN, "hard": "drop", **ONCE}),
    "dscl + dmhs": Arm({"method": "rds"}, {"hard": "fewshot", **ONCE}),
    "dapo + dmhs": Arm({"method": "dapo"}, {**PLAIN, "hard": "fewshot", **ONCE}),
}


def reach(track: dict[str, list[float]], ceiling: float, rollouts: int, share: float = 0.9) -> float:
    """Rollouts until `share` of the gain from the first value to the ceiling, interpolated; infinite if never."""
    value = np.array(track["value"])
    goal = value[0] + share * (ceiling - value[0])
    above = np.flatnonzero(value >= goal)
    if not len(above):
        return math.inf
    at = int(above[0])
    part = (goal - value[at - 1]) / (value[at] - value[at - 1]) if at else 0.0
    return (at - 1 + part) * rollouts if at else 0.0


Track = dict[str, list[float]]


def one(job: tuple[str, int, int, Settings]) -> list[tuple[str, Track, float]]:
    """One arm on worlds 0 .. seeds - 1: (arm, track, ceiling) of each."""
    name, seeds, rounds, settings = job
    fleet = Fleet(ARMS[name], range(seeds), settings)
    return [(name, track, world.ceiling()) for track, world in zip(fleet.go(rounds), fleet.worlds, strict=True)]


def interval(values: np.ndarray) -> dict[str, float]:
    """Mean and half-width of its 95 % interval over seeds (Student's t)."""
    n = len(values)
    t = {20: 2.093, 24: 2.069, 30: 2.045, 32: 2.040, 40: 2.023}.get(n, 1.96 + 2.5 / max(n - 1, 1))
    half = t * values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return {"mean": round(float(values.mean()), 4), "half": round(float(half), 4)}


def summarise(runs: list[tuple[str, Track, float]], rounds: int) -> dict[str, dict]:
    """Per arm; arms that miss the goal count with the whole budget, and `reached` says how many got there."""
    cost = Fleet.per_round * Fleet.n
    found: dict[str, dict] = {}
    for arm in dict.fromkeys(name for name, *_ in runs):
        mine = [(track, ceiling) for name, track, ceiling in runs if name == arm]
        needed = np.array([reach(track, ceiling, cost) for track, ceiling in mine])
        gain = [(t["value"][-1] - t["value"][0]) / (ceiling - t["value"][0]) for t, ceiling in mine]
        dead = np.array([track["dead"] for track, _ in mine])
        found[arm] = {
            "rollouts_to_90": interval(np.minimum(needed, rounds * cost)),
            "reached": int(np.isfinite(needed).sum()),
            "gain": interval(np.array(gain)),
            "gains": [round(value, 5) for value in gain],
            "dead_share": interval(dead.mean(axis=1)),
            "dead_by_tenth": [round(float(part.mean()), 3) for part in np.array_split(dead, 10, axis=1)],
            "curve": [round(float(v), 4) for v in np.mean([t["value"] for t, _ in mine], axis=0)[:: step(rounds)]],
        }
    return found


def over_none(found: dict[str, dict]) -> None:
    """Add each arm's gain over plain GRPO on the same worlds, so that their luck cancels."""
    for arm in found.keys() - {"none"} if "none" in found else ():
        found[arm]["gain_over_none"] = interval(np.array(found[arm]["gains"]) - np.array(found["none"]["gains"]))


SHOWN = ("none", "dapo", "rds", "rds-cond", "vcrl", "dmhs", "dapo + dmhs", "dscl + dmhs")


def step(rounds: int) -> int:
    """Rounds between two points of a stored curve."""
    return max(rounds // 50, 1)


def plot(found: dict[str, dict], path: Path, rounds: int) -> None:
    """Left: value over rollouts of the best-known arms; right: rollouts to 90 % with intervals, all arms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "toolsample", "font.size": 8})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), gridspec_kw={"width_ratios": [1.1, 1]})
    cost = Fleet.per_round * Fleet.n
    shown = [arm for arm in SHOWN if arm in found]
    for arm in shown:
        curve = found[arm]["curve"]
        left.plot(np.arange(len(curve)) * step(rounds) * cost, curve, label=arm, linewidth=1.2)
    left.set(xlabel="rollouts", ylabel="expected reward, scaled", title="what the learner can do")
    left.legend(frameon=False)
    order = sorted(found, key=lambda arm: (found[arm]["rollouts_to_90"]["mean"], -found[arm]["gain"]["mean"]))
    means, halves = ([found[arm]["gain"][key] for arm in order] for key in ("mean", "half"))
    right.errorbar(means, range(len(order)), xerr=halves, fmt="o", markersize=3)
    right.set_yticks(range(len(order)), order)
    right.invert_yaxis()
    right.set(xlabel=f"share of the reachable gain after {rounds * cost:,} rollouts", title="all arms, 95 % intervals")
    right.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def table(found: dict[str, dict], seeds: int) -> str:
    """The arms as a Markdown table, the best gain first."""

    def cell(value: dict | None, form: str) -> str:
        return "" if value is None else f"{value['mean']:{form}} ± {value['half']:{form.lstrip('+')}}"

    lines = ["| arm | rollouts to 90 % | reached | gain | over none | dead groups |", "|---|---:|---:|---:|---:|---:|"]
    for arm, row in sorted(found.items(), key=lambda item: -item[1]["gain"]["mean"]):
        cells = [cell(row["rollouts_to_90"], ",.0f"), f"{row['reached']}/{seeds}", cell(row["gain"], ".3f")]
        cells += [cell(row.get("gain_over_none"), "+.3f"), cell(row["dead_share"], ".3f")]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, simulate (or read what was simulated), print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--arms", help="comma-separated; default all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--plot", type=Path, help="write a plot (needs matplotlib)")
    parser.add_argument(
        "--read", type=Path, nargs="+", help="join the results of earlier --json runs, simulate nothing"
    )
    given = parser.parse_args()
    if given.read:
        read = [json.loads(path.read_text()) for path in given.read]
        record = {**read[0], "arms": {arm: row for part in read for arm, row in part["arms"].items()}}
    else:
        arms = given.arms.split(",") if given.arms else list(ARMS)
        jobs = [(arm, given.seeds, given.rounds, Settings()) for arm in arms]
        with ProcessPoolExecutor(given.jobs) as pool:
            runs = [run for arm in pool.map(one, jobs) for run in arm]
        record = {"seeds": given.seeds, "rounds": given.rounds, "arms": summarise(runs, given.rounds)}
    over_none(record["arms"])
    if given.plot:
        plot(record["arms"], given.plot, record["rounds"])
    print(json.dumps(record) if given.json else table(record["arms"], record["seeds"]))


if __name__ == "__main__":
    main()
