"""Shards to groups of token arrays: joins batch and rollouts, checks every row it is going to train on.

A fault names file, row and task. Prompts are kept once a group, completions and logprobs once a rollout: eight bytes
a sampled token, so host memory stays far below the model's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from toolsample_cli.errors import ConfigError, DataError, location
from toolsample_cli.grpo.advantage import Advantages, advantages
from toolsample_cli.grpo.batch import Group, Rollout
from toolsample_cli.schema import COMPONENTS
from toolsample_cli.shards import Folder, Shard

COLUMNS = ["rollout_id", "task_id", "round", "prompt_ids", "completion_ids", "logprobs", "finish_reason", "error"]


@dataclass
class TrainSet:
    """Groups in a fixed order and one line of facts a rollout (R rows, in the same order).

    `facts` columns: rollout_id, task_id, advantage, and for grpo reward, base_reward, bonus, format, exact.
    `unscored` are rows that came without logprobs.
    """

    groups: list[Group]
    facts: pl.DataFrame
    round: int
    temperature: float = 1.0
    advantages: Advantages | None = None
    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unscored: frozenset[int] = frozenset()

    @property
    def longest(self) -> int:
        """Longest prompt plus completion in tokens."""
        return max((len(g.prompt) + len(r.completion) for g in self.groups for r in g.rollouts), default=0)


@dataclass(frozen=True)
class _Row:
    where: str
    group: tuple[str, int]
    prompt: np.ndarray
    completion: np.ndarray
    logprobs: np.ndarray
    truncated: bool
    scored: bool = True


def scored_rollouts(rollouts: Folder, batch: pl.DataFrame, config: Any, vocabulary: int) -> TrainSet:
    """Rollouts that the batch names, with advantages.

    `config` is a TrainConfig, `vocabulary` the rows of the model's embedding. Raises DataError for a rollout that is
    unknown, errored, without logprobs of the right length, of mixed prompts, or of another tokenizer.
    """
    sampling, warnings = sampling_facts(rollouts)
    rows = _gather(rollouts, batch, vocabulary)
    unscored = [rollout_id for rollout_id, row in rows.items() if not row.scored]
    if unscored and config.old_policy == "stored":
        raise DataError(
            f"{rows[unscored[0]].where}: no logprobs, so there is nothing to take a ratio against",
            hint="sample with a backend that returns logprobs, or recompute them: --old-policy recompute",
        )
    order = sorted(rows, key=lambda rollout_id: (rows[rollout_id].group, rollout_id))
    position = {rollout_id: number for number, rollout_id in enumerate(order)}
    batch = batch.sort(pl.col("rollout_id").replace_strict(position, return_dtype=pl.Int64))
    keys = sorted({rows[rollout_id].group for rollout_id in order})
    number = {key: index for index, key in enumerate(keys)}
    group_R = np.array([number[rows[rollout_id].group] for rollout_id in order], dtype=np.int64)
    result = advantages(
        batch["reward"].to_numpy(),
        group_R,
        method=config.advantage,
        bonus_R=batch["bonus"].to_numpy(),
        bonus_mode=config.bonus_mode,
        components=_components(batch) if config.advantage == "gdpo" else None,
    )
    groups = _groups(order, rows, group_R, result.value_R, mask_truncated=config.mask_truncated)
    facts = batch.select("rollout_id", "task_id", "reward", "base_reward", "bonus", "format", "exact").with_columns(
        advantage=pl.Series(result.value_R)
    )
    counts = {"dropped_tokens": sum(int((~r.usable).sum()) for g in groups for r in g.rollouts)}
    latest = max((key[1] for key in keys), default=0)
    missing = frozenset(position[rollout_id] for rollout_id in unscored)
    return TrainSet(groups, facts, latest, sampling, result, counts, warnings, missing)


def _components(batch: pl.DataFrame) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    weights = {name: f"weight_{name}" for name in COMPONENTS if f"weight_{name}" in batch.columns}
    ones = np.ones(batch.height)
    return {
        name: (
            batch[name].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
            batch[weights[name]].to_numpy() if name in weights else ones,
        )
        for name in COMPONENTS
    }


def sampling_facts(rollouts: Folder) -> tuple[float, list[str]]:
    """Temperature of the rollouts and warnings about their logprobs, from the settings they were made with.

    Raises ConfigError for greedy rollouts and for logprobs taken before the temperature.
    """
    config = rollouts.config
    temperature = float(config.get("temperature", 1.0))
    if temperature == 0.0:
        raise ConfigError(
            f"{rollouts.path}: greedy rollouts (temperature 0) have no distribution to learn from",
            hint="sample with --temperature 1",
        )
    mode = str(config.get("logprobs") or "processed")
    if mode.startswith("raw") and temperature != 1.0:
        raise ConfigError(
            f"{rollouts.path}: logprobs were taken before the temperature of {temperature:g} was applied",
            hint="sample again with processed logprobs, or at temperature 1",
        )
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    used = [f"{key} {config[key]:g}" for key, neutral in off.items() if config.get(key, neutral) not in (neutral, -1)]
    warnings = []
    if used and mode == "temperature only":
        warnings.append(f"sampled with {', '.join(used)}, which stored logprobs leave out: ratios of another policy")
    elif used:
        warnings.append(
            f"sampled with {', '.join(used)}: stored logprobs are of the cut distribution, so ratios start below 1"
        )
    if mode == "unknown" and (used or temperature != 1.0):
        warnings.append("the server did not tell which distribution its logprobs are of: ratio_first must be about 1")
    return temperature, warnings


def _gather(rollouts: Folder, batch: pl.DataFrame, vocabulary: int) -> dict[str, _Row]:
    wanted = batch.select("rollout_id")
    prompts: dict[tuple[str, int], np.ndarray] = {}
    rows: dict[str, _Row] = {}
    for shard, frame in rollouts.frames(COLUMNS):
        found = frame.with_row_index("line__").join(wanted, on="rollout_id", how="semi")
        for rollout_id, row in _rows(found, shard, prompts):
            if rollout_id in rows:
                raise DataError(f"{row.where}: rollout {rollout_id} stands twice in {rollouts.path}")
            _check_ids(row, vocabulary)
            rows[rollout_id] = row
    missing = wanted.filter(~pl.col("rollout_id").is_in(list(rows)))
    if missing.height:
        raise DataError(
            f"{rollouts.path}: {missing.height} of {batch.height} rollouts of the batch are not there, "
            f"the first is {missing['rollout_id'][0]}",
            hint="give the rollouts that the batch was made from",
        )
    return rows


def _rows(found: pl.DataFrame, shard: Shard, prompts: dict[tuple[str, int], np.ndarray]):
    columns = [found[name].to_list() for name in ("line__", *COLUMNS[:3], "finish_reason", "error")]
    prompt_ids, completion_ids, logprobs = (_arrays(found[name]) for name in COLUMNS[3:6])
    for index, (line, rollout_id, task_id, number, finish, error) in enumerate(zip(*columns, strict=True)):
        where = location(shard.path, row=line + 1, task=task_id)
        if error is not None:
            raise DataError(
                f"{where}: the batch names a rollout that errored: {error}", hint="rerun filter and curriculum"
            )
        prompt, completion, logp = prompt_ids[index], completion_ids[index], logprobs[index]
        if completion is None or prompt is None or not len(prompt):
            raise DataError(f"{where}: no token ids")
        scored = logp is not None
        logp = logp if scored else np.zeros(len(completion), np.float32)
        if len(logp) != len(completion):
            raise DataError(f"{where}: {len(logp)} logprobs for {len(completion)} completion tokens")
        prompt = prompts.setdefault((task_id, number), prompt)
        if not np.array_equal(prompt, prompt_ids[index]):
            raise DataError(f"{where}: its prompt differs from that of the other samples of the task in round {number}")
        yield rollout_id, _Row(where, (task_id, number), prompt, completion, logp, finish == "length", scored)


def _arrays(column: pl.Series) -> list[np.ndarray | None]:
    """A list column as one array a row (None for null), without a Python object a token."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    is_float = column.dtype == pl.List(pl.Float32)
    flat = column.drop_nulls().filter(column.drop_nulls().list.len() > 0).explode()
    flat = flat.fill_null(float("nan")).to_numpy() if is_float else flat.to_numpy()
    ends = np.cumsum(lengths)
    null = column.is_null().to_list()
    # a copy, so that one row does not keep its whole shard alive
    return [
        None if gone else flat[end - length : end].copy() for gone, length, end in zip(null, lengths, ends, strict=True)
    ]


def _check_ids(row: _Row, vocabulary: int) -> None:
    for name, ids in (("prompt", row.prompt), ("completion", row.completion)):
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
            raise DataError(
                f"{row.where}: {name} token {int(ids.max())} is outside the model's vocabulary of {vocabulary}",
                hint="the rollouts were made with another tokenizer; give the model that made them",
            )


def _groups(
    order: list[str], rows: dict[str, _Row], group_R: np.ndarray, value_R: np.ndarray, *, mask_truncated: bool
) -> list[Group]:
    members: dict[int, list[Rollout]] = {}
    for index, rollout_id in enumerate(order):
        row = rows[rollout_id]
        logprobs = np.full_like(row.logprobs, np.nan) if mask_truncated and row.truncated else row.logprobs
        rollout = Rollout(index, row.completion, logprobs, float(value_R[index]))
        members.setdefault(int(group_R[index]), []).append(rollout)
    return [Group(rows[order[rollouts[0].row]].prompt, tuple(rollouts)) for rollouts in members.values()]


def demonstrations(tasks: pl.DataFrame, chat: Any, where: Path | str, vocabulary: int) -> TrainSet:
    """Gold answers as rollouts of advantage 1 for the supervised objective; tasks without a gold text are rendered.

    Raises DataError with file, row and task where there is nothing to imitate.
    """
    groups, facts = [], []
    for line, task in enumerate(tasks.iter_rows(named=True), start=1):
        place = location(where, row=line, task=task["task_id"])
        completion = np.array(chat.completion_ids(gold_text(task, place)), dtype=np.int64)
        prompt = np.array(chat.prompt_ids(task), dtype=np.int64)
        row = _Row(place, (task["task_id"], 0), prompt, completion, np.zeros(len(completion), np.float32), False)
        _check_ids(row, vocabulary)
        groups.append(Group(prompt, (Rollout(len(groups), completion, row.logprobs, 1.0),)))
        facts.append((task["task_id"], task["task_id"], 1.0))
    schema = {"rollout_id": pl.String, "task_id": pl.String, "advantage": pl.Float64}
    return TrainSet(groups, pl.DataFrame(facts, schema=schema, orient="row"), 0)


def gold_text(task: Mapping[str, Any], place: str) -> str:
    """A task's gold answer as its protocol writes it: its own text, else its calls rendered."""
    from toolsample_cli.protocols import PROTOCOLS
    from toolsample_cli.toolcall import Call

    if task["gold_text"]:
        return task["gold_text"]
    calls = [Call(call["name"], call["arguments"]) for call in json.loads(task["gold_json"])]
    if not calls:
        raise DataError(f"{place}: neither gold text nor gold calls, so there is nothing to imitate")
    if task["protocol"] not in PROTOCOLS:
        raise DataError(f"{place}: unknown protocol {task['protocol']!r}", hint=f"known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[task["protocol"]].render(calls)
