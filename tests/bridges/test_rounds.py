"""examples/verl/round.sh with a stand-in that reads and writes verl's files: three rounds, one of them killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.bridge_world import POLICY, ROOT, world_task, write

from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder

pytestmark = pytest.mark.slow


def test_three_rounds_around_verl(tmp_path: Path):
    """Every round trains on all of its own tasks, every rollout comes back, and a killed round is made again."""
    write(tmp_path / "corpus", schema.TASKS, [world_task(number) for number in range(60)])
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "toolsample").write_text(f'#!/bin/sh\nexec {sys.executable} -m toolsample_cli "$@"\n')
    (bin_folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for file in bin_folder.iterdir():
        file.chmod(0o755)
    stand_in = f"{sys.executable} {ROOT / 'tests' / 'support' / 'verl_stand_in.py'}"
    env = {
        **os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "VERL": stand_in,
        "TASKS": "16", "BATCH": "8", "N": "4", "PROMPT": "600", "RESPONSE": "200", "METHOD": "dapo",
    }  # fmt: skip
    script = [
        str(ROOT / "examples" / "verl" / "round.sh"),
        str(tmp_path / "corpus"),
        str(POLICY),
        str(tmp_path / "run"),
    ]

    def rounds(count: int, *more: str) -> subprocess.CompletedProcess:
        return subprocess.run([*script, str(count), *more], capture_output=True, text=True, env=env)

    done = rounds(2)
    assert done.returncode == 0, done.stderr[-3000:]
    killed = rounds(3, "trainer.total_training_steps=5")  # the last value of a setting counts
    assert killed.returncode != 0
    done = rounds(3)
    assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / "run"
    for k in (1, 2, 3):
        drawn = open_folder(run / f"round-{k - 1}" / "tasks", schema.TASKS).load()
        back = open_folder(run / f"round-{k}" / "rollouts", schema.ROLLOUTS).load()
        assert back.height == 64 and set(back["task_id"]) == set(drawn["task_id"]) and set(back["round"]) == {k}
        assert set(back["finish_reason"]) == {"stop"}
        dumped = sorted(one.name for one in (run / f"round-{k}" / "dump").iterdir())
        assert dumped == [f"{2 * k - 1}.jsonl", f"{2 * k}.jsonl"]
    assert (run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text().strip() == "6"
    groups = open_folder(run / "round-3" / "groups", schema.GROUPS).load()
    assert groups["visits"].sum() == 48
