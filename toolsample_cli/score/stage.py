"""Tasks and rollouts to scores, shard by shard: output shard k holds the scores of rollout shard k.

Memory is bounded by one shard of rollouts and the tasks it names. An errored rollout is kept with a null reward.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from toolsample_cli.config import ScoreConfig
from toolsample_cli.config.settings import as_record, nearest
from toolsample_cli.errors import ConfigError, StageFailure, location
from toolsample_cli.json_types import Row
from toolsample_cli.score.custom import load_components
from toolsample_cli.score.scorer import ERRORED, Cells, Rules
from toolsample_cli.score.task_scorers import KNOWN, TaskScorers
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, Shard, open_folder, refuse_nested
from toolsample_cli.shards.repeats import refuse_repeats
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import FEWER, Account, Options

SCHEMA = schema.SCORES.schema
ROLLOUT_COLUMNS = ["rollout_id", "task_id", "round", "sample", "text", "finish_reason", "error"]


def run(tasks: Path, rollouts: Path, *, out: Path, config: ScoreConfig, options: Options) -> Account:
    """Score every rollout; see `toolsample score --help`."""
    if config.protocol not in ("task", *KNOWN):
        known = ["task", *KNOWN]
        raise ConfigError(
            f"protocol = {config.protocol!r}: not one of {', '.join(known)}", hint=nearest(config.protocol, known)
        )
    refuse_nested(out, tasks, rollouts)
    own, digests = load_components(config.component)
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
    subjects = TaskScorers(task_folder, rules)
    record = {**as_record(config), **options.selection(), **({"component_digests": digests} if digests else {})}
    inputs = {"tasks": task_folder.digest, "rollouts": source.digest}
    tally = ScoreTally("api_bank" in rules.extras)
    with Output(out, schema.SCORES, record, inputs, options.overwrite, options.slice, lock=options.lock) as output:
        for shard, rows in plan:
            frame = output.existing(shard.number) if output.done(shard.number) else None
            if frame is None:
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
def score_frame(rollouts: pl.DataFrame, subjects: TaskScorers, where: str) -> pl.DataFrame:
    """Scores of a frame of rollouts, row for row."""
    ids = rollouts["task_id"].to_list()
    taken = subjects.take(ids, where)
    rows = [taken.rows[task_id] for task_id in ids]
    texts, reasons, errors = (rollouts[name].to_list() for name in ("text", "finish_reason", "error"))
    tokens = rollouts["tokens"].to_list() if "tokens" in rollouts.columns else [None] * len(ids)
    cells: list[Cells] = []
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a component that prints must not mix with data
            for row, text, reason, error, count in zip(rows, texts, reasons, errors, tokens, strict=True):
                cells.append(taken.scorers[row].row(text, reason, count) if error is None else ERRORED)
    except StageFailure as failure:  # a user's own component
        place = location(where, row=len(cells) + 1, task=ids[len(cells)])
        raise StageFailure(f"{place}: {failure}", hint=failure.hint) from failure
    answers = _columns(cells)
    return pl.concat(
        [
            rollouts.select("rollout_id", "task_id", "round", "sample"),
            taken.columns[pl.Series(rows, dtype=pl.UInt32)],
            pl.DataFrame(answers, schema={name: SCHEMA[name] for name in answers}),
        ],
        how="horizontal",
    ).select(list(SCHEMA))


def _columns(cells: list[Cells]) -> dict[str, list[object]]:
    if not cells:
        return {name: [] for name in Cells._fields}
    return dict(zip(Cells._fields, map(list, zip(*cells, strict=True)), strict=True))


class ScoreTally:
    """Counts for the manifest and the closing line; `levels`: also API-Bank's share of right answers per level."""

    def __init__(self, levels: bool) -> None:
        self.rows = self.scored = self.exact = 0
        self.sum = 0.0
        self._levels = levels
        self._of_level: dict[str, tuple[float, int]] = {}

    def add(self, frame: pl.DataFrame, output: Output) -> None:
        """Count one finished shard."""
        self.rows += frame.height
        self.scored += frame["reward"].count()
        self.sum += float(frame["reward"].sum() or 0.0)
        self.exact += int(frame["exact"].sum() or 0)
        output.counts.update({f"status {k}": n for k, n in frame["parse_status"].value_counts().iter_rows()})
        if self._levels:
            for level, right, rows in api_bank_levels(frame).iter_rows():
                before = self._of_level.get(level, (0.0, 0))
                self._of_level[level] = before[0] + right, before[1] + rows

    def facts(self, output: Output) -> Row:
        """What the closing line says besides the counts of rows."""
        facts: Row = {}
        if self.scored:
            facts["mean reward"] = round(self.sum / self.scored, 4)
            facts["exact"] = f"{self.exact / self.scored:.1%}"
        if errors := output.counts.get("status error"):
            facts["errored rollouts"] = errors
        if self._of_level:
            right, rows = (sum(part) for part in zip(*self._of_level.values(), strict=True))
            for level, (good, count) in [*sorted(self._of_level.items()), ("overall", (right, rows))]:
                facts[f"API-Bank {level}"] = f"{100 * good / count:.2f} ({good:g} of {count})"
        return facts


def api_bank_levels(scores: pl.DataFrame) -> pl.DataFrame:
    """(level, right, rows) by the level that a task's source names, as ToolRL reports them; errored rows are wrong."""
    source = pl.col("source")
    level = pl.concat_str(pl.lit("level "), source.str.extract(r"(?i)(?:level|lv|l)[-_ ]?([123])(?:\D|$)"))
    right = pl.col("extra_json").str.json_path_match("$.rewards.api_bank").cast(pl.Float64).fill_null(0.0)
    return (
        scores.select(level=level.fill_null(source), right=right)
        .group_by("level")
        .agg(pl.col("right").sum(), rows=pl.len())
    )
