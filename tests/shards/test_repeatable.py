"""The same inputs give the same bytes in another process, whose sets and hashes have another order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COMMANDS = """
import json, sys
import polars as pl
from toolsample_cli.cli.app import run
def answers(tasks):
    # of four samples two are no call; every third task is answered wrongly otherwise
    rows = []
    for number, (task_id, gold) in enumerate(tasks.select("task_id", "gold_json").iter_rows()):
        [call] = json.loads(gold)
        right = {"name": call["name"], "parameters": call["arguments"] if number % 3 else {"argument_0": -1}}
        block = "<think> so </think>\\n<tool_call>\\n" + json.dumps(right) + "\\n</tool_call>"
        rows += [{"task_id": task_id, "sample": s, "text": block if s % 2 else "no"} for s in range(4)]
    open("texts.jsonl", "w").write("".join(json.dumps(row) + "\\n" for row in rows))
for command in (
    ["import", "raw.jsonl", "-o", "corpus"],
    ["rollout", "corpus", "--backend", "replay", "--texts", "texts.jsonl", "-n", "4", "-o", "rollouts"],
    ["score", "corpus", "rollouts", "--rewards", "all", "-o", "scores"],
    ["filter", "scores", "--method", "none", "-o", "groups"],
    ["curriculum", "corpus", "--groups", "groups", "--scores", "scores", "--hard", "fewshot", "--hard-after", "4",
     "--tasks-per-round", "6", "-o", "next"],
):
    if code := run(command):
        sys.exit(f"{command}: {code}")
    if command[0] == "import":
        answers(pl.read_parquet("corpus/*.parquet"))
"""


def made(folder: Path, hash_seed: str) -> dict[str, bytes]:
    """Everything that the stages write, by name, under one order of hashes."""
    folder.mkdir()
    names = [f"argument_{i}" for i in range(9)]
    properties = {name: {"type": "integer"} for name in names[:3]}
    tool = {"name": "f", "description": "Counts.", "parameters": {"type": "object", "properties": properties}}
    call = {"name": "f", "arguments": {name: at if at % 2 else str(at) for at, name in enumerate(names)}}
    rows = []
    for number in range(12):
        gold = {"name": "f", "arguments": {**call["arguments"], "argument_0": number}}
        answered = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": gold}]}
        messages = [{"role": "user", "content": f"count {number}"}, answered]
        rows.append({"id": f"t{number:02d}", "messages": messages, "tools": [{"type": "function", "function": tool}]})
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "times.jsonl")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_order_of_hashes_leaves_no_trace(tmp_path: Path):
    """Import (with arguments that no tool lists), rollout, score, filter and curriculum."""
    one, two = made(tmp_path / "one", "1"), made(tmp_path / "two", "2")
    assert len(one) == 16
    assert [name for name in {**one, **two} if one.get(name) != two.get(name)] == []
