"""A corpus of which three tasks in four are mastered: `python examples/mastered.py POOL` writes POOL/mastered.jsonl.

POOL holds raw/train.jsonl, its import in tasks/ and the scores of eight completions each in scores/. 96 tasks that were
right at least six times in eight, and 32 of the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import polars as pl

pool = Path(sys.argv[1])
parts = {
    name: [pl.read_parquet(file) for file in sorted((pool / name).glob("*.parquet"))] for name in ("scores", "tasks")
}
scores, tasks = pl.concat(parts["scores"]), pl.concat(parts["tasks"])
right = dict(scores.group_by("task_id").agg(pl.col("exact").mean()).iter_rows())
shares = [(json.loads(extra)["id"], right[task]) for task, extra in tasks.select("task_id", "extra_json").iter_rows()]
rng = Random(0)
chosen = set(rng.sample([name for name, share in shares if share >= 0.75], 96))
chosen |= set(rng.sample([name for name, share in shares if share < 0.75], 32))
lines = (pool / "raw" / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
kept = "".join(line for line in lines if json.loads(line)["id"] in chosen)
(pool / "mastered.jsonl").write_text(kept, encoding="utf-8")
