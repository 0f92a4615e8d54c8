"""Throughput of `score`: completions of RLLA's shape, right and wrong mixed, Parquet in, Parquet out, one core.

    python benchmarks/score.py --json [--rows 200000] [--linear]

`ratio_vs_naive` is our rows a CPU second over those of the plain ToolRL formula written naively (pandas-style loop,
`re`, `json`, `Counter`), measured in the same run on the same files. `row_in_json_loads` is the CPU time of a row in
decodings of one call, which is the same on a slow and a fast machine; `bound_rows_per_cpu_s` is what is left when
nothing is done but reading the texts, decoding each call and writing the scores. `--linear` adds ten times the rows.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from meter import peak_mb

SAMPLES = 8
_SPEECH = (
    "the user wants to know about this so we should look at which of the tools fits best and what values it needs "
    "first check name of parameter then fill in date city limit query because request says so therefore call it now"
)
WORDS = _SPEECH.split()
TOOLS = [
    ("search_flights", ("origin", "destination", "date", "seats")), ("Get Weather", ("city", "days", "units")),
    ("convert_currency", ("amount", "source", "target")), ("find_recipe", ("ingredients", "limit")),
    ("book_table", ("restaurant", "people", "time", "name")), ("translate", ("text", "language")), ("ping", ()),
]  # fmt: skip


def main() -> None:
    arguments = _arguments()
    if arguments.child:
        print(json.dumps(CHILDREN[arguments.child](Path(arguments.folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "one", arguments.rows)
        if arguments.linear:
            larger = measure(Path(folder) / "ten", 10 * arguments.rows, naive=False)
            result["rows_10x"], result["rows_per_cpu_s_10x"] = larger["rows"], larger["rows_per_cpu_s"]
            result["peak_mb_10x"] = larger["peak_mb"]
            result["time_ratio_10x"] = round(larger["cpu_s"] / result["cpu_s"], 2)
    if arguments.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{key:>22} {value}" for key, value in result.items()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--linear", action="store_true", help="also ten times the rows")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(folder: Path, rows: int, naive: bool = True) -> dict:
    """Make the files, then score them in fresh processes on one core."""
    generate(folder, rows)
    ours = _child("ours", folder)
    result = {
        "rows": rows,
        "rows_per_cpu_s": round(rows / ours["cpu_s"]),
        "cpu_s": round(ours["cpu_s"], 3),
        "wall_s": round(ours["wall_s"], 3),
        "peak_mb": round(ours["peak_mb"], 1),
        "mean_reward": round(ours["reward"] / rows, 6),
        "json_loads_us": round(ours["json_loads_us"], 2),
        "row_in_json_loads": round(ours["cpu_s"] / rows * 1e6 / ours["json_loads_us"], 1),
    }
    if naive:
        plain, least = _child("naive", folder), _child("bound", folder)
        result["bound_rows_per_cpu_s"] = round(rows / least["cpu_s"])
        if abs(plain["reward"] - ours["reward"]) > 1e-6 * rows:
            raise SystemExit(f"the two disagree: {ours['reward']} and {plain['reward']}")
        result["naive_rows_per_cpu_s"] = round(rows / plain["cpu_s"])
        result["naive_peak_mb"] = round(plain["peak_mb"], 1)
        result["ratio_vs_naive"] = round(plain["cpu_s"] / ours["cpu_s"], 2)
    return result


def _json_loads_us() -> float:
    """CPU time of decoding one call, to judge how busy the machine is: 1.2 on an idle core of 2024."""
    text = '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3, "units": "metric", "x": 1}}'
    start = time.process_time()
    for _ in range(50_000):
        json.loads(text)
    return (time.process_time() - start) / 50_000 * 1e6


def _child(name: str, folder: Path) -> dict:
    environment = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [sys.executable, __file__, "--child", name, "--folder", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def _used(start: float, wall: float) -> dict:
    cpu = time.process_time() - start
    return {"cpu_s": cpu, "wall_s": time.perf_counter() - wall, "peak_mb": peak_mb()}


def ours(folder: Path) -> dict:
    """The stage as a user runs it."""
    from toolsample_cli.config import ScoreConfig
    from toolsample_cli.score.stage import run
    from toolsample_cli.shards import schema
    from toolsample_cli.shards.reading import open_folder
    from toolsample_cli.stage import Options

    before = _json_loads_us()
    start, wall = time.process_time(), time.perf_counter()
    run(folder / "tasks", folder / "rollouts", out=folder / "scores", config=ScoreConfig(), options=Options())
    used = {**_used(start, wall), "json_loads_us": (before + _json_loads_us()) / 2}
    frames = open_folder(folder / "scores", schema.SCORES).frames(["reward"])
    return {**used, "reward": sum(frame["reward"].sum() for _, frame in frames)}


def bound(folder: Path) -> dict:
    """What no scorer of these files goes below: Parquet in, `json.loads` of each line of a call, Parquet out."""
    from toolsample_cli.score.stage import ROLLOUT_COLUMNS
    from toolsample_cli.shards import schema
    from toolsample_cli.shards.reading import open_folder
    from toolsample_cli.shards.writing import Output

    texts, scores = open_folder(folder / "rollouts", schema.ROLLOUTS), open_folder(folder / "scores", schema.SCORES)
    cpu = 0.0
    with Output(folder / "bound", schema.SCORES, {}) as output:
        for shard, (_, made) in zip(texts.shards, scores.frames(), strict=True):
            start = time.process_time()
            for text in texts.read(shard, ROLLOUT_COLUMNS)["text"].to_list():
                for line in text.split("\n"):
                    if line[:1] == "{" and line[-2:] == "}}":
                        json.loads(line)
            output.write(shard.number, made)
            cpu += time.process_time() - start
        output.finish()
    return {"cpu_s": cpu}


def naive(folder: Path) -> dict:
    """The plain ToolRL formula, row by row, as published; writes the reward beside the ids."""
    import polars as pl

    start, wall = time.process_time(), time.perf_counter()
    tasks = pl.concat([pl.read_parquet(file) for file in sorted((folder / "tasks").glob("*.parquet"))])
    truth = dict(zip(tasks["task_id"], tasks["gold_text"], strict=True))
    reward = 0.0
    (folder / "naive").mkdir()
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        rows = pl.read_parquet(file, columns=["rollout_id", "task_id", "text"])
        earned = [plain_reward(text, truth[task]) for task, text in zip(rows["task_id"], rows["text"], strict=True)]
        rows.select("rollout_id", reward=pl.Series(earned)).write_parquet(folder / "naive" / file.name)
        reward += sum(earned)
    return {**_used(start, wall), "reward": reward}


def plain_reward(reply: str, truth: str) -> float:
    """Format plus correctness for a gold that calls."""
    reply = reply.strip()
    pattern = r"^<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>$"
    once = reply.count("<tool_call>") == 1 and reply.count("</tool_call>") == 1
    total = 1.0 if re.search(pattern, reply, re.DOTALL) and once else 0.0
    gold = [json.loads(line) for line in truth.split("<tool_call>")[1].split("</tool_call>")[0].strip().split("\n")]
    try:
        assert "<tool_call>" in reply and "</tool_call>" in reply
        block = reply.split("<tool_call>")[1].split("</tool_call>")[0]
        found = [json.loads(line) for line in block.strip().split("\n")]
        score, most, used = _overlap([g["name"] for g in gold], [f["name"] for f in found]), 1.0, set()
        for g in gold:
            most += 1.0 + len(g["parameters"])
            best, best_at = 0.0, -1
            for at, f in enumerate(found):
                if at in used or f["name"] != g["name"]:
                    continue
                here = _overlap(list(g["parameters"]), list(f["parameters"]))
                here += sum(1.0 for k, v in g["parameters"].items() if k in f["parameters"] and f["parameters"][k] == v)
                if here > best:
                    best, best_at = here, at
            if best_at >= 0:
                used.add(best_at)
                score += best
        return total + 6.0 * score / most - 3.0
    except Exception:
        return total - 3.0


def _overlap(a: list, b: list) -> float:
    if a == b:
        return 1.0
    if not a or not b:
        return 0.0
    common = sum((Counter(a) & Counter(b)).values())
    return common / (len(a) + len(b) - common)


def generate(folder: Path, rows: int) -> None:
    """Tasks and rollouts: about 1.5 KB a completion, one to three calls, half of them right."""
    from toolsample_cli.shards import schema
    from toolsample_cli.shards.writing import Output
    from toolsample_cli.toolcalls.call import Call, calls_json
    from toolsample_cli.toolcalls.protocols import PROTOCOLS

    pick = random.Random(1)
    tools = json.dumps([_tool(name, keys) for name, keys in TOOLS])
    render = PROTOCOLS["rlla"].render
    with Output(folder / "tasks", schema.TASKS, {}) as tasks, Output(folder / "rollouts", schema.ROLLOUTS, {}) as made:
        for number, first in enumerate(range(0, rows, 512 * SAMPLES)):
            task_rows, rollout_rows = [], []
            for index in range(first // SAMPLES, min(rows, first + 512 * SAMPLES) // SAMPLES):
                gold = [Call(name, {key: _value(key, pick) for key in keys}) for name, keys in _some(pick)]
                task_id = f"task-{index:07d}"
                task_rows.append(_task(task_id, tools, calls_json(gold), render(gold, None, "use the tool")))
                for sample in range(SAMPLES):
                    text = _reply(gold, render, pick)
                    rollout_rows.append(_rollout(task_id, sample, text))
            tasks.write(number, schema.frame(schema.TASKS, task_rows))
            made.write(number, schema.frame(schema.ROLLOUTS, rollout_rows))
        tasks.finish()
        made.finish()


def _some(pick: random.Random) -> list:
    return pick.sample(TOOLS, pick.choice((1, 1, 1, 2, 2, 3)))


def _tool(name: str, keys: tuple) -> dict:
    kinds = {"days": "integer", "seats": "integer", "people": "integer", "limit": "integer", "amount": "number"}
    properties = {key: {"type": kinds.get(key, "string"), "description": f"the {key}"} for key in keys}
    properties |= {"ingredients": {"type": "array", "items": {"type": "string"}}} if "ingredients" in keys else {}
    parameters = {"type": "object", "properties": properties, "required": list(keys)}
    return {"name": name, "description": f"{name} does what it says", "parameters": parameters}


def _value(key: str, pick: random.Random) -> object:
    if key in ("days", "seats", "people", "limit"):
        return pick.randrange(1, 30)
    if key == "amount":
        return round(pick.random() * 1000, 2)
    if key == "ingredients":
        return pick.sample(WORDS, 3)
    return " ".join(pick.sample(WORDS, pick.randrange(1, 4))).title()


def _reply(gold: list, render: object, pick: random.Random) -> str:
    from toolsample_cli.toolcalls.call import Call

    thought = " ".join(pick.choices(WORDS, k=pick.randrange(120, 320)))
    calls = list(gold)
    fate = pick.random()
    if fate > 0.5:
        at = pick.randrange(len(calls))
        name, arguments = calls[at].name, dict(calls[at].arguments)
        if fate > 0.95:
            return render(calls, None, thought)[: -pick.randrange(1, 60)]
        if fate > 0.9:
            return render(calls, None, thought).replace('"parameters"', '"arguments"')
        if fate > 0.8:
            name = pick.choice(TOOLS)[0]
        elif arguments:
            key = pick.choice(list(arguments))
            value = arguments.pop(key)
            if fate > 0.6:
                arguments[key if fate > 0.7 else key + "s"] = _value(key, pick) if fate > 0.7 else value
        calls[at] = Call(name, arguments)
    return render(calls, None, thought)


def _task(task_id: str, tools: str, gold: str, text: str) -> dict:
    return {
        "task_id": task_id, "source": "made", "split": "train", "category": "made", "protocol": "rlla",
        "messages_json": "[]", "tools_json": tools, "gold_json": gold, "gold_kind": "calls", "gold_text": text,
        "gold_issues_json": "[]", "demos_json": "[]", "demo_task_ids": [], "parent_task_id": None, "license": "",
        "extra_json": "{}",
    }  # fmt: skip


def _rollout(task_id: str, sample: int, text: str) -> dict:
    return {
        "rollout_id": f"{task_id}/0/{sample}", "task_id": task_id, "round": 0, "sample": sample, "policy": "made",
        "backend": "replay", "seed": sample, "prompt_ids": [], "completion_ids": list(range(len(text) // 4)),
        "logprobs": None, "finish_reason": "stop", "ids_from_text": True, "text": text, "error": None,
    }  # fmt: skip


CHILDREN = {"ours": ours, "bound": bound, "naive": naive}

if __name__ == "__main__":
    main()
