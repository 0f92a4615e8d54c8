"""Tasks and rollouts to scores, shard by shard: output shard k holds the scores of rollout shard k.

Memory is bounded by one shard of rollouts and the tasks it names. An errored rollout is kept with a null reward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli import schema
from toolsample_cli.config import ScoreConfig, as_record, nearest
from toolsample_cli.errors import ConfigError, DataError, location
from toolsample_cli.output import Output
from toolsample_cli.protocols import PROTOCOLS
from toolsample_cli.reward import Gold, Scored, errored, score_text
from toolsample_cli.shards import Folder, Shard, open_folder
from toolsample_cli.stages.common import Account, Options
from toolsample_cli.toolbox import Toolbox, toolbox

ROLLOUT_COLUMNS = ["rollout_id", "task_id", "round", "sample", "text", "finish_reason", "error"]
TASK_COLUMNS = [
    "task_id", "protocol", "tools_json", "gold_json", "gold_kind", "demos_json", "parent_task_id", "source", "category",
]  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What scoring needs to know about one task."""

    gold: Gold
    protocol: str
    tools: Toolbox
    copied: dict[str, Any]


class Subjects:
    """The tasks folder, looked up by id: only the ids are held, rows are read when a shard of rollouts needs them."""

    def __init__(self, folder: Folder, config: ScoreConfig) -> None:
        self._folder, self._config = folder, config
        self._shard_of: dict[str, int] = {}
        for at, shard in enumerate(folder.shards):
            self._shard_of.update(dict.fromkeys(folder.read(shard, ["task_id"])["task_id"].to_list(), at))

    def take(self, ids: list[str], where: str) -> dict[str, Subject]:
        """The named tasks; DataError for one that the folder lacks or that breaks its own contract."""
        needed: dict[int, list[str]] = {}
        for row, task_id in enumerate(ids, 1):
            if task_id not in self._shard_of:
                raise DataError(
                    f"{location(where, row=row, task=task_id)}: no such task in {self._folder.path}",
                    hint="score needs the tasks that the rollouts were made from",
                )
            needed.setdefault(self._shard_of[task_id], []).append(task_id)
        found = {}
        for at, wanted in needed.items():
            shard = self._folder.shards[at]
            frame = self._folder.read(shard, TASK_COLUMNS).with_row_index("row")
            for record in frame.filter(pl.col("task_id").is_in(set(wanted))).iter_rows(named=True):
                found[record["task_id"]] = self._subject(record, shard)
        return found

    def _subject(self, record: dict[str, Any], shard: Shard) -> Subject:
        where = location(shard.path, row=record["row"] + 1, task=record["task_id"])
        protocol = record["protocol"] if self._config.protocol == "auto" else self._config.protocol
        if protocol not in PROTOCOLS:
            raise DataError(f"{where}: unknown protocol {protocol!r}", hint=f"known: {', '.join(PROTOCOLS)}")
        try:
            gold = Gold.of(record["gold_json"], record["gold_kind"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: gold_json is not a list of {{name, arguments}}: {error!r}") from None
        try:
            tools = toolbox(record["tools_json"])
            shots = len(json.loads(record["demos_json"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{where}: tools_json or demos_json is not what it should be: {error!r}") from None
        copied = {
            "slot_id": record["parent_task_id"] or record["task_id"],
            "shots": shots,
            "source": record["source"],
            "category": record["category"],
        }
        return Subject(gold, protocol, tools, copied)


def run(tasks: Path, rollouts: Path, *, out: Path, config: ScoreConfig, options: Options) -> Account:
    """Score every rollout; see `toolsample score --help`."""
    if config.protocol != "auto" and config.protocol not in PROTOCOLS:
        known = ["auto", *PROTOCOLS]
        raise ConfigError(
            f"protocol = {config.protocol!r}: not one of {', '.join(known)}", hint=nearest(config.protocol, known)
        )
    account = Account("score", wrote=None if options.dry_run else Path(out))
    source = open_folder(rollouts, schema.ROLLOUTS)
    task_folder = open_folder(tasks, schema.TASKS)
    plan = list(_plan(source, options))
    if options.dry_run:
        account.rows_in = sum(rows for _, rows in plan)
        account.extra["would score"] = f"{account.rows_in} rollouts in {len(plan)} shards"
        return account
    subjects = Subjects(task_folder, config)
    record = {**as_record(config), **options.selection()}
    inputs = {"tasks": task_folder.digest, "rollouts": source.digest}
    tally = Tally()
    with Output(out, schema.SCORES, record, inputs=inputs, overwrite=options.overwrite, part=options.part) as output:
        for shard, rows in plan:
            if output.done(shard.number):
                frame = output.existing(shard.number)
            else:
                frame = score_frame(_selected(source, shard, rows, options), subjects, config, str(shard.path))
                output.write(shard.number, frame)
            tally.add(frame, output)
            options.tick(frame.height)
        output.finish()
    account.rows_in = account.rows_out = tally.rows
    account.extra.update(tally.facts(output))
    return account


def _plan(source: Folder, options: Options) -> Iterator[tuple[Shard, int]]:
    """The shards of this slice with the number of leading rows to take from each."""
    left = source.rows if options.limit is None else options.limit
    for shard in source.shards:
        rows = min(shard.rows, left)
        left -= rows
        if options.part.owns(shard.number) and rows:
            yield shard, rows


def _selected(source: Folder, shard: Shard, rows: int, options: Options) -> pl.DataFrame:
    frame = source.read(shard, ROLLOUT_COLUMNS).head(rows)
    wanted = options.wanted_ids()
    return frame if wanted is None else frame.filter(pl.col("task_id").is_in(wanted))


def score_frame(rollouts: pl.DataFrame, subjects: Subjects, config: ScoreConfig, where: str) -> pl.DataFrame:
    """Scores of a frame of rollouts, row for row."""
    known = subjects.take(rollouts["task_id"].to_list(), where)
    rows = []
    for rollout in rollouts.iter_rows(named=True):
        subject = known[rollout["task_id"]]
        if rollout["error"] is not None:
            scored: Scored = errored(subject.gold)
        else:
            scored = score_text(
                rollout["text"], subject.gold, subject.protocol, config, subject.tools, rollout["finish_reason"]
            )
        own = {name: rollout[name] for name in ("rollout_id", "task_id", "round", "sample")}
        rows.append({**own, **subject.copied, **scored.columns()})
    return schema.frame(schema.SCORES, rows)


class Tally:
    """Counts for the manifest and the closing line."""

    def __init__(self) -> None:
        self.rows = self.scored = self.exact = 0
        self.sum = 0.0

    def add(self, frame: pl.DataFrame, output: Output) -> None:
        """Count one finished shard."""
        self.rows += frame.height
        self.scored += frame["reward"].count()
        self.sum += frame["reward"].sum() or 0.0
        self.exact += int(frame["exact"].sum() or 0)
        output.counts.update({f"status {k}": n for k, n in frame["parse_status"].value_counts().iter_rows()})

    def facts(self, output: Output) -> dict[str, Any]:
        """What the closing line tells besides the counts of rows."""
        facts: dict[str, Any] = {}
        if self.scored:
            facts["mean reward"] = round(self.sum / self.scored, 4)
            facts["exact"] = f"{self.exact / self.scored:.1%}"
        if errors := output.counts.get("status error"):
            facts["errored rollouts"] = errors
        return facts
