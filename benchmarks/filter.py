"""Filter and draw at corpus scale: seconds, memory, and DuckDB doing the same aggregation in the same run.

`python benchmarks/filter.py --json [--work DIR] [--tasks 1000000] [--duckdb PYTHON]`. Synthetic scores of 8
completions per task are made first (not timed). Each job runs in a process of its own, on as many threads as there
are cores; `peak_mb` is the highest anonymous memory of that process. `--duckdb` names a Python that has duckdb.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import polars as pl

from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output

N = 8
TASKS_PER_SHARD = 31_250

METER = textwrap.dedent(
    """
    import json, sys, threading, time, resource
    def anon():
        with open("/proc/self/status") as handle:
            return next(int(line.split()[1]) for line in handle if line.startswith("RssAnon")) / 1024
    peak, stop = [0.0], threading.Event()
    def watch():
        while not stop.wait(0.01):
            peak[0] = max(peak[0], anon())
    def measure(job):
        base = anon()
        threading.Thread(target=watch, daemon=True).start()
        cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        wall = time.perf_counter()
        extra = job() or {}
        wall = time.perf_counter() - wall
        cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu
        stop.set()
        found = {"seconds": wall, "cpu_seconds": cpu, "peak_mb": max(peak[0], anon()), "base_mb": base}
        print(json.dumps({**found, **extra}))
    """
)

FILTER = """
from pathlib import Path
from toolsample_cli.config import FilterConfig
from toolsample_cli.stage import Options
from toolsample_cli.filter.stage import run
def job():
    account = run(Path(sys.argv[1]), None, Path(sys.argv[2]), FilterConfig(), Options(overwrite=True))
    return {"groups": account.rows_out}
measure(job)
"""

DRAW = """
from pathlib import Path
from toolsample_cli.config import CurriculumConfig
from toolsample_cli.stage import Options
from toolsample_cli.curriculum.stage import Paths, run
def job():
    config = CurriculumConfig(tasks_per_round=int(sys.argv[3]))
    account = run(Paths(Path(sys.argv[1])), Path(sys.argv[2]), config, Options(overwrite=True))
    return {"drawn": account.extra["drawn"]}
measure(job)
"""

DUCKDB = """
import duckdb
def job():
    components = ["format", "name", "key", "value"]
    ratio = [f"case when {c}_max > 0 and reward is not null then {c} / {c}_max end as {c}" for c in components]
    moments = [f"avg({c}) as {c}_mean" for c in ["reward", *components]]
    moments += [f"case when count({c}) > 1 then var_pop({c}) end as {c}_var" for c in ["reward", *components]]
    constant = ["slot_id", "shots", "source", "category", "round", "reward_min", "reward_max"]
    first = [f"first({c}) as {c}" for c in constant]
    span = "(reward_max - reward_min)"
    visit = [
        f"least(greatest((reward_max - reward_mean) / {span}, 0), 1) as state",
        f"least(greatest(reward_var / ({span} * {span} / 4), 0), 1) as potential",
        "1.05::double as importance", "n > 1 as keep",
        "case when n = 0 then 'errored' when n = 1 then 'single' else 'warmup' end as reason",
        "round as last_round", "1::integer as visits", "(case when n_exact > 0 then 0 else n end)::integer as misses",
        "(case when n > 0 and (n_exact = 0 or n_exact = n) then 1 else 0 end)::integer as flat_visits",
    ]
    con = duckdb.connect()
    con.execute(f"set threads = {sys.argv[3]}; set memory_limit = '4GB'")
    con.execute("set preserve_insertion_order = false; set enable_progress_bar = false")
    con.execute(
        f"copy (select * exclude (round), {', '.join(visit)} from ("
        f"select task_id, {', '.join(first)}, count(reward)::integer as n, "
        f"(count(*) - count(reward))::integer as n_error, "
        f"(count(*) filter (exact and reward is not null))::integer as n_exact, {', '.join(moments)} from "
        f"(select * replace ({', '.join(ratio)}) from read_parquet('{sys.argv[1]}/*.parquet')) group by task_id)) "
        f"to '{sys.argv[2]}' (format parquet, compression zstd, compression_level 3)"
    )
    return {"groups": con.execute(f"select count(*) from '{sys.argv[2]}'").fetchone()[0]}
measure(job)
"""
"""The same columns of `groups`, the first round's verdict included; one file instead of shards, no digests, no sync."""


def make_scores(folder: Path, tasks: int) -> Path:
    """`tasks` groups of 8 with rewards of every kind, in shards of 250,000 rows."""
    with Output(folder, schema.SCORES, {"tasks": tasks}) as output:
        for number, start in enumerate(range(0, tasks, TASKS_PER_SHARD)):
            if not output.done(number):
                output.write(number, _score_shard(start, min(TASKS_PER_SHARD, tasks - start), number))
        output.finish()
    return folder


def _score_shard(start: int, tasks: int, seed: int) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    rows = tasks * N
    ids = pl.Series("task_id", [f"{(start + i) * 2654435761 % 2**40:010x}-{start + i:08d}" for i in range(tasks)])
    calls = np.repeat(draw.integers(0, 3, tasks), N)
    arguments = calls * 2
    skill = np.repeat(draw.random(tasks), N)
    name = (draw.random(rows) < skill + 0.3).astype(float)
    value = np.floor(draw.random(rows) * (skill + 1) * arguments).clip(0, arguments) * name
    form = (draw.random(rows) < 0.9).astype(float)
    none = calls == 0
    reward = np.where(none, form, form + 6 * (name + name * calls + value) / (1 + calls + arguments) - 3)
    failed = draw.random(rows) < 0.01

    def column(data: np.ndarray, missing: np.ndarray) -> pl.Series:
        return pl.DataFrame({"v": data, "m": missing}).select(pl.when(~pl.col("m")).then(pl.col("v")))["v"]

    repeated = ids.gather(np.repeat(np.arange(tasks), N))
    exact = column(np.where(none, form > 0, (form > 0) & (value == arguments) & (name > 0)), failed)
    return pl.DataFrame(
        {
            "rollout_id": repeated + "/0/" + pl.Series(np.tile(np.arange(N), tasks)).cast(pl.String),
            "task_id": repeated,
            "round": pl.Series(np.zeros(rows), dtype=pl.Int32),
            "sample": pl.Series(np.tile(np.arange(N), tasks), dtype=pl.Int32),
            "slot_id": repeated,
            "shots": pl.Series(np.zeros(rows), dtype=pl.Int32),
            "source": pl.Series(["made"]).gather(np.zeros(rows, int)),
            "category": pl.Series(["none", "simple", "parallel"]).gather(calls),
            "parse_status": pl.Series(["ok", "error"]).gather(failed.astype(int)),
            "calls_json": pl.Series(["[]"]).gather(np.zeros(rows, int)),
            "format": column(form, failed),
            "format_max": np.ones(rows),
            "name": column(name, failed | none),
            "name_max": column(np.ones(rows), none),
            "key": column(name * calls, failed | none),
            "key_max": column(calls.astype(float), none),
            "value": column(value, failed | none),
            "value_max": column(arguments.astype(float), none),
            "exact": exact,
            "schema_valid": column(np.ones(rows, bool), none),
            "self_example": column(np.zeros(rows, bool), failed),
            "extra_json": pl.Series(["{}"]).gather(np.zeros(rows, int)),
            "reward": column(reward, failed),
            "reward_min": np.where(none, 0.0, -3.0),
            "reward_max": np.where(none, 1.0, 4.0),
        }
    )


def make_corpus(folder: Path, tasks: int) -> Path:
    """`tasks` short tasks in shards of 250,000."""
    size = 250_000
    with Output(folder, schema.TASKS, {"tasks": tasks}) as output:
        for number, start in enumerate(range(0, tasks, size)):
            if output.done(number):
                continue
            ids = pl.Series("task_id", [f"{i * 2654435761 % 2**40:010x}-{i:08d}" for i in range(start, start + size)])
            text = '{"role":"user","content":"book a table for two in ' + ids + '"}'
            constant = {"source": "made", "split": "train", "category": "simple", "protocol": "hermes"}
            constant |= {"tools_json": "[]", "gold_json": "[]", "gold_kind": "calls", "gold_text": None}
            constant |= {"gold_issues_json": "[]", "demos_json": "[]", "demo_task_ids": [], "parent_task_id": None}
            constant |= {"license": "none", "extra_json": "{}"}
            frame = pl.DataFrame({"task_id": ids, "messages_json": "[" + text + "]"}).with_columns(
                pl.lit(value, dtype=schema.TASKS.schema[name]).alias(name) for name, value in constant.items()
            )
            output.write(number, frame.select(list(schema.TASKS.schema)))
        output.finish()
    return folder


def measured(code: str, *arguments: object, python: str = sys.executable) -> dict:
    """Run one job in a process of its own."""
    done = subprocess.run(
        [python, "-c", METER + code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {key: round(value, 3) for key, value in json.loads(done.stdout.splitlines()[-1]).items()}


def duckdb_python(given: str | None) -> str | None:
    """A Python with duckdb: the one given, this one, or None."""
    python = given or sys.executable
    probe = subprocess.run([python, "-c", "import duckdb"], capture_output=True, check=False)
    return python if probe.returncode == 0 else None


def bench(work: Path, tasks: int, corpus_tasks: int, duckdb: str | None, repeats: int) -> dict:
    """All measurements; the best of `repeats` alternating runs each."""
    sizes = sorted({max(tasks // 8, 1), tasks})
    scores = {size: make_scores(work / f"scores-{size}", size) for size in sizes}
    record: dict = {"rows": tasks * N, "cores": os.cpu_count(), "repeats": repeats}
    runs, rival = [], []
    for _ in range(repeats):
        runs.append(measured(FILTER, scores[tasks], work / "groups"))
        if duckdb:
            rival.append(measured(DUCKDB, scores[tasks], work / "duck.parquet", os.cpu_count(), python=duckdb))
    record |= min(runs, key=lambda run: run["seconds"])
    record["small"] = measured(FILTER, scores[sizes[0]], work / "groups-small")
    record["duckdb"] = min(rival, key=lambda run: run["seconds"]) if rival else None
    for name, unit in (("ratio_vs_duckdb", "seconds"), ("cpu_ratio_vs_duckdb", "cpu_seconds")):
        pairs = sorted(ours[unit] / theirs[unit] for ours, theirs in zip(runs, rival, strict=False))
        record[name] = round(pairs[len(pairs) // 2], 3) if pairs else None
    corpus = make_corpus(work / f"corpus-{corpus_tasks}", corpus_tasks)
    record["draw"] = {"corpus": corpus_tasks, **measured(DRAW, corpus, work / "drawn", corpus_tasks // 100)}
    return record


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--work", type=Path, help="folder for the data (kept); default: a temporary one")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="groups of 8 rows")
    parser.add_argument("--corpus", type=int, default=10_000_000, help="tasks to draw 1 %% of")
    parser.add_argument("--duckdb", help="a Python that has duckdb")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp(prefix="bench-filter-"))
    try:
        record = bench(work, given.tasks, given.corpus, duckdb_python(given.duckdb), given.repeats)
    finally:
        if given.work is None:
            shutil.rmtree(work)
    print(json.dumps(record) if given.json else json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
