"""Shards into the store of a round, one at a time, each row checked; a fault names file, row and task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import polars as pl

from toolsample_cli.errors import DataError, location
from toolsample_cli.shards.reading import Folder, Shard
from toolsample_cli.train.batch import usable_tokens
from toolsample_cli.train.token_store import Groups, TokenFiles

COLUMNS = ["rollout_id", "task_id", "round", "prompt_ids", "completion_ids", "logprobs", "finish_reason", "error"]


class Gathered:
    """What is known of the batch's B rollouts while shards are read; `group_B` is -1 for what was not met yet."""

    def __init__(self, count: int) -> None:
        self.columns = TokenFiles()
        self.groups: dict[tuple[str, int], int] = {}
        self.prompts: list[tuple[int, int, bytes]] = []
        self.group_B = np.full(count, -1, np.int64)
        self.place_B = np.zeros(count, np.int64)
        self.tokens_B = np.zeros(count, np.int64)
        self.usable_B = np.zeros(count, np.int64)
        self.truncated_B = np.zeros(count, bool)
        self.scored_B = np.ones(count, bool)
        self.unscored_at = ""

    def prompt(self, key: tuple[str, int], ids: np.ndarray) -> int | None:
        """The group of this key, new or with the same prompt; None when its prompt differs."""
        digest = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
        number = self.groups.setdefault(key, len(self.groups))
        if number == len(self.prompts):
            self.prompts.append((self.columns.prompts.append(ids), len(ids), digest))
        return number if self.prompts[number][2] == digest else None

    def add(self, key: tuple[str, int], at: int, prompt: np.ndarray, completion: np.ndarray) -> None:
        """A completion that nobody sampled, as row `at`: all of its tokens are usable."""
        number = self.prompt(key, prompt)
        assert number is not None, key
        self.group_B[at] = number
        self.place_B[at] = self.columns.completions.append(completion)
        self.columns.logprobs.append(np.zeros(len(completion), np.float32))
        self.tokens_B[at] = self.usable_B[at] = len(completion)

    def replace_prompt(self, number: int, ids: np.ndarray) -> None:
        """Another prompt for a group whose rows are all there."""
        digest = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
        self.prompts[number] = (self.columns.prompts.append(ids), len(ids), digest)

    def ordered(self, order_B: np.ndarray, rank_G: np.ndarray, advantage_R: np.ndarray, masked_B: np.ndarray) -> Groups:
        """The groups in the order of `rank_G`, their rollouts in `order_B`."""
        places, lengths = (np.array([p[i] for p in self.prompts], np.int64)[rank_G] for i in (0, 1))
        sizes = np.bincount(self.group_B, minlength=len(self.prompts))[rank_G]
        return Groups(
            self.columns,
            start_G=np.concatenate([[0], np.cumsum(sizes)]),
            prompt_place_G=places,
            prompt_tokens_G=lengths,
            place_R=self.place_B[order_B],
            tokens_R=self.tokens_B[order_B],
            usable_R=np.where(masked_B, 0, self.usable_B)[order_B],
            masked_R=masked_B[order_B],
            advantage_R=advantage_R,
        )


def gather_rollouts(rollouts: Folder, batch: pl.DataFrame, vocabulary: int, *, scored: bool = True) -> Gathered:
    """The rollouts that the batch names; `vocabulary` is the number of rows of the model's embedding.

    `scored` False takes every token as usable, whatever its logprob: nothing is divided by it.
    """
    twice = batch.filter(pl.col("rollout_id").is_duplicated())
    if twice.height:
        raise DataError(f"the batch names rollout {twice['rollout_id'][0]} more than once", hint="rerun curriculum")
    wanted = batch.select("rollout_id").with_row_index("at__")
    rows = Gathered(batch.height)
    for shard, frame in rollouts.frames(COLUMNS):
        frame = frame.with_row_index("line__")
        mine = frame.join(wanted, on="rollout_id", how="inner", maintain_order="left")
        _take(mine, shard, rows, vocabulary, scored)
    missing = batch.filter(pl.Series(rows.group_B < 0))
    if missing.height:
        raise DataError(
            f"{rollouts.path}: {missing.height} of {batch.height} rollouts of the batch are not there, "
            f"the first is {missing['rollout_id'][0]}",
            hint="give the rollouts that the batch was made from",
        )
    return rows


def _take(found: pl.DataFrame, shard: Shard, rows: Gathered, vocabulary: int, by_logprobs: bool) -> None:
    """One shard's rollouts of the batch, checked, into the store."""

    def where(row: int) -> str:
        return location(shard.path, row=found["line__"][row] + 1, task=found["task_id"][row])

    prompts, completions, logprobs = (Lists(found[name]) for name in ("prompt_ids", "completion_ids", "logprobs"))
    if (row := _first(found["error"].is_not_null().to_numpy())) is not None:
        raise DataError(
            f"{where(row)}: the batch names a rollout that errored: {found['error'][row]}",
            hint="rerun filter and curriculum",
        )
    if (row := _first(completions.null | (prompts.count == 0))) is not None:
        raise DataError(f"{where(row)}: no token ids")
    scored = ~logprobs.null
    if (row := _first(scored & (logprobs.count != completions.count))) is not None:
        raise DataError(f"{where(row)}: {logprobs.count[row]} logprobs for {completions.count[row]} completion tokens")
    for name, lists in (("prompt", prompts), ("completion", completions)):
        check_ids(lists, vocabulary, name, where)
    filled = np.zeros(len(completions.flat), np.float32)
    if by_logprobs:
        filled[np.repeat(scored, completions.count)] = logprobs.flat
    place = rows.columns.completions.append(completions.flat)
    rows.columns.logprobs.append(filled)
    good = np.concatenate([[0], np.cumsum(usable_tokens(filled))])
    at = found["at__"].to_numpy()
    rows.place_B[at] = place + completions.start
    rows.tokens_B[at] = completions.count
    rows.usable_B[at] = good[completions.start + completions.count] - good[completions.start]
    rows.truncated_B[at] = (found["finish_reason"] == "length").fill_null(False).to_numpy()
    rows.scored_B[at] = scored
    if not rows.unscored_at and not scored.all():
        rows.unscored_at = where(int(np.argmin(scored)))
    for row, key in enumerate(zip(found["task_id"].to_list(), found["round"].to_list(), strict=True)):
        if rows.group_B[at[row]] >= 0:
            raise DataError(f"{where(row)}: rollout {found['rollout_id'][row]} occurs twice")
        number = rows.prompt(key, prompts[row])
        if number is None:
            raise DataError(
                f"{where(row)}: its prompt differs from that of the other samples of the task in round {key[1]}"
            )
        rows.group_B[at[row]] = number


def _first(fault: np.ndarray) -> int | None:
    return int(np.argmax(fault)) if fault.any() else None


class Lists:
    """A list column as one flat array, without a Python object per token; a null logprob becomes NaN.

    Row r holds `flat[start[r] : start[r] + count[r]]`; `null` says where there is no list at all.
    """

    def __init__(self, column: pl.Series) -> None:
        self.null = column.is_null().to_numpy()
        self.count = column.list.len().fill_null(0).to_numpy().astype(np.int64)
        self.start = np.cumsum(self.count) - self.count
        flat = column.filter(pl.Series(self.count > 0)).explode()
        is_float = column.dtype == pl.List(pl.Float32)
        self.flat = (flat.fill_null(float("nan")) if is_float else flat).to_numpy()

    def __getitem__(self, row: int) -> np.ndarray:
        return self.flat[self.start[row] : self.start[row] + self.count[row]]


def check_ids(lists: Lists, vocabulary: int, name: str, where: Callable[[int], str]) -> None:
    """DataError for a token that the model does not have; `where` names a row, `name` says prompt or completion."""
    flat = lists.flat
    if not len(flat) or (flat.min() >= 0 and flat.max() < vocabulary):
        return
    place = int(np.argmax(~((flat >= 0) & (flat < vocabulary))))
    row = int(np.searchsorted(lists.start + lists.count, place, side="right"))
    if np.isnan(flat[place]):
        raise DataError(f"{where(row)}: {name} token {place - int(lists.start[row]) + 1} is null")
    raise DataError(
        f"{where(row)}: {name} token {int(flat[place])} is outside the model's vocabulary of {vocabulary}",
        hint="the rollouts were made with another tokenizer; give the model that made them",
    )
