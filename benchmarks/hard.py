"""How many never-solved tasks become mixed groups within three rounds, few-shot against kept, at equal rollouts.

    python benchmarks/hard.py [--policy fixtures/policy-weak] [--json]

A task is hard when none of its ten completions in round 1 is right; its group is mixed in a later round when some are
right and some are not. Both arms train between the rounds (examples/hard-small.toml).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

ROOT = Path(__file__).resolve().parent.parent
TASKS, ROUNDS = 120, 4


def call(*command: str, cwd: Path) -> None:
    """Run a command quietly; its errors end the benchmark."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")


def count(run: Path) -> dict[str, object]:
    """What became of the tasks that round 1 left unsolved."""
    groups = [
        pl.read_parquet(run / f"round-{number}" / "scores" / "part-*.parquet")
        .group_by("slot_id")
        .agg(right=pl.col("exact").sum(), n=pl.len())
        for number in range(1, ROUNDS + 1)
    ]
    hard = groups[0].filter(pl.col("right") == 0)["slot_id"]
    mixed = [
        set(
            g.filter(pl.col("slot_id").is_in(hard.implode()), pl.col("right").is_between(1, pl.col("n") - 1))["slot_id"]
        )
        for g in groups[1:]
    ]
    return {
        "hard": len(hard),
        "mixed_by_round": [len(found) for found in mixed],
        "mixed_within_three": len(set().union(*mixed)),
        "share": round(len(set().union(*mixed)) / max(len(hard), 1), 3),
        "rollouts": int(sum(g["n"].sum() for g in groups)),
    }


def main() -> None:
    """Run both arms and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=ROOT / "fixtures" / "policy-weak")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        call(sys.executable, str(ROOT / "fixtures" / "make_tasks.py"), "raw", cwd=place)
        call("toolsample", "import", "raw/train.jsonl", "--limit", str(TASKS), "-o", "corpus", cwd=place)
        recipe, policy = str(ROOT / "examples" / "hard-small.toml"), str(arguments.policy.resolve())
        call("toolsample", "run", recipe, "--corpus", "corpus", "--model", policy, "-o", "out", cwd=place)
        result = {arm: count(place / "out" / arm / "seed-0") for arm in ("keep", "fewshot")}
    record = {"benchmark": "hard", "policy": arguments.policy.name, **result}
    if arguments.json:
        print(json.dumps(record))
    else:
        for arm, values in result.items():
            print(f"{arm:8} {values}")


if __name__ == "__main__":
    main()
