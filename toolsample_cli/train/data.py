"""Shards to groups: joins batch and rollouts, checks every row it is going to train on. A fault names file, row, task.

One shard is in memory at a time; its tokens go to the store, and what stays is a line of numbers per rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.shards.reading import Folder
from toolsample_cli.shards.schema import COMPONENTS
from toolsample_cli.train.advantage import Advantages, advantages
from toolsample_cli.train.gather import gather_rollouts
from toolsample_cli.train.loss import advantage_of
from toolsample_cli.train.plain_prompts import condition_on, plain_tasks
from toolsample_cli.train.token_store import Groups


@dataclass
class TrainSet:
    """Groups in a fixed order and one line of facts a rollout (R rows, in the same order).

    `facts` columns: rollout_id, task_id, advantage, and for grpo reward, base_reward, bonus, format, exact.
    `unscored` are rows that came without logprobs, `off_policy` those that are trained on under another prompt than
    they were sampled with.
    """

    groups: Groups
    facts: pl.DataFrame
    round: int
    temperature: float = 1.0
    advantages: Advantages | None = None
    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unscored: frozenset[int] = frozenset()
    off_policy: frozenset[int] = frozenset()

    @property
    def longest(self) -> int:
        """Longest prompt plus completion in tokens."""
        prompts = np.repeat(self.groups.prompt_tokens_G, np.diff(self.groups.start_G))
        return int((prompts + self.groups.tokens_R).max(initial=0))


def scored_rollouts(
    rollouts: Folder,
    batch: pl.DataFrame,
    config: TrainConfig,
    vocabulary: int,
    plain_prompts: Callable[[Collection[str]], Mapping[str, np.ndarray]] | None = None,
) -> TrainSet:
    """Rollouts that the batch names, with advantages.

    `vocabulary` is the number of rows of the model's embedding. Raises DataError for a rollout that is
    unknown, errored, without logprobs of the right length, of mixed prompts, or of another tokenizer. `plain_prompts`
    gives prompt ids of tasks, for rows that the batch wants trained on under their plain prompt.
    """
    sampling, warnings = sampling_facts(rollouts)
    rows = gather_rollouts(rollouts, batch, vocabulary)
    plain = plain_tasks(batch)
    if plain and plain_prompts is None:
        raise ConfigError(
            f"the batch asks to train {len(plain)} few-shot tasks under their plain prompts", hint="add --tasks CORPUS"
        )
    prompts = plain_prompts(set(plain.values())) if plain and plain_prompts else {}
    off_policy_B = condition_on(rows, plain, prompts)
    if rows.unscored_at and config.old_policy == "stored":
        raise DataError(
            f"{rows.unscored_at}: no logprobs, so there is nothing to take a ratio against",
            hint="sample with a backend that returns logprobs, or recompute them: --old-policy recompute",
        )
    keys = sorted(rows.groups)
    rank_G = np.array([rows.groups[key] for key in keys], dtype=np.int64)
    number = np.empty(len(keys), np.int64)
    number[rank_G] = np.arange(len(keys))
    ids = pl.DataFrame({"group": number[rows.group_B], "id": batch["rollout_id"]}).with_row_index("at")
    order_B = ids.sort("group", "id")["at"].to_numpy()
    batch, group_R = batch[order_B], number[rows.group_B][order_B]
    method = advantage_of(config)
    result = advantages(
        batch["reward"].to_numpy(),
        group_R,
        method=method,
        bonus_R=batch["bonus"].to_numpy(),
        bonus_mode=config.bonus_mode,
        components=_components(batch) if method == "gdpo" else None,
    )
    masked_B = rows.truncated_B if config.mask_truncated else np.zeros(batch.height, bool)
    groups = rows.ordered(order_B, rank_G, result.value_R, masked_B)
    facts = batch.select("rollout_id", "task_id", "reward", "base_reward", "bonus", "format", "exact").with_columns(
        advantage=pl.Series(result.value_R)
    )
    counts = {"dropped_tokens": int((groups.tokens_R - groups.usable_R).sum())}
    latest = max((key[1] for key in keys), default=0)
    missing = frozenset(np.flatnonzero(~rows.scored_B[order_B]).tolist())
    moved = frozenset(np.flatnonzero(off_policy_B[order_B]).tolist())
    return TrainSet(groups, facts, latest, sampling, result, counts, warnings, missing, moved)


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
        warnings.append(
            "the server did not tell which distribution its logprobs are of: log_ratio_first must be about 0"
        )
    return temperature, warnings
