"""What the supervised objective imitates: gold answers of tasks, or right answers among scored rollouts.

The second is rejection sampling (as in RAFT, 2304.06767): per task the best answers that are worth imitating
(score/right_answers.py), each text once, those with a thought before those without, then short before long. They are
trained on as they were sampled, token by token, under the prompt that they were sampled with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from toolsample_cli.errors import DataError, location
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat
from toolsample_cli.score.right_answers import right
from toolsample_cli.shards.reading import Folder
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.protocols.base import thought_apart
from toolsample_cli.train.data import TrainSet
from toolsample_cli.train.gather import Gathered, Lists, check_ids, gather_rollouts

JUDGED = ["rollout_id", "task_id", "round", "shots", "exact", "parse_status", "schema_valid"]
FACTS = {"rollout_id": pl.String, "task_id": pl.String, "advantage": pl.Float64}


def demonstrations(tasks: pl.DataFrame, chat: Chat, where: Path | str, vocabulary: int) -> TrainSet:
    """Gold answers as rollouts of advantage 1; tasks without a gold text are rendered.

    Raises DataError with file, row and task where there is nothing to imitate.
    """
    rows, facts = Gathered(tasks.height), []
    for number, task in enumerate(tasks.iter_rows(named=True)):
        place = location(where, row=number + 1, task=task["task_id"])
        prompt, completion = (
            np.array(ids, dtype=np.int64)
            for ids in (chat.prompt_ids(task), chat.completion_ids(gold_text(task, place)))
        )
        for name, ids in (("prompt", prompt), ("completion", completion)):
            lists = Lists(pl.Series([ids.tolist()], dtype=pl.List(pl.Int64)))
            check_ids(lists, vocabulary, name, partial(_same, place))
        rows.add((task["task_id"], number), number, prompt, completion)
        facts.append((task["task_id"], task["task_id"], 1.0))
    return _imitated(rows, pl.DataFrame(facts, schema=FACTS, orient="row"))


def _same(text: str, row: int) -> str:
    return text


def gold_text(task: Mapping[str, object] | Row, place: str) -> str:
    """A task's gold answer as its protocol writes it: its own text, else its calls rendered."""
    if task["gold_text"]:
        return str(task["gold_text"])
    calls = [Call(call["name"], call["arguments"]) for call in json.loads(str(task["gold_json"]))]
    protocol = str(task["protocol"])
    if not calls:
        raise DataError(f"{place}: neither gold text nor gold calls, so there is nothing to imitate")
    if protocol not in PROTOCOLS:
        raise DataError(f"{place}: unknown protocol {protocol!r}", hint=f"known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol].render(calls)


def right_rollouts(
    rollouts: Folder,
    scores: Folder,
    per_task: int,
    vocabulary: int,
    tasks: frozenset[str] | None = None,
    limit: int | None = None,
) -> TrainSet:
    """The best right answers of each task as rollouts of advantage 1; `counts` says what was left out and why.

    `tasks` keeps only those, `limit` the first answers. Raises DataError where there is none, and as
    `gather_rollouts` does.
    """
    judged = scores.load(JUDGED)
    judged = judged if tasks is None else judged.filter(pl.col("task_id").is_in(sorted(tasks)))
    texts = rollouts.load(["rollout_id", "text", "finish_reason", "completion_ids"])
    texts = texts.with_columns(tokens=pl.col("completion_ids").list.len()).drop("completion_ids")
    joined = judged.join(texts, on="rollout_id", how="left", maintain_order="left")
    if joined.height and joined["text"].null_count():
        missing = joined.filter(pl.col("text").is_null())["rollout_id"][0]
        raise DataError(
            f"{scores.path}: rollout {missing} is not in {rollouts.path}", hint="give the rollouts of these scores"
        )
    picked, counts = pick(joined, per_task)
    picked = picked if limit is None else picked.head(limit)
    if not picked.height:
        hint = "more completions per task, or easier tasks"
        raise DataError(f"{scores.path}: no answer without demonstrations is worth imitating", hint=hint)
    rows = gather_rollouts(rollouts, picked, vocabulary, scored=False)
    return _imitated(rows, picked.select("rollout_id", "task_id", advantage=pl.lit(1.0)), counts)


def pick(judged: pl.DataFrame, per_task: int) -> tuple[pl.DataFrame, dict[str, int]]:
    """The rows to imitate, in their order, and how many were left out for which reason.

    Needs the columns JUDGED, `text`, `finish_reason` and `tokens`.
    """
    good = judged.with_row_index("at").filter(right())
    shown = good.filter(pl.col("shots") == 0)
    once = shown.sort("at").unique(["task_id", "round", "text"], keep="first", maintain_order=True)
    thought = [bool(thought_apart(text.strip())[0]) for text in once["text"]]
    ranked = once.with_columns(thought=pl.Series(thought, dtype=pl.Boolean))
    ranked = ranked.sort("thought", "tokens", "at", descending=[True, False, False])
    best = ranked.group_by("task_id", maintain_order=True).head(per_task).sort("at")
    counts = {
        "not right": judged.height - good.height,
        "with demonstrations": good.height - shown.height,
        "same text": shown.height - once.height,
        "beyond the best of the task": once.height - best.height,
    }
    return best.drop("at", "thought"), counts


def _imitated(rows: Gathered, facts: pl.DataFrame, counts: Mapping[str, int] | None = None) -> TrainSet:
    order = np.argsort(rows.group_B, kind="stable")
    every = np.arange(len(rows.prompts))
    groups = rows.ordered(order, every, np.ones(len(order)), np.zeros(len(order), bool))
    return TrainSet(groups, facts[order], 0, counts=dict(counts or {}))
