# %% [markdown]
# Curation in a notebook. Every `# %%` begins a cell (VS Code, Jupytext); as a script:
#     python examples/notebook.py TASKS ROLLOUTS.jsonl MODEL OUT
# ROLLOUTS.jsonl has lines of {"task_id", "text", "finish_reason"}, from whatever sampled them.

# %%
import sys
from pathlib import Path

import polars as pl

import toolsample_cli as ts

corpus, mine, model, out = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
tasks = ts.read(corpus)
rollouts = ts.import_rollouts(mine, tasks)
print(f"{tasks.height} tasks, {rollouts.height} answers")

# %% What each answer earned, part by part
scores = ts.scores(tasks, rollouts)
print(scores.select("reward", "exact", "parse_status").describe())

# %% Which tasks are worth training on
groups = ts.groups(scores, method="rds")
print(
    groups.sort("importance", descending=True)
    .select("task_id", "n_exact", "reward_mean", "importance", "reason")
    .head()
)
picked = ts.pick(tasks, groups, n=16, round=1)

# %% Answers worth imitating, and pairs
right = ts.right(scores, rollouts, per_task=2)
pairs = ts.pairs(scores, rollouts)
gap = (pairs["reward_chosen"] - pairs["reward_rejected"]).mean()
print(f"{right.height} right answers, {pairs.height} pairs, {gap:.2f} apart on average")

# %% The reward of one task, as a function
reward = ts.Reward(tasks.row(0, named=True))
print(reward(tasks["gold_text"][0]), reward.score("I do not know."))

# %% Out to a trainer
ts.export(picked, "trl", out / "train.jsonl", model, groups=groups)
account = ts.export(tasks, "dpo", out / "pairs.jsonl", model, rollouts=rollouts, scores=scores)
print(account.line())
print(pl.read_ndjson(out / "pairs.jsonl").columns)
