"""The viewer on a large run: 1,000,000 rollouts with scores and 125,000 groups over 20 rounds.

Prints seconds of the first overview, of the slowest question and page, and the server's peak memory:
`python benchmarks/view.py --json`. One process serves, another asks, as a browser would.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import polars as pl

from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output
from toolsample_cli.view.server import serve

QUESTIONS = (
    {"kind": "scores", "where": "name = name_max and value < value_max", "sort": "reward", "desc": "1"},
    {"kind": "groups", "sort": "reward_var", "desc": "1"},
    {"kind": "groups", "where": "n_exact = 0 and category = 'parallel'"},
    {"kind": "rollouts", "where": "text like '%42%'"},
    {"ask": "name-right-value-wrong"},
    {"ask": "suspect-gold"},
    {"kind": "scores", "page": "400"},
)


def make(run: Path, rounds: int, per_round: int, n: int) -> None:
    """Shards of a run with random components; every task is visited once."""
    draw = np.random.default_rng(0)
    for number in range(1, rounds + 1):
        tasks = [f"{number:02d}{i:06d}" for i in range(per_round // n)]
        ids = np.repeat(tasks, n)
        value = draw.integers(0, 4, per_round).astype(float)
        rows = {
            "rollout_id": [f"{t}/{number}/{i % n}" for i, t in enumerate(ids)], "task_id": ids, "round": number,
            "sample": np.tile(np.arange(n), len(tasks)), "slot_id": ids, "shots": 0, "source": "made",
            "category": draw.choice(["simple", "multiple", "parallel"], per_round), "parse_status": "ok",
            "calls_json": '[{"name":"f","arguments":{"a":1}}]', "format": 1.0, "format_max": 1.0, "name": 1.0,
            "name_max": 1.0, "key": 1.0, "key_max": 1.0, "value": value, "value_max": 3.0, "exact": value == 3,
            "schema_valid": True, "self_example": False, "extra_json": "{}", "reward": value, "reward_min": -3.0,
            "reward_max": 4.0,
        }  # fmt: skip
        here = run / f"round-{number}"
        scores = pl.DataFrame(rows).select(pl.col(c).cast(d) for c, d in schema.SCORES.schema.items())
        write(here / "scores", schema.SCORES, scores)
        texts = {
            "rollout_id": scores["rollout_id"], "task_id": ids, "round": number, "sample": scores["sample"],
            "policy": "p", "backend": "b", "seed": 0, "prompt_ids": [[1] * 50] * per_round,
            "completion_ids": [[2] * 40] * per_round, "logprobs": [[-0.1] * 40] * per_round, "finish_reason": "stop",
            "ids_from_text": False, "text": [f"<tool_call> {k} " * 8 for k in range(per_round)], "error": None,
        }  # fmt: skip
        rollouts = pl.DataFrame(texts).select(pl.col(c).cast(d) for c, d in schema.ROLLOUTS.schema.items())
        write(here / "rollouts", schema.ROLLOUTS, rollouts)
        grouped = scores.group_by("task_id", maintain_order=True).agg(
            pl.col("category").first(), pl.len().alias("n"), pl.col("exact").sum().alias("n_exact"),
            pl.col("reward").mean().alias("reward_mean"), pl.col("reward").var(ddof=0).alias("reward_var"),
        )  # fmt: skip
        known = {"slot_id": pl.col("task_id"), "source": pl.lit("made"), "reason": pl.lit("learnable"), "keep": True}
        known |= {"last_round": number, "visits": 1, "reward_min": -3.0, "reward_max": 4.0, "importance": 0.5}
        made = grouped.with_columns(**known)
        groups = made.select(
            (pl.col(c) if c in made.columns else pl.lit(0 if d != pl.String else "")).cast(d).alias(c)
            for c, d in schema.GROUPS.schema.items()
        )
        write(here / "groups", schema.GROUPS, groups)


def write(folder: Path, kind: schema.Kind, frame: pl.DataFrame) -> None:
    """One shard per folder."""
    with Output(folder, kind, {}) as output:
        output.write(0, frame)
        output.finish()


def child(run: Path, pipe: object) -> None:
    """The serving process."""
    serve([run], 0, pipe.send)  # type: ignore[attr-defined]


def peak(pid: int) -> int:
    """Largest resident memory of a process so far, in MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    match = re.search(r"VmHWM:\s+(\d+)", text)
    return int(match[1]) // 1024 if match else 0


def main() -> None:
    """Make the run, serve it, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make(run, given.rounds, given.rollouts // given.rounds, 8)
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=child, args=(run, theirs), daemon=True)
        server.start()
        address = ours.recv()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        time.sleep(1)

        def get(path: str) -> float:
            started = time.perf_counter()
            opener.open(address.partition("/?")[0] + path).read()
            return time.perf_counter() - started

        opener.open(address.partition("?")[0] + "static/app.js?" + address.partition("?")[2]).read()
        first = get("/")
        seconds = {
            str(q): max(get(f"/round?round={given.rounds}&" + urlencode(q)) for _ in range(2)) for q in QUESTIONS
        }
        report = {
            "rollouts": given.rollouts, "first_page_s": round(first, 2), "again_s": round(get("/"), 2),
            "slowest_question_s": round(max(seconds.values()), 2),
            "peak_mb": peak(server.pid or 0),
            "questions": {key: round(value, 2) for key, value in seconds.items()},
        }  # fmt: skip
        server.terminate()
    if given.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key}: {value}")


if __name__ == "__main__":
    main()
