"""The numbers of a round for the overview, from its shards; read once per state of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from toolsample_cli.inspection.shard_folders import ShardFolder
from toolsample_cli.inspection.views import scan
from toolsample_cli.json_types import Row
from toolsample_cli.shards.schema import COMPONENTS
from toolsample_cli.view.run_tree import RunFolder, read_object

STEP_METRICS = (
    "loss", "entropy", "clip_low", "clip_high", "kl_behaviour", "lr", "completion_tokens", "grad_norm", "ratio_max",
)  # fmt: skip
"""Metrics of the optimizer steps that are drawn, as means over a round."""


class FactsCache:
    """Facts by folder and what its manifests looked like; a round that changed is read anew."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[tuple[int, ...], Row]] = {}

    def get(self, what: str, run: RunFolder, number: int, make: Callable[[RunFolder, int], Row]) -> Row:
        """`make(run, number)`, kept until a manifest or a shard folder of the round changes."""
        folder = run.round(number)
        seen = tuple(sorted(file.stat().st_mtime_ns for file in folder.iterdir())) if folder.is_dir() else ()
        key = (what, str(folder))
        kept = self._kept.get(key)
        if kept is None or kept[0] != seen:
            kept = self._kept[key] = (seen, make(run, number))
        return kept[1]


def round_numbers(run: RunFolder, number: int) -> Row:
    """One row of the overview's curves: what is not there yet is missing, not zero."""
    facts: Row = {"round": number}
    scores, groups = run.shards(number, "scores"), run.shards(number, "groups")
    if scores is not None:
        facts |= _score_facts(scores)
    if groups is not None:
        facts |= _group_facts(groups)
    steps = run.shards(number, "checkpoint.steps")
    if steps is not None:
        facts |= _step_facts(steps)
    facts |= _state_facts(run.round(number) / "state.json")
    measured = read_object(run.round(number) / "round.json") or {}
    for name, metrics in (measured.get("heldout") or {}).items():
        facts[f"heldout {name}"] = metrics.get("exact")
        facts[f"heldout n {name}"] = metrics.get("n")
    bfcl = read_object(run.round(number) / "bfcl" / "summary.json") or {}
    facts["bfcl"] = (bfcl.get("all_entries") or {}).get("accuracy")
    return {key: value for key, value in facts.items() if value is not None}


def shares() -> dict[str, pl.Expr]:
    """Each component over its maximum; null where nothing can be earned."""
    return {name: pl.when(pl.col(f"{name}_max") > 0).then(pl.col(name) / pl.col(f"{name}_max")) for name in COMPONENTS}


def _score_facts(place: ShardFolder) -> Row:
    frame = scan(place).select(
        rollouts=pl.len(),
        reward=pl.col("reward").mean(),
        exact=pl.col("exact").mean(),
        schema_valid=pl.col("schema_valid").mean(),
        few_shot=(pl.col("shots") > 0).mean(),
        **{name: share.mean() for name, share in shares().items()},
    )
    return frame.collect(engine="streaming").row(0, named=True)


def _group_facts(place: ShardFolder) -> Row:
    fresh = scan(place).filter(pl.col("last_round") == pl.col("last_round").max())
    kinds = fresh.select(
        right=(pl.col("n_exact") == pl.col("n")) & (pl.col("n") > 0),
        none=(pl.col("n_exact") == 0),
        flat=pl.col("reward_var").fill_null(0.0) == 0.0,
        reason=pl.col("reason"),
    ).collect(engine="streaming")
    reasons = dict(kinds["reason"].value_counts().sort("reason").iter_rows())
    return {
        "groups": kinds.height,
        "all right": int(kinds["right"].sum()),
        "none right": int((kinds["none"] & ~kinds["flat"]).sum()),
        "dead, none right": int((kinds["none"] & kinds["flat"]).sum()),
        "reasons": reasons,
    }


def _step_facts(place: ShardFolder) -> Row:
    means = scan(place).filter(pl.col("metric").is_in(STEP_METRICS)).group_by("metric").agg(pl.col("value").mean())
    return {f"step {name}": value for name, value in means.collect(engine="streaming").sort("metric").iter_rows()}


def _state_facts(path: Path) -> Row:
    state = read_object(path) or {}
    facts = {f"weight {name}": value for name, value in (state.get("weights") or {}).items()}
    return facts | {f"mastery {name}": value for name, value in (state.get("mastery") or {}).items()}


def heatmap(run: RunFolder, number: int) -> Row:
    """Mean share of each component by category in one round, as rows for the page."""
    place = run.shards(number, "scores")
    if place is None:
        return {"rows": []}
    means = (
        scan(place)
        .group_by("category")
        .agg(pl.len().alias("n"), pl.col("exact").mean(), **{name: share.mean() for name, share in shares().items()})
    )
    rows = []
    for row in means.collect(engine="streaming").sort("category").iter_rows(named=True):
        for name in ("exact", *COMPONENTS):
            if row[name] is not None:
                rows.append(
                    {"round": number, "category": row["category"], "component": name, "share": row[name], "n": row["n"]}
                )
    return {"rows": rows}


def errors_by_tool(run: RunFolder, number: int) -> Row:
    """How often each gold tool's answers failed, and at what: the first sub-task that is not wholly right."""
    scores, tasks = run.shards(number, "scores"), run.tasks(number)
    if scores is None or tasks is None:
        return {"rows": []}
    tools = scan(tasks).select(
        "task_id", tool=pl.col("gold_json").str.extract(r'^\[\{"name":\s*"((?:[^"\\]|\\.)*)"').fill_null("(no call)")
    )
    kind = (
        pl.when(pl.col("exact"))
        .then(pl.lit("right"))
        .when(~pl.col("parse_status").is_in(["ok", "no_call", "duplicate_key", "unknown_tool"]))
        .then(pl.lit("unread"))
        .when(pl.col("name") < pl.col("name_max"))
        .then(pl.lit("tool"))
        .when(pl.col("key") < pl.col("key_max"))
        .then(pl.lit("parameters"))
        .when(pl.col("value") < pl.col("value_max"))
        .then(pl.lit("values"))
        .otherwise(pl.lit("form"))
    )
    counted = (
        scan(scores)
        .filter(pl.col("reward").is_not_null())
        .select("task_id", kind=kind)
        .join(tools.unique("task_id"), on="task_id")
        .group_by("tool", "kind")
        .len()
        .collect(engine="streaming")
    )
    total = counted.group_by("tool").agg(
        pl.col("len").sum().alias("all"), (pl.col("len") * (pl.col("kind") != "right")).sum().alias("wrong")
    )
    worst = total.sort(["wrong", "tool"], descending=[True, False]).head(25)["tool"]
    rows = (
        counted.filter(pl.col("tool").is_in(worst.implode()))
        .join(total, on="tool")
        .sort("wrong", "tool", "kind", descending=[True, False, False])
    )
    return {
        "rows": [
            {"tool": r["tool"], "kind": r["kind"], "n": r["len"], "all": r["all"]} for r in rows.iter_rows(named=True)
        ]
    }


def scatter(run: RunFolder, number: int, most: int = 4000) -> Row:
    """The round's groups as points; above `most` a share of them, spread evenly over the task ids."""
    place = run.shards(number, "groups")
    if place is None:
        return {"rows": [], "of": 0}
    columns = [
        "task_id",
        "category",
        "reward_mean",
        "reward_var",
        "reason",
        "keep",
        "n",
        "n_exact",
        "shots",
        "importance",
    ]
    fresh = scan(place).filter((pl.col("last_round") == number) & pl.col("reward_var").is_not_null()).select(columns)
    frame = fresh.collect(engine="streaming")
    step = max(1, -(-frame.height // most))
    return {"rows": frame.gather_every(step).to_dicts(), "of": frame.height}


def visits(run: RunFolder, slot: str) -> list[Row]:
    """Every sample of a task (or of its few-shot forms) over the rounds, in order."""
    found: list[Row] = []
    for number in run.rounds:
        place = run.shards(number, "scores")
        if place is not None:
            columns = [
                "rollout_id",
                "task_id",
                "round",
                "sample",
                "shots",
                "parse_status",
                "exact",
                "reward",
                *COMPONENTS,
            ]
            mine = pl.col("slot_id") == slot
            found += scan(place).filter(mine).select(columns).collect(engine="streaming").to_dicts()
    return found


def decoded(text: object) -> object:
    """A JSON column as a value; the text itself when it cannot be read."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
