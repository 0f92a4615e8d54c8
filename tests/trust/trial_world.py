"""The small run that the campaign damages: every stage once, from raw rows to a checkpoint and a report by BFCL."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from support.bfcl_world import write_world
from support.tiny_model import task_row, tiny_model

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output

COMMON = ["--tasks-per-round", "6"]
STAGES: dict[str, list[str]] = {
    "import": ["import", "raw.jsonl", "-o", "imported"],
    "rollout": [
        *("rollout", "r0/tasks", "--model", "tiny", "-n", "4", "--max-new-tokens", "8", "--round", "1"),
        *("--tasks-per-shard", "3", "-o", "rollouts"),
    ],
    "score": ["score", "r0/tasks", "rollouts", "-o", "scores"],
    "filter": ["filter", "scores", "--method", "none", "-o", "groups"],
    "curriculum": [
        *("curriculum", "corpus", "--tasks", "r0/tasks", "--groups", "groups", "--scores", "scores"),
        *("--rollouts", "rollouts", "--state", "r0/state.json", *COMMON, "-o", "r1"),
    ],
    "train": [
        *("train", "rollouts", "r1/batch", "--model", "tiny", "--lr", "1e-3", "--steps", "2", "--save-every", "1"),
        *("-o", "checkpoint"),
    ],
    "eval-bfcl": ["eval-bfcl", "tiny", "--entries", "bfcl", "--max-new-tokens", "8", "-o", "evaluation"],
    "run": ["run", "recipe.toml", "-o", "whole"],
}
"""The command of each stage; it reads what those before it wrote, all paths relative."""
OUTPUTS = {
    "import": ["imported"],
    "rollout": ["rollouts"],
    "score": ["scores"],
    "filter": ["groups"],
    "curriculum": ["r1"],
    "train": ["checkpoint"],
    "eval-bfcl": ["evaluation"],
    "run": ["whole"],
}
"""What a stage writes, with everything beside it whose name begins so."""
RECIPE = """
[run]
corpus = "corpus"
model = "tiny"
rounds = 2
keep_checkpoints = 1
[rollout]
n = 4
max_new_tokens = 8
[filter]
method = "none"
[curriculum]
tasks_per_round = 6
activation_passes = 0
[train]
lr = 1e-3
steps = 1
"""


def build(folder: Path, stages: list[str]) -> None:
    """Make the inputs and carry out every stage in turn, in the current process and below `folder`."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    tiny_model(folder)
    write_world(folder / "bfcl")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    call = {"type": "function", "function": {"name": "get", "arguments": {}}}
    tool = {"type": "function", "function": {"name": "get", "description": "", "parameters": {"type": "object"}}}
    turns = [[{"role": "user", "content": f"get {i}"}, {"role": "assistant", "tool_calls": [call]}] for i in range(6)]
    lines = [json.dumps({"messages": turn, "tools": [tool]}) for turn in turns]
    (folder / "raw.jsonl").write_text("\n".join(lines), encoding="utf-8")
    # A plain answer is right, and the random policy sometimes ends at once, which is not one: rewards vary.
    texts = {"gold_kind": "response", "gold_json": "[]", "gold_text": "no"}
    rows = [task_row(i, f"please tell me about number {i}", **texts) for i in range(12)]
    with Output(folder / "corpus", schema.TASKS, {}) as output:
        for number in range(2):
            output.write(number, schema.frame(schema.TASKS, rows[number::2]))
        output.finish()
    expect(["curriculum", "corpus", *COMMON, "-o", "r0"])
    for stage in stages:
        expect(STAGES[stage])


def expect(command: list[str]) -> None:
    """Carry out a command that must succeed."""
    code = toolsample(command)
    assert code == 0, f"{' '.join(command)}: exit {code}"


def tree(folder: Path, names: list[str] | None = None) -> dict[str, bytes | None]:
    """Content of every file and name of every folder, but for what says when things were done."""
    roots = sorted(folder.iterdir()) if names is None else sorted(p for p in folder.iterdir() if owned(p.name, names))
    found: dict[str, bytes | None] = {}
    for root in roots:
        for path in [root, *sorted(root.rglob("*"))] if root.is_dir() and not root.is_symlink() else [root]:
            if path.name != "times.jsonl" and "__pycache__" not in path.parts:
                found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found


def owned(name: str, outputs: list[str]) -> bool:
    """Whether a path belongs to one of these outputs: itself, or a companion such as OUT.tmp and .OUT.partial."""
    bare = name.lstrip(".")
    return any(bare == out or bare.startswith(f"{out}.") for out in outputs)


def pick_bits(size: int, count: int, seed: str) -> list[int]:
    """Bits of a file to turn over, drawn once for every campaign of this seed."""
    return [random.Random(f"{seed}/{i}").randrange(8 * size) for i in range(count)]
