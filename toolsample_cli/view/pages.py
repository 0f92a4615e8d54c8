"""What each page of the viewer shows, as plain values for its template; every state of a page is in its address."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import urlencode

import polars as pl

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.inspection.argument_diff import compare
from toolsample_cli.inspection.question import ShardQuestion, ask
from toolsample_cli.inspection.saved_questions import SAVED, saved
from toolsample_cli.inspection.shard_folders import ShardFolder
from toolsample_cli.inspection.views import open_view, scan
from toolsample_cli.json_types import Row
from toolsample_cli.shards.schema import COMPONENTS
from toolsample_cli.view.round_numbers import (
    FactsCache,
    decoded,
    errors_by_tool,
    heatmap,
    round_numbers,
    scatter,
    visits,
)
from toolsample_cli.view.run_tree import RunFolder, runs_below
from toolsample_cli.view.tokens import coloured_tokens

KINDS = ("groups", "scores", "rollouts", "tasks")
PAGE = 50
"""Rows of a table on one page."""
LONGEST = 400
"""Characters of a cell."""
CURVES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Components, share of what can be earned", ("exact", *COMPONENTS), "share"),
    ("Reward", ("reward",), ""),
    ("Mastery", tuple(f"mastery {name}" for name in COMPONENTS), "share"),
    ("Weights of the sub-tasks", tuple(f"weight {name}" for name in COMPONENTS[1:]), ""),
    ("Loss", ("step loss",), ""),
    ("Entropy", ("step entropy",), ""),
    ("Clipped tokens", ("step clip_low", "step clip_high"), "share"),
    ("KL from the sampled policy", ("step kl_behaviour",), ""),
    ("Learning rate", ("step lr",), ""),
    ("Tokens per completion", ("step completion_tokens",), ""),
    ("Gradient norm", ("step grad_norm",), ""),
    ("Schema-valid calls, few-shot rollouts", ("schema_valid", "few_shot"), "share"),
)
"""Title, facts on one pair of axes, and whether they are shares."""
STACKS = ("all right", "none right", "dead, none right")
ORDER = ["dead, none right", "none right", "mixed", "all right"]
COLOURS = ["#9aa0a6", "#e07b39", "#4f8fd0", "#5aa469"]


class Pages:
    """The pages over some folders of runs."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.cache = FactsCache()
        self.runs()  # a folder without rounds is refused at once

    def runs(self) -> dict[str, RunFolder]:
        """Every run by its address name; looked up anew, since runs grow."""
        found: dict[str, RunFolder] = {}
        for folder in self.folders:
            for run in runs_below(folder):
                name = f"{folder.name}/{run.name}" if run.name != "." else folder.name
                found[name] = run
        return found

    def _run(self, query: Row) -> tuple[str, RunFolder, dict[str, RunFolder]]:
        runs = self.runs()
        name = query.get("run") or next(iter(runs))
        if name not in runs:
            raise ConfigError(f"no run {name!r} here", hint=f"one of {', '.join(runs)}")
        return name, runs[name], runs

    def overview(self, query: Row) -> Row:
        """Curves of one run, and the held-out curves of all."""
        name, run, runs = self._run(query)
        facts = self._facts(run)
        charts = [self._lines(title, names, facts, unit) for title, names, unit in CURVES]
        heldout = [
            {"x": one["round"], "y": value, "series": f"{other}: {key[8:]}"}
            for other, folder in runs.items()
            for one in self._facts(folder)
            for key, value in one.items()
            if key.startswith("heldout ") and not key.startswith("heldout n ")
        ]
        charts.insert(0, {"title": "Held-out, exact", "kind": "lines", "rows": heldout, "unit": "share"})
        charts.insert(
            3, self._stack("Groups by what was right", _groups_stacked(facts)) | {"order": ORDER, "colours": COLOURS}
        )
        reasons = [
            {"x": one["round"], "y": count, "series": reason}
            for one in facts
            for reason, count in (one.get("reasons") or {}).items()
        ]
        charts.insert(4, self._stack("Verdicts of filter", reasons))
        cells = [row for number in run.rounds for row in self.cache.get("heat", run, number, heatmap)["rows"]]
        return {
            "title": name, "run": name, "runs": list(runs), "rounds": run.rounds, "facts": facts,
            "charts": [chart for chart in charts if chart["rows"]],
            "heat": {"title": "Category and component over the rounds", "kind": "heat", "rows": cells, "unit": "share"},
            "seconds": _seconds(run), "differences": _differences(runs),
            "command": _command("toolsample", "report", str(run.path)),
        }  # fmt: skip

    def _facts(self, run: RunFolder) -> list[Row]:
        return [self.cache.get("facts", run, number, round_numbers) for number in run.rounds]

    @staticmethod
    def _lines(title: str, names: tuple[str, ...], facts: list[Row], unit: str) -> Row:
        rows = [
            {"x": one["round"], "y": one[name], "series": name.partition(" ")[2] or name}
            for name in names
            for one in facts
            if name in one
        ]
        return {"title": title, "kind": "lines", "rows": rows, "unit": unit}

    @staticmethod
    def _stack(title: str, rows: list[Row]) -> Row:
        return {"title": title, "kind": "stack", "rows": rows, "unit": ""}

    def round(self, query: Row) -> Row:
        """One round: its groups as points, errors by tool, and a table that questions narrow."""
        name, run, _ = self._run(query)
        number = _number(query, "round", run.rounds[-1])
        if number not in run.rounds:
            raise ConfigError(f"no round {number} in {name}", hint=f"rounds {', '.join(map(str, run.rounds))}")
        address = {"run": name, "round": number}
        points = self.cache.get("points", run, number, scatter)
        tools = self.cache.get("tools", run, number, errors_by_tool)
        return {
            "title": f"{name}, round {number}", "run": name, "number": number, "rounds": run.rounds,
            "facts": self.cache.get("facts", run, number, round_numbers),
            "scatter": {"title": "Mean and variance of each group's reward", "kind": "scatter", "rows": points["rows"],
                        "unit": "", "link": "/task?" + urlencode({"run": name}) + "&id="},
            "shown": len(points["rows"]), "of": points["of"],
            "tools": {"title": "Errors by gold tool", "kind": "bars", "rows": tools["rows"], "unit": ""},
            "table": self._table(run, number, query, address), "saved": SAVED, "kinds": KINDS,
        }  # fmt: skip

    def _table(self, run: RunFolder, number: int, query: Row, address: Row) -> Row:
        """A page of the rows that the question in the address finds; an error in it is shown above the table."""
        kind = query.get("kind") or "groups"
        asked, where = query.get("ask") or "", query.get("where") or ""
        sort, desc = query.get("sort") or "", query.get("desc") == "1"
        page = max(0, _number(query, "page", 0))
        table: Row = {
            "kind": kind, "ask": asked, "where": where, "sort": sort, "desc": desc, "page": page, "rows": [],
            "columns": [], "matched": 0, "error": "", "meaning": "", "address": address, "pages": 0, "ids": "",
        }  # fmt: skip
        question = ShardQuestion(where or None, sort or None, desc)
        try:
            if asked:
                one = saved(asked)
                kind, table["meaning"] = one.kind, one.meaning
                joined = " and ".join(f"({text})" for text in (one.question.where, where) if text)
                question = ShardQuestion(joined or None, sort or one.question.sort, desc if sort else one.question.desc,
                                    one.question.columns)  # fmt: skip
                table["kind"] = kind
            view = open_view([_shards(run, number, kind)], kind)
            answer = ask(
                view, ShardQuestion(question.where, question.sort, question.desc, question.columns, None, None)
            )
        except (ConfigError, DataError) as error:
            table["error"] = f"{error}" + (f" ({error.hint})" if error.hint else "")
            return table
        rows = answer.rows.slice(page * PAGE, PAGE)
        table["matched"], table["pages"] = answer.matched, -(-answer.matched // PAGE)
        table["columns"] = rows.columns
        table["rows"] = [
            {"cells": [_cell(value) for value in row.values()], "link": _link(row, address)}
            for row in rows.iter_rows(named=True)
        ]
        words = ["toolsample", "inspect", str(_shards(run, number, kind)), *(["--ask", asked] if asked else [])]
        words += ["--where", where] if where else []
        words += ["--sort", sort] if sort else []
        words += ["--desc"] if desc and sort else []
        table["command"] = _command(*words)
        return table

    def task(self, query: Row) -> Row:
        """One task: what is asked, what is right, and every sample of it over the rounds."""
        name, run, _ = self._run(query)
        wanted = query.get("id") or ""
        task = _task(run, wanted)
        slot = task.get("parent_task_id") or task["task_id"]
        samples = visits(run, slot)
        return {
            "title": f"task {wanted}", "run": name, "task": task, "slot": slot,
            "messages": decoded(task["messages_json"]), "tools": decoded(task["tools_json"]),
            "gold": decoded(task["gold_json"]), "issues": decoded(task["gold_issues_json"]),
            "demos": decoded(task["demos_json"]), "samples": samples,
            "dots": {"title": "Reward of every sample", "kind": "dots", "unit": "",
                     "link": "/sample?" + urlencode({"run": name}) + "&id=",
                     "rows": [{"x": s["round"], "y": s["reward"], "id": s["rollout_id"], "shots": s["shots"],
                               "exact": s["exact"]} for s in samples]},
            "command": _command("toolsample", "inspect", str(run.path), "--id", wanted),
        }  # fmt: skip

    def sample(self, query: Row) -> Row:
        """One completion with its score, the differences to the gold, and another sample beside it."""
        name, run, _ = self._run(query)
        wanted = query.get("id") or ""
        first = _sample(run, wanted)
        task = _task(run, first["score"]["task_id"])
        siblings = [one["rollout_id"] for one in visits(run, first["score"]["slot_id"])]
        beside = query.get("beside") or ""
        shown = [first, *([_sample(run, beside)] if beside else [])]
        gold = _calls(task["gold_json"])
        for one in shown:
            one["differences"] = compare(gold, _calls(one["score"]["calls_json"]))
            one["tokens"] = coloured_tokens(one["rollout"], run.models())
        return {
            "title": f"sample {wanted}", "run": name, "id": wanted, "task": task, "shown": shown, "beside": beside,
            "siblings": [one for one in siblings if one != wanted], "messages": decoded(task["messages_json"]),
            "command": _command("toolsample", "inspect", str(first["scores"].path), "--id", wanted),
        }  # fmt: skip


def _calls(text: str) -> list[Row]:
    value = decoded(text)
    return value if isinstance(value, list) else []


def _shards(run: RunFolder, number: int, kind: str) -> Path:
    """Where a round's shards of a kind lie; its tasks are those that the round before drew."""
    if kind not in KINDS:
        raise ConfigError(f"kind = {kind!r}: not one of {', '.join(KINDS)}")
    return run.round(number - 1 if kind == "tasks" else number) / kind


def _groups_stacked(facts: list[Row]) -> list[Row]:
    rows = []
    for one in facts:
        if "groups" in one:
            parts = {name: one[name] for name in STACKS}
            parts["mixed"] = one["groups"] - sum(parts.values())
            rows += [{"x": one["round"], "y": count, "series": series} for series, count in parts.items()]
    return rows


def _seconds(run: RunFolder) -> Row:
    """Seconds of each stage per round, from times.jsonl."""
    file = run.path / "times.jsonl"
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        entry = decoded(line)
        if isinstance(entry, dict):
            rows += [
                {"x": entry.get("round"), "y": part.get("wall"), "series": stage}
                for stage, part in entry.items()
                if isinstance(part, dict)
            ]
    return {"title": "Seconds per stage", "kind": "stack", "rows": rows, "unit": ""}


def _differences(runs: dict[str, RunFolder]) -> Row:
    """Settings in which the runs differ: setting -> one value per run."""
    plans = {name: _flat(run.plan() or {}) for name, run in runs.items()}
    plans = {name: plan for name, plan in plans.items() if plan}
    names = sorted({key for plan in plans.values() for key in plan} - {"arm", "seed", "folder"})
    differing = [key for key in names if len({str(plan.get(key)) for plan in plans.values()}) > 1]
    return {"runs": list(plans), "rows": [(key, [plan.get(key) for plan in plans.values()]) for key in differing]}


def _flat(plan: Row) -> Row:
    flat: Row = {}
    for stage, table in plan.items():
        flat |= {f"{stage}.{key}": value for key, value in table.items()} if isinstance(table, dict) else {stage: table}
    return flat


def _find(place: ShardFolder | None, column: str, wanted: str) -> Row | None:
    if place is None:
        return None
    found = scan(place).filter(pl.col(column) == wanted).head(1).collect(engine="streaming")
    return found.row(0, named=True) if found.height else None


def _task(run: RunFolder, wanted: str) -> Row:
    """The task as it was rolled out, newest round first, else from the corpus beside the rounds."""
    for number in reversed(run.rounds):
        row = _find(run.shards(number, "tasks"), "task_id", wanted)
        if row is not None:
            return row
    raise ConfigError(f"no task {wanted!r} in the rounds of {run.path}", hint="ids are those of the tables")


def _sample(run: RunFolder, wanted: str) -> Row:
    """{score, rollout, batch, record} of a rollout; those that are not there are None."""
    parts = wanted.rsplit("/", 2)
    number = int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else -1
    scores = run.shards(number, "scores") if number in run.rounds else None
    score, rollout = (
        _find(scores, "rollout_id", wanted),
        _find(run.shards(number, "rollouts"), "rollout_id", wanted) if scores else None,
    )
    if score is None or rollout is None:
        raise ConfigError(f"no sample {wanted!r} in {run.path}", hint="ids are task_id/round/sample")
    return {
        "id": wanted,
        "scores": scores,
        "score": score,
        "rollout": rollout,
        "batch": _find(run.shards(number, "batch"), "rollout_id", wanted),
        "record": _find(run.shards(number, "checkpoint.records"), "rollout_id", wanted),
    }


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _link(row: Row, address: Row) -> str:
    if row.get("rollout_id"):
        return "/sample?" + urlencode({"run": address["run"], "id": row["rollout_id"]})
    if row.get("task_id"):
        return "/task?" + urlencode({"run": address["run"], "id": row["task_id"]})
    return ""


def _number(query: Row, name: str, default: int) -> int:
    text = query.get(name)
    if text is None or text == "":
        return default
    if not str(text).lstrip("-").isdigit() or len(str(text)) > 9:
        raise ConfigError(f"{name} = {text!r}: not a number")
    return int(text)


def _command(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)
