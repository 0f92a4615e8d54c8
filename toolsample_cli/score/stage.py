"""Tasks and rollouts to scores, shard by shard: output shard k holds the scores of rollout shard k.

Memory is bounded by one shard of rollouts and the tasks it names. An errored rollout is kept with a null reward.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from toolsample_cli.config import ScoreConfig
from toolsample_cli.config.settings import as_record, nearest
from toolsample_cli.errors import ConfigError, DataError, StageFailure, location
from toolsample_cli.score import custom
from toolsample_cli.score.scorer import ANSWER_COLUMNS, ERRORED, TASK_COLUMNS, Gold, Rules, Scorer
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, Shard, open_folder, refuse_nested
from toolsample_cli.shards.repeats import refuse_repeats
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import FEWER, Account, Options
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tools import toolbox

SCHEMA = schema.SCORES.schema
KNOWN = ("auto", *PROTOCOLS)
ROLLOUT_COLUMNS = ["rollout_id", "task_id", "round", "sample", "text", "finish_reason", "error"]
READ = ["task_id", "protocol", "tools_json", "gold_json", "gold_kind", "demos_json", "category"]
COPIED = ["parent_task_id", "source"]


@dataclass(frozen=True)
class Taken:
    """Tasks made ready: row of each id, and by row its scorer and the columns that scores copy from it."""

    rows: dict[str, int]
    scorers: list[Scorer]
    columns: pl.DataFrame


class Subjects:
    """The tasks folder, looked up by id: only the ids are held, rows are read when a shard of rollouts needs them."""

    def __init__(self, folder: Folder, rules: Rules) -> None:
        self._folder, self._rules = folder, rules
        self._read = [*READ, "extra_json"] if rules.extras else READ
        self._shard_of: dict[str, int] = {}
        for at, shard in enumerate(folder.shards):
            self._shard_of.update(dict.fromkeys(folder.read(shard, ["task_id"])["task_id"].to_list(), at))

    def take(self, ids: list[str], where: str) -> Taken:
        """The named tasks; DataError for one that the folder lacks or that breaks its own contract."""
        needed: dict[int, list[str]] = {}
        for task_id in dict.fromkeys(ids):
            if task_id not in self._shard_of:
                raise DataError(
                    f"{location(where, row=ids.index(task_id) + 1, task=task_id)}: no such task in {self._folder.path}",
                    hint="score needs the tasks that the rollouts were made from",
                )
            needed.setdefault(self._shard_of[task_id], []).append(task_id)
        frames, scorers, shots = [], [], []
        for at, wanted in needed.items():
            shard = self._folder.shards[at]
            frame = self._folder.read(shard, [*self._read, *COPIED]).with_row_index("row")
            frame = frame.filter(pl.col("task_id").is_in(wanted))
            frames.append(frame)
            for row, *record in frame.select("row", *self._read).iter_rows():
                scorer, demos = self._subject(shard.path, row, *record)
                scorers.append(scorer)
                shots.append(demos)
        return _taken(frames, scorers, shots)

    def _subject(
        self, file: Path, row: int, task_id: str, protocol: str, tools_json: str, gold_json: str, kind: str,
        demos_json: str, category: str, extra_json: str = "{}",
    ) -> tuple[Scorer, int]:  # fmt: skip
        """Scorer and number of demonstrations of one task, from its columns in the order of READ."""

        def fault(what: str, hint: str | None = None) -> DataError:
            return DataError(f"{location(file, row=row + 1, task=task_id)}: {what}", hint=hint)

        protocol = protocol if self._rules.config.protocol == "task" else self._rules.config.protocol
        if protocol not in KNOWN:
            raise fault(f"unknown protocol {protocol!r}", hint=f"known: {', '.join(KNOWN)}")
        try:
            gold = Gold.of(gold_json, kind)
        except (ValueError, KeyError, TypeError) as error:
            raise fault(f"gold_json is not a list of {{name, arguments}}: {error!r}") from None
        try:
            tools = toolbox(tools_json)
            shots = 0 if demos_json == "[]" else len(json.loads(demos_json))
            allowed = None if extra_json == "{}" else json.loads(extra_json).get("possible_answer")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise fault(f"tools_json, demos_json or extra_json is not what it should be: {error!r}") from None
        if isinstance(allowed, list) and len(allowed) == len(gold.calls):
            gold = replace(gold, allowed=tuple(allowed))
        return Scorer(gold, protocol, self._rules, tools, category), shots


def _taken(frames: list[pl.DataFrame], scorers: list[Scorer], shots: list[int]) -> Taken:
    tasks = pl.concat(frames) if frames else pl.DataFrame(schema=schema.TASKS.schema)
    parent = pl.col("parent_task_id")
    limits = _columns(TASK_COLUMNS, [scorer.limits for scorer in scorers])
    columns = tasks.select(
        pl.when(parent != "").then(parent).otherwise("task_id").alias("slot_id"),
        pl.Series("shots", shots, SCHEMA["shots"]),
        "source",
        "category",
        *(pl.Series(name, values, SCHEMA[name]) for name, values in limits.items()),
    )
    return Taken({task_id: row for row, task_id in enumerate(tasks["task_id"].to_list())}, scorers, columns)


def run(tasks: Path, rollouts: Path, *, out: Path, config: ScoreConfig, options: Options) -> Account:
    """Score every rollout; see `toolsample score --help`."""
    if config.protocol not in ("task", *KNOWN):
        known = ["task", *KNOWN]
        raise ConfigError(
            f"protocol = {config.protocol!r}: not one of {', '.join(known)}", hint=nearest(config.protocol, known)
        )
    refuse_nested(out, tasks, rollouts)
    own, digests = custom.load(config.component)
    rules = Rules.of(config, own)
    account = Account("score", wrote=None if options.dry_run else Path(out))
    source = open_folder(rollouts, schema.ROLLOUTS)
    task_folder = open_folder(tasks, schema.TASKS)
    account.extra |= options.idle_slice(1 + max((shard.number for shard in source.shards), default=0), FEWER)
    plan = list(_plan(source, options))
    if options.dry_run:
        account.rows_in = sum(rows for _, rows in plan)
        account.extra["would score"] = f"{account.rows_in} rollouts in {len(plan)} shards"
        return account
    options.expect(sum(rows for _, rows in plan))
    subjects = Subjects(task_folder, rules)
    record = {**as_record(config), **options.selection(), **({"component_digests": digests} if digests else {})}
    inputs = {"tasks": task_folder.digest, "rollouts": source.digest}
    tally = Tally()
    with Output(out, schema.SCORES, record, inputs, options.overwrite, options.slice, lock=options.lock) as output:
        for shard, rows in plan:
            if output.done(shard.number):
                frame = output.existing(shard.number)
            else:
                frame = score_frame(_selected(source, shard, rows, options, rules), subjects, str(shard.path))
                output.write(shard.number, frame)
            tally.add(frame, output)
            options.tick(frame.height)
        output.finish()
    account.rows_in = account.rows_out = tally.rows
    account.extra.update(tally.facts(output))
    account.exit_code = 1 if tally.rows and not tally.scored else 0
    return account


def _plan(source: Folder, options: Options) -> Iterator[tuple[Shard, int]]:
    """The shards of this slice with the number of leading rows to take from each."""
    left = source.rows if options.limit is None else options.limit
    for shard in source.shards:
        rows = min(shard.rows, left)
        left -= rows
        if options.slice.owns(shard.number) and rows:
            yield shard, rows


def _selected(source: Folder, shard: Shard, rows: int, options: Options, rules: Rules) -> pl.DataFrame:
    counted = "overlong" in rules.extras or rules.components
    frame = source.read(shard, [*ROLLOUT_COLUMNS, *(["completion_ids"] if counted else [])]).head(rows)
    if counted:
        frame = frame.with_columns(tokens=pl.col("completion_ids").list.len()).drop("completion_ids")
    refuse_repeats(shard.path, frame, ["rollout_id"])
    wanted = options.wanted_ids()
    return frame if wanted is None else frame.filter(pl.col("task_id").is_in(wanted))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Scoring makes millions of small objects and no cycles; looking for cycles among them costs a twentieth."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_without_collector()
def score_frame(rollouts: pl.DataFrame, subjects: Subjects, where: str) -> pl.DataFrame:
    """Scores of a frame of rollouts, row for row."""
    ids = rollouts["task_id"].to_list()
    taken = subjects.take(ids, where)
    rows = [taken.rows[task_id] for task_id in ids]
    texts, reasons, errors = (rollouts[name].to_list() for name in ("text", "finish_reason", "error"))
    tokens = rollouts["tokens"].to_list() if "tokens" in rollouts.columns else [None] * len(ids)
    cells: list[tuple] = []
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a component that prints must not mix with data
            for row, text, reason, error, count in zip(rows, texts, reasons, errors, tokens, strict=True):
                cells.append(taken.scorers[row].row(text, reason, count) if error is None else ERRORED)
    except StageFailure as failure:  # a user's own component
        place = location(where, row=len(cells) + 1, task=ids[len(cells)])
        raise StageFailure(f"{place}: {failure}", hint=failure.hint) from failure
    answers = _columns(ANSWER_COLUMNS, cells)
    return pl.concat(
        [
            rollouts.select("rollout_id", "task_id", "round", "sample"),
            taken.columns[pl.Series(rows, dtype=pl.UInt32)],
            pl.DataFrame(answers, schema={name: SCHEMA[name] for name in answers}),
        ],
        how="horizontal",
    ).select(list(SCHEMA))


def _columns(names: tuple[str, ...], rows: list[tuple]) -> dict[str, list]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}


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
