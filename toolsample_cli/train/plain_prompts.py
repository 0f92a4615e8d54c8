"""Training few-shot completions under the plain prompt, without the demonstrations that they were sampled with.

What a policy learns under a prompt with demonstrations it need not do without them; what the update conditions on
decides what transfers. Under the plain prompt y ~ pi_old(. | demonstrations, x) is off-policy. The correction (our
reading): for each token the ratio is taken against the policy at the start of the round under the plain prompt, and
min(pi_start(y_t | x) / pi_old(y_t | demonstrations, x), is_cap) becomes its weight, as in the decoupled mode
(`--old-policy recompute`). It is biased towards tokens that the plain prompt already likes. LUFFY (2504.14945) goes
the other way and shapes pi / (pi + 0.1), which favours unlikely tokens of a stronger teacher; our demonstrations
come from no stronger policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import polars as pl

from toolsample_cli.errors import DataError
from toolsample_cli.models.chat import Chat
from toolsample_cli.shards.reading import Folder
from toolsample_cli.train.gather import Gathered

PLAIN = "plain"
"""Value of a batch's column `prompt` for rollouts to be trained on under the prompt of `plain_task_id`."""


def plain_tasks(batch: pl.DataFrame) -> dict[str, str]:
    """Few-shot task -> the plain task whose prompt takes its place; nothing where the batch asks for none."""
    if "prompt" not in batch.columns:
        return {}
    asked = batch.filter(pl.col("prompt") == PLAIN).unique("task_id")
    return dict(asked.select("task_id", "plain_task_id").iter_rows())


def prompts_of(tasks: Folder, chat: Chat, ids: Collection[str]) -> dict[str, np.ndarray]:
    """Prompt token ids of these tasks. DataError for one that is not there."""
    found: dict[str, np.ndarray] = {}
    for _, frame in tasks.frames():
        for row in frame.filter(pl.col("task_id").is_in(list(ids))).iter_rows(named=True):
            found[row["task_id"]] = np.array(chat.prompt_ids(row), dtype=np.int64)
    missing = sorted(set(ids) - found.keys())
    if missing:
        raise DataError(
            f"{tasks.path}: task {missing[0]} is not there, under whose prompt completions are to be trained on",
            hint="give the corpus with --tasks",
        )
    return found


def condition_on(rows: Gathered, plain: Mapping[str, str], prompts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Put the plain prompt in the place of the sampled one; which of the batch's rows are off-policy by that."""
    swapped = {number: plain[key[0]] for key, number in rows.groups.items() if key[0] in plain}
    for number, task in swapped.items():
        rows.replace_prompt(number, prompts[task])
    return np.isin(rows.group_B, sorted(swapped))
