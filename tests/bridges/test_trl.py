"""The real TRL: examples/trl trains with our reward and draw, and its completions come back once each.

`TRL_PYTHON` names an interpreter that has trl and our package's light dependencies; without it these are skipped.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.bridge_world import POLICY, ROOT, world_task, write

import toolsample_cli as ts
from toolsample_cli.bridges.stage import Paths, run
from toolsample_cli.config import ExportConfig
from toolsample_cli.shards import schema
from toolsample_cli.stage import Options

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", ["draw", "file"])
def test_trl_trains_with_our_reward(form: str, tmp_path: Path):
    """Two rounds of 8 tasks and 4 completions: 64 rows come back, each generation once, by task id and with its ids."""
    python = os.environ.get("TRL_PYTHON")
    if not python:
        pytest.skip("TRL_PYTHON names no interpreter with trl")
    tasks = write(tmp_path / "tasks", schema.TASKS, [world_task(number) for number in range(16)])
    data = tasks
    if form == "file":
        data = tmp_path / "train.jsonl"
        run(Paths(tasks), data, str(POLICY), ExportConfig(to="trl"), Options())
    command = [python, str(ROOT / "examples" / "trl" / "grpo.py"), str(data), str(POLICY), str(tmp_path / "out")]
    options = ["--cpu", "--rounds", "2", "--tasks", "8", "-n", "4", "--steps", "2", "--max-new-tokens", "48"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*command, *options], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    back = ts.import_rollouts(tmp_path / "out" / "completions", tasks, str(POLICY), max_new_tokens=48)
    assert back.height == 64 and not back["ids_from_text"].any() and back["finish_reason"].null_count() == 0
    assert set(back.group_by("task_id").len()["len"]) <= {4, 8}
    assert ts.scores(tasks, back)["reward"].null_count() == 0
    assert (tmp_path / "out" / "model.safetensors").exists()
