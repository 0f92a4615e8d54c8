"""Rollouts over a local Ray cluster of two nodes, in a virtual environment of its own (slow).

`RAY_PYTHON` names an interpreter that has Ray; without it `.venv-ray` beside the repository's files is made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rollout_world import CONFIG, content, write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, MissingDependency
from toolsample_cli.rollout.stage import run
from toolsample_cli.shards.manifest import merge_slices
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Options

ROOT = Path(__file__).resolve().parents[2]
REPLAY = RolloutConfig(n=2, backend="replay", tasks_per_shard=4)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("world")
    tiny_model(path)
    write_tasks(path / "tasks", [task_row(i, "weather " * (1 + i % 7)) for i in range(14)])
    return path


def test_merged_manifests_are_those_of_one_run(world, tmp_path):
    """Slices that know nothing of each other end as if they had been one."""
    run(world / "tasks", tmp_path / "whole", None, REPLAY, Options())
    for i in range(4):
        run(world / "tasks", tmp_path / "parts", None, REPLAY, Options(slice=Slice(i, 4)))
    merge_slices(tmp_path / "parts")
    whole, parts = content(tmp_path / "whole"), content(tmp_path / "parts")
    assert whole.pop("whole.manifest.json") == parts.pop("parts.manifest.json") and whole == parts
    assert not list(tmp_path.glob("parts.manifest-*"))


def test_ray_that_is_missing_or_cannot_be_used_is_said(world, tmp_path, monkeypatch):
    """One line, before anything is written."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = RolloutConfig(**{**REPLAY.__dict__, "ray": "local"})
    with pytest.raises(MissingDependency, match="--ray needs the package ray"):
        run(world / "tasks", tmp_path / "out", None, config, Options())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ConfigError, match="spreads the shards itself"):
        run(world / "tasks", tmp_path / "out", None, config, Options(slice=Slice(0, 2)))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def python() -> str:
    given = os.environ.get("RAY_PYTHON")
    if given:
        return given
    place = ROOT / ".venv-ray"
    if not (place / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        wanted = [
            "torch==2.13.0",
            "transformers>=5.10",
            "ray[data]",
            "polars",
            "typer",
            "rich",
            "jsonschema",
            "rank-bm25",
        ]
        if subprocess.run([str(place / "bin" / "pip"), "-q", "install", *wanted]).returncode:
            pytest.skip("pip could not install Ray")
        (place / "done").touch()
    return str(place / "bin" / "python")


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()
from toolsample_cli.cli.app import run
code = run([*sys.argv[1:], "--ray", cluster.address])
cluster.shutdown()
sys.exit(code)
"""


@pytest.mark.slow
def test_two_nodes_write_what_one_process_writes(world, tmp_path, python):
    """Two engines in actors on a cluster of two nodes: the same bytes, manifest included; a rerun finds all done."""
    run(world / "tasks", tmp_path / "one", str(world / "tiny"), CONFIG, Options())
    knobs = ["-n", "3", "--max-new-tokens", "32", "--tasks-per-shard", "8", "--batch-tokens", "2048"]
    command = ["rollout", str(world / "tasks"), "-o", str(tmp_path / "ray"), "--model", str(world / "tiny"), *knobs]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0"}
    for attempt in range(2):
        done = subprocess.run(
            [python, "-c", CLUSTER, *command, "--ray-engines", "2", "--json"],
            env=environment, capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        record = json.loads(done.stdout.splitlines()[-1])
        assert record["rows_out"] == 42 and (record["tokens"] == 0) == (attempt == 1)
    one, many = content(tmp_path / "one"), content(tmp_path / "ray")
    assert one.pop("one.manifest.json") == many.pop("ray.manifest.json") and one == many
