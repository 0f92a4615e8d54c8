"""Which answers of scored rollouts are right, and which worse one goes beside each: the joins behind `export --to sft`.

What is right is decided in score/right_answers.py alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from toolsample_cli.bridges.answer_rows import Answer
from toolsample_cli.config.bridge_knobs import ExportConfig
from toolsample_cli.errors import DataError, location
from toolsample_cli.json_types import Row
from toolsample_cli.score.right_answers import right, worse
from toolsample_cli.shards.reading import Folder, Shard

SCORE_COLUMNS = ["rollout_id", "task_id", "sample", "exact", "parse_status", "schema_valid", "reward"]
ROLLOUT_COLUMNS = ["rollout_id", "text", "finish_reason", "error"]


@dataclass(frozen=True)
class Sources:
    """The folders that answers come from, of one round."""

    tasks: Folder
    rollouts: Folder
    scores: Folder


def answers(
    sources: Sources, paired: bool, config: ExportConfig, wanted: frozenset[str] | None, counts: Counter[str]
) -> Iterator[Answer]:
    """Right answers, task by task in the order of the scores; `counts` gets `in` and what was left out, by reason."""
    tasks = _Tasks(sources.tasks)
    for shard, scores in sources.scores.frames(SCORE_COLUMNS):
        if wanted is not None:
            scores = scores.filter(pl.col("task_id").is_in(wanted))
        counts["in"] += scores.height
        judged = judge(scores, _rollouts_of(sources, shard, scores))
        good = right_of(judged, config.per_task)
        counts["task_without_right_answer"] += judged["task_id"].n_unique() - good["task_id"].n_unique()
        found = pairs_of(judged, config.per_task) if paired else good
        counts["no_worse_answer"] += good.height - found.height
        for row in found.iter_rows(named=True):
            task = tasks.take(row["task_id"])
            if task["split"] == "test" and not config.allow_test_data:
                where = location(sources.tasks.path, task=row["task_id"])
                raise DataError(f"{where}: benchmark test data", hint="--allow-test-data exports it all the same")
            if paired:
                yield Answer(task, row["chosen"], row["reward_chosen"], row["rejected"], row["reward_rejected"])
            else:
                yield Answer(task, row["text"], row["reward"])


def judge(scores: pl.DataFrame, rollouts: pl.DataFrame) -> pl.DataFrame:
    """Scores with their rollouts' text and the columns `right` and `worse`; both frames hold the same rollouts."""
    joined = scores.join(rollouts.select(ROLLOUT_COLUMNS), on="rollout_id", how="left", maintain_order="left")
    return joined.with_columns(right=right(), worse=worse())


def _rollouts_of(sources: Sources, shard: Shard, scores: pl.DataFrame) -> pl.DataFrame:
    """Their rollouts: `score` keeps shards parallel, so the shard of the same number mostly holds them all."""
    wanted = scores["rollout_id"]
    same = [one for one in sources.rollouts.shards if one.number == shard.number]
    rest = [one for one in sources.rollouts.shards if one.number != shard.number]
    frames: list[pl.DataFrame] = []
    for one in [*same, *rest]:
        frames.append(sources.rollouts.read(one, ROLLOUT_COLUMNS).filter(pl.col("rollout_id").is_in(wanted.implode())))
        if sum(frame.height for frame in frames) >= wanted.len():
            return pl.concat(frames)
    held = pl.concat(frames)["rollout_id"] if frames else pl.Series("rollout_id", [], pl.String)
    missing = wanted.filter(~wanted.is_in(held.implode()))
    raise DataError(
        f"{sources.scores.path}: {missing[0]} is not in {sources.rollouts.path}",
        hint="give the rollouts that these scores were made from",
    )


class _Tasks:
    """Rows of tasks by id, one shard in memory at a time."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._shard_of = {one: shard for shard, frame in folder.frames(["task_id"]) for one in frame["task_id"]}
        self._open: Shard | None = None
        self._rows: dict[str, Row] = {}

    def take(self, task_id: str) -> Row:
        shard = self._shard_of.get(task_id)
        if shard is None:
            raise DataError(f"{self._folder.path}: task {task_id} is missing", hint="give the tasks of this round")
        if shard is not self._open:
            self._rows = {row["task_id"]: row for row in self._folder.read(shard).iter_rows(named=True)}
            self._open = shard
        return self._rows[task_id]


def right_of(judged: pl.DataFrame, per_task: int = 1) -> pl.DataFrame:
    """Right answers with different texts, first ones first: task_id, sample, text, reward."""
    good = judged.filter(pl.col("right")).unique(["task_id", "text"], keep="first", maintain_order=True)
    good = good.filter(pl.int_range(pl.len()).over("task_id") < per_task)
    return good.select("task_id", "sample", "text", "reward")


def pairs_of(judged: pl.DataFrame, per_task: int = 1) -> pl.DataFrame:
    """Right answers with a worse one beside each: task_id, chosen, rejected, reward_chosen, reward_rejected.

    The rejected one has the lowest reward of its task, the first sample of those.
    """
    worst = judged.filter(pl.col("worse")).sort("reward", "sample").unique("task_id", keep="first", maintain_order=True)
    beside = worst.select("task_id", rejected="text", reward_rejected="reward")
    good = right_of(judged, per_task).rename({"text": "chosen", "reward": "reward_chosen"})
    both = good.join(beside, on="task_id", how="inner", maintain_order="left")
    columns = ("task_id", "chosen", "rejected", "reward_chosen", "reward_rejected")
    return both.filter(pl.col("reward_rejected") < pl.col("reward_chosen")).select(columns)
