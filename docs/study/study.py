"""The study's numbers and page.

`python docs/study/study.py --collect RUNS` reads finished runs (of examples/study.sh) into docs/study/runs.parquet,
one row per round. `python docs/study/study.py` makes the plots and the tables of docs/study/README.md anew from that
file alone.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from study_counts import counts, shards, table

from toolsample_cli.bfcl import environment
from toolsample_cli.bfcl.checker import Checker as Official
from toolsample_cli.bfcl.judging import judge_all
from toolsample_cli.bfcl.questions import read_questions
from toolsample_cli.experiment.report import RunRecord, collapsed, collect, figure, final, interval

FOLDER = Path(__file__).resolve().parent
RAW, PAGE = FOLDER / "runs.parquet", FOLDER / "README.md"
ARMS = ("uniform", "dapo", "rds", "tdcl", "dscl", "dmhs", "set", "toolexpander", "everything")
POLICIES = ("policy", "policy-weak")
TRIED = ("fade", "dmhs-calls", "coarse", "coarse-dmhs")
"""Arms that came up while looking for reasons; fewer seeds."""
HELD = "fresh"
COMPONENTS = ("format", "name", "key", "value")
PLAIN = ("round", "rollouts", "trained_on", "reward", "exact", "dead", "all_wrong", *COMPONENTS)


def rows_of(policy: str, folder: Path, checker: Checker | None = None) -> list[dict[str, Any]]:
    """One row per round of every run below `folder`; without a checker the column `bfcl` is empty."""
    rows = []
    for run in sorted(collect(folder), key=lambda run: ((*ARMS, *TRIED).index(run.arm), run.seed)):
        place, steps, trained, cpu = folder / run.arm / f"seed-{run.seed}", 0, 0, 0.0
        times = {line["round"]: line for line in map(json.loads, (place / "times.jsonl").read_text().splitlines())}
        for entry in run.rounds:
            number = entry["round"]
            logged = (place / f"round-{number}" / "checkpoint.steps").glob("*.parquet")
            steps += sum(pl.read_parquet(file, columns=["step"])["step"].n_unique() for file in logged)
            trained += entry.get("trained_on", 0)
            cpu += sum(v["cpu"] for k, v in times[number].items() if k not in ("round", "evaluate"))
            held = entry.get("heldout", {}).get(HELD, {})
            row = {key: entry.get(key) for key in PLAIN} | {"trained_on": trained, "steps": steps, "cpu_seconds": cpu}
            row |= {f"held_{key}": held.get(key) for key in ("exact", *COMPONENTS)}
            last = number == run.rounds[-1]["round"]
            answers = place / f"round-{number}" / "heldout" / HELD / "rollouts"
            row["bfcl"] = checker.accuracy(answers) if checker and last else None
            row["held_plain"] = plain(place) if last else None
            row |= counts(place / f"round-{number}", HELD)
            rows.append({"policy": policy, "arm": run.arm, "seed": run.seed, **row})
    return rows


class Checker:
    """The official BFCL checker on the greedy answers to the held-out tasks, which the runs keep."""

    def __init__(self, scorer: Official, entries: Path, tasks: Path) -> None:
        self.scorer = scorer
        self.questions = {question.id: question for question in read_questions(entries)}
        names = shards(tasks, "task_id", "extra_json")
        parts = [json.loads(extra)["id"].split("-") for extra in names["extra_json"]]  # fresh-multiple-17
        self.ids = dict(zip(names["task_id"], (f"{kind}_{split}-{n}" for split, kind, n in parts), strict=True))

    def accuracy(self, rollouts: Path) -> float:
        """Share of right answers."""
        rows = shards(rollouts, "task_id", "text").iter_rows()
        answers = {self.ids[task]: {"text": text, "finish_reason": "stop"} for task, text in rows}
        judged = judge_all(self.scorer, [self.questions[key] for key in answers], answers, "hermes")
        return sum(bool(row["valid"]) for row, _ in judged) / len(judged)


def plain(place: Path) -> float | None:
    """Held-out exact share when no self-made examples are asked for."""
    folder = place / "plain" / "scores"
    return shards(folder, "exact")["exact"].mean() if folder.exists() else None


def records(frame: pl.DataFrame, policy: str) -> list[RunRecord]:
    """The runs from one starting policy, as the report knows them, in the order of arms in the file."""
    found = []
    for (arm, seed), part in frame.filter(pl.col("policy") == policy).group_by("arm", "seed", maintain_order=True):
        rounds = []
        for row in part.sort("round").iter_rows(named=True):
            held = {"exact": row["held_exact"]} | {key: row[f"held_{key}"] for key in COMPONENTS}
            rounds.append({**row, "heldout": {HELD: held}} if row["held_exact"] is not None else row)
        found.append(RunRecord(str(arm), int(seed), tuple(rounds)))
    return found


def held_curve(run: RunRecord, against: str = "rollouts") -> tuple[np.ndarray, np.ndarray]:
    """(`against`, held-out exact) of every evaluated round."""
    points = [(entry[against], entry["held_exact"]) for entry in run.rounds if entry["held_exact"] is not None]
    return np.array([x for x, _ in points], float), np.array([y for _, y in points], float)


def reach(run: RunRecord, target: float, against: str) -> float:
    """`against` (rollouts, cpu_seconds) when the held-out curve first reaches `target`, interpolated; inf if never."""
    xs, ys = held_curve(run, against)
    above = np.flatnonzero(ys >= target)
    if not len(above):
        return float("inf")
    at = int(above[0])
    if at == 0:
        return float(xs[0])
    return float(xs[at - 1] + (target - ys[at - 1]) / (ys[at] - ys[at - 1]) * (xs[at] - xs[at - 1]))


def median(values: list[float]) -> float | None:
    """Median, or None where it is infinite (fewer than half got there)."""
    middle = float(np.median(values))
    return middle if np.isfinite(middle) else None


def average(run: RunRecord) -> float:
    """Mean height of the held-out curve over the rollout budget (trapezoids): early and late progress in one number."""
    xs, ys = held_curve(run)
    return float(((ys[1:] + ys[:-1]) / 2 * np.diff(xs)).sum() / (xs[-1] - xs[0]))


def paired(values: dict[int, float], base: dict[int, float]) -> str:
    """Mean difference to the baseline over common seeds and its bootstrap interval, in points."""
    both = [100 * (values[seed] - base[seed]) for seed in values if seed in base]
    low, high = interval(both)
    return f"{np.mean(both):+.1f} ({low:+.1f} to {high:+.1f})"


def arm_rows(runs: list[RunRecord]) -> list[dict[str, str]]:
    """One row of the main table an arm."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    base = arms[0]
    of = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    ends = {arm: {run.seed: final(run, HELD) for run in of[arm]} for arm in arms}
    areas = {arm: {run.seed: average(run) for run in of[arm]} for arm in arms}
    checker = {arm: {run.seed: run.rounds[-1]["bfcl"] for run in of[arm]} for arm in arms}
    target = float(np.mean(list(ends[base].values())))
    rows = []
    for arm in arms:
        cost = median([reach(run, target, "rollouts") for run in of[arm]])
        seconds = median([reach(run, target, "cpu_seconds") for run in of[arm]])
        dead = np.mean([entry["dead"] for run in of[arm] for entry in run.rounds if entry["dead"] is not None])
        same = arm == base
        marks = [value for value in checker[arm].values() if value is not None]
        rows.append(
            {
                "arm": arm,
                "seeds": str(len(of[arm])),
                "exact at the end": f"{100 * np.mean(list(ends[arm].values())):.1f}",
                f"to {base}": "" if same else paired(ends[arm], ends[base]),
                "mean of the curve": f"{100 * np.mean(list(areas[arm].values())):.1f}",
                f"to {base} ": "" if same else paired(areas[arm], areas[base]),
                "BFCL checker": f"{100 * np.mean(marks):.1f}" if marks else "–",
                f"rollouts to {base}'s end": f"{cost:,.0f}" if cost else "–",
                "CPU s to it": f"{seconds:.0f}" if seconds else "–",
                "dead groups": f"{100 * dead:.0f} %",
                "collapsed": str(sum(collapsed(run, HELD) for run in of[arm])),
            }
        )
    return rows


def equal_steps(runs: list[RunRecord]) -> list[dict[str, str]]:
    """Optimizer steps, rollouts trained on, seconds; the held-out share after the steps that the shortest run made."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    shortest = min(run.rounds[-1]["steps"] for run in runs)
    rows = []
    for arm in arms:
        some = [run for run in runs if run.arm == arm]
        at = [float(np.interp(shortest, *held_curve(run, "steps"))) for run in some]
        mastery = {name: np.mean([run.rounds[-1][f"held_{name}"] for run in some]) for name in COMPONENTS}
        without = [run.rounds[-1]["held_plain"] for run in some if run.rounds[-1]["held_plain"] is not None]
        rows.append(
            {
                "arm": arm,
                f"exact after {shortest} steps": f"{100 * np.mean(at):.1f}",
                "steps": f"{np.mean([run.rounds[-1]['steps'] for run in some]):.0f}",
                "rollouts trained on": f"{np.mean([run.rounds[-1]['trained_on'] for run in some]):,.0f}",
                "CPU s in all": f"{np.mean([run.rounds[-1]['cpu_seconds'] for run in some]):.0f}",
                **{name: f"{100 * value:.1f}" for name, value in mastery.items()},
                "exact, not asked for examples": f"{100 * np.mean(without):.1f}" if without else "",
            }
        )
    return rows


def markdown(rows: list[dict[str, str]]) -> str:
    """Rows as a Markdown table."""
    columns = list(rows[0])
    lines = [f"| {' | '.join(column.strip() for column in columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row[column] for column in columns)} |" for row in rows)])


def parts(frame: pl.DataFrame) -> dict[str, str]:
    """Name of a generated part of the page -> its text."""
    made = {}
    for policy in frame["policy"].unique(maintain_order=True):
        runs = records(frame, policy)
        starts = [run.rounds[0]["held_exact"] for run in runs if run.arm == runs[0].arm]
        made[policy] = f"Start: {100 * np.mean(starts):.1f} % exact.\n\n{markdown(arm_rows(runs))}"
        if policy in POLICIES:
            made[f"{policy} steps"] = markdown(equal_steps(runs))
            made[f"{policy} counts"] = markdown(table(frame.filter(pl.col("policy") == policy)))
    return made


def plots(frame: pl.DataFrame) -> dict[str, str]:
    """File name -> SVG."""
    made = {}
    for policy in POLICIES:
        runs = [run for run in records(frame, policy) if run.arm in ARMS]
        curves = {"exact": lambda entry: entry.get("held_exact"), "dead": lambda entry: entry.get("dead")}
        curves |= {name: (lambda entry, name=name: entry.get(f"held_{name}")) for name in COMPONENTS}
        titles = {"exact": "held-out exact share", "dead": "dead groups"}
        for name, get in curves.items():
            title = f"{policy}: {titles.get(name, f'held-out mastery, {name}')}"
            made[f"{policy}-{name}.svg"] = figure(runs, get, title)
    return made


def page(text: str, frame: pl.DataFrame) -> str:
    """The page with its generated parts made anew; SystemExit when one has no place on it."""
    for name, body in parts(frame).items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"{PAGE} has no part <!-- {name} -->")
        text = pattern.sub(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)
    return text


def main() -> None:
    """Collect or rebuild."""
    parser = argparse.ArgumentParser(description="the study's numbers and page")
    parser.add_argument("--collect", type=Path, metavar="RUNS", help="read runs into docs/study/runs.parquet first")
    parser.add_argument("--print", action="store_true", help="print the tables and write nothing")
    args = parser.parse_args()
    if args.collect:
        folders = sorted(path.parent for path in args.collect.glob("*/summary.json"))
        with Official(environment.provide("v4")) as scorer:
            checker = Checker(scorer, args.collect.parent / "raw" / "bfcl", args.collect.parent / HELD)
            rows = [row for folder in folders for row in rows_of(folder.name, folder, checker)]
        frame = pl.DataFrame(rows, infer_schema_length=None)
    else:
        frame = pl.read_parquet(RAW)
    if args.print:
        print("\n\n".join(f"## {name}\n{body}" for name, body in parts(frame).items()))
        return
    if args.collect:
        frame.write_parquet(RAW, compression="zstd", statistics=False)
    for name, svg in plots(frame).items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), frame), encoding="utf-8")


if __name__ == "__main__":
    main()
