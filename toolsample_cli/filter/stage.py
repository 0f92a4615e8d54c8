"""The filter stage: scores of one round (and the groups of the round before) -> groups of everything seen so far.

Output shard k < S holds the groups of score shard k, so slices run anywhere. Shards from S on carry the tasks that
were not visited, spread by a hash of the slot so that their number depends on the history's rows alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from toolsample_cli.config import FilterConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import DataError
from toolsample_cli.filter import statistics
from toolsample_cli.filter.decide import decide
from toolsample_cli.filter.round_facts import round_facts
from toolsample_cli.filter.run_state import RunState
from toolsample_cli.filter.tally import VerdictTally
from toolsample_cli.hashing import hash_ids
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import Folder, Shard, open_folder, refuse_nested
from toolsample_cli.shards.repeats import Repeats
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import FEWER, Account, Options

CARRY_ROWS = 1_000_000
"""Carried groups in one shard: about 50 MB."""

AHEAD = 2
"""Shards read and decided while one is being written; memory holds one more than that."""

TOGETHER = "all samples of a task belong in one shard; score the rollouts again"

T = TypeVar("T")

NARROW = ["slot_id", "n", "n_exact", "reward_mean", "reward_var", "reward_min", "reward_max"]


@dataclass(frozen=True)
class Work:
    """What the whole round settles before any shard is decided: the same in every slice."""

    scores: Folder
    history: Folder | None
    config: FilterConfig
    options: Options
    round: int
    run_state: RunState
    seen: pl.Series  # slots visited in this round; empty without a history
    prior: pl.DataFrame | None

    @property
    def first_carried(self) -> int:
        """Number of the first shard of carried groups."""
        return max((shard.number for shard in self.scores.shards), default=-1) + 1

    @property
    def carried_shards(self) -> int:
        """How many shards of carried groups there are."""
        return -(-self.history.rows // CARRY_ROWS) if self.history else 0


def run(scores: Path, history: Path | None, out: Path, config: FilterConfig, options: Options) -> Account:
    """Write the `groups` of this round merged with `history`.

    `options.limit` takes the first so many groups of each shard, `options.ids` names tasks or slots.
    """
    account = Account("filter", left_out="not kept")
    refuse_nested(out, scores, history)
    score_folder = open_folder(scores, schema.SCORES)
    history_folder = open_folder(history, schema.GROUPS) if history else None
    work = _prepare(score_folder, history_folder, config, options)
    account.extra["round"] = work.round
    account.extra |= options.idle_slice(work.first_carried + work.carried_shards, FEWER)
    if options.dry_run:
        account.rows_in = score_folder.rows
        account.extra["would write"] = f"{len(score_folder.shards) + work.carried_shards} shards to {out}"
        return account
    # what an earlier round left in its manifest decides, too, and is no part of the history's digest
    before = RunState.read(history_folder.counts).record() if history_folder else {}
    record = {**as_record(config), **options.selection(), "run state before": before}
    inputs = {"scores": score_folder.digest, **({"history": history_folder.digest} if history_folder else {})}
    account.extra["kept"] = 0
    options.expect(sum(shard.rows for shard in work.scores.shards if options.slice.owns(shard.number)))
    with Output(out, schema.GROUPS, record, inputs, options.overwrite, options.slice, lock=options.lock) as output:
        _write_visited(work, output, account)
        _write_carried(work, output, account)
        if options.slice.index == 0:
            output.counts.update({**work.run_state.record(), "round": work.round})
        output.finish()
    account.wrote = out
    return account


def _prepare(scores: Folder, history: Folder | None, config: FilterConfig, options: Options) -> Work:
    at = RunState.read(history.counts) if history else RunState()
    round = _round(scores)
    moving = config.method in ("greso", "adarft")
    seen, prior = pl.Series("slot_id", [], dtype=pl.String), None
    if history or moving or options.limit is not None or options.ids is not None:
        table = pl.concat(
            list(_ahead(lambda shard: _statistics(scores, shard, options).select(NARROW), scores.shards))
            or [pl.DataFrame(schema={name: schema.GROUPS.schema[name] for name in NARROW})]
        )
        if history:
            seen = table["slot_id"]
            _refuse_repeated(scores, seen)
            prior = pl.concat(
                [frame.filter(pl.col("slot_id").is_in(seen.implode())) for _, frame in history.frames(statistics.PRIOR)]
                or [pl.DataFrame(schema={name: schema.GROUPS.schema[name] for name in statistics.PRIOR})]
            )
            _refuse_repeated(history, prior["slot_id"])
        at = at.after(round_facts(table, config), first_epoch=prior is None or not prior.height)
    return Work(scores, history, config, options, round, at, seen, prior)


def _round(scores: Folder) -> int:
    for shard in scores.shards:
        first = scores.scan(shard).select("round").head(1).collect()
        if first.height:
            return int(first["round"][0])
    raise DataError(f"{scores.path}: no scores in it, so there is nothing to filter")


def _refuse_repeated(folder: Folder, slots: pl.Series) -> None:
    if slots.is_duplicated().any():
        slot = slots.filter(slots.is_duplicated())[0]
        raise DataError(
            f"{folder.path}: task {slot} occurs in more than one shard",
            hint=TOGETHER,
        )


def _write_visited(work: Work, output: Output, account: Account) -> None:
    def decided(shard: Shard) -> tuple[int, pl.DataFrame]:
        found = _statistics(work.scores, shard, work.options)
        _refuse_rounds(shard, found, work.round)
        return shard.number, decide(statistics.visited(found, work.prior), work.config, work.run_state, work.round)

    tally, tasks = VerdictTally(), Repeats(work.scores.path, "task", hint=TOGETHER)
    for number, frame in _ahead(decided, [s for s in work.scores.shards if work.options.slice.owns(s.number)]):
        tasks.add(work.scores.path, frame["slot_id"])
        if not output.done(number):
            output.write(number, frame)
        rows = _total(frame, "n") + _total(frame, "n_error")
        account.rows_in += rows
        account.rows_out += frame.height
        account.extra["kept"] += _total(frame, "keep")
        tally.add(frame)
        for row in frame.group_by("keep", "reason").len().sort("reason").iter_rows(named=True):
            output.counts[f"{'kept' if row['keep'] else 'dropped'} {row['reason']}"] += row["len"]
            if not row["keep"]:
                account.dropped[row["reason"]] = account.dropped.get(row["reason"], 0) + row["len"]
        work.options.tick(rows)
    tasks.refuse()
    account.extra |= tally.facts()
    account.report = tally.table()
    output.counts.update({f"verdict {word}": count for word, count in tally.verdicts.items()})


def _total(frame: pl.DataFrame, column: str) -> int:
    return int(frame.select(pl.col(column).sum()).item())


def _ahead(function: Callable[[Shard], T], shards: Sequence[Shard]) -> Iterator[T]:
    """Results in order, computed at most AHEAD shards ahead: numpy and polars use the other cores meanwhile."""
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future[T]] = deque()
        for shard in shards:
            waiting.append(pool.submit(function, shard))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _refuse_rounds(shard: Shard, found: pl.DataFrame, round: int) -> None:
    other = found.filter(pl.col("round") != round)
    if other.height:
        raise DataError(
            f"{shard.path} (task {other['task_id'][0]}): scores of round {other['round'][0]} beside round {round}",
            hint="filter works round by round; give the groups of earlier rounds as --history",
        )


def _write_carried(work: Work, output: Output, account: Account) -> None:
    if work.history is None:
        return
    work.options.phase("carrying groups over")
    for bucket in range(work.carried_shards):
        number = work.first_carried + bucket
        if not work.options.slice.owns(number):
            continue
        frames = []
        for _, frame in work.history.frames():
            frame = frame.filter(
                pl.Series(hash_ids(frame["slot_id"]) % np.uint64(work.carried_shards) == bucket),
                ~pl.col("slot_id").is_in(work.seen.implode()),
            )
            _refuse_later(work.history, frame, work.round)
            frames.append(frame)
        carried = decide(pl.concat(frames), work.config, work.run_state, work.round)
        if not output.done(number):
            output.write(number, carried)
        output.counts["carried"] += carried.height
        account.extra["carried"] = account.extra.get("carried", 0) + carried.height


def _refuse_later(history: Folder, frame: pl.DataFrame, round: int) -> None:
    later = frame.filter(pl.col("last_round") >= round)
    if later.height:
        raise DataError(
            f"{history.path} (task {later['slot_id'][0]}): visited in round {later['last_round'][0]}, "
            f"but the scores are of round {round}",
            hint="--history takes the groups of the round before",
        )


def _statistics(scores: Folder, shard: Shard, options: Options) -> pl.DataFrame:
    found = statistics.statistics(scores.read(shard, statistics.COLUMNS), shard.path)
    wanted = options.wanted_ids()
    if wanted is not None:
        found = found.filter(pl.col("task_id").is_in(list(wanted)) | pl.col("slot_id").is_in(list(wanted)))
    return found if options.limit is None else found.head(options.limit)
