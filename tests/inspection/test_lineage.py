"""From a checkpoint down to model and tasks by digests that join; a break is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.tiny_model import task_row, tiny_model

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.inspection.lineage import Link, trace
from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One round by single commands, in one folder."""
    folder = tmp_path_factory.mktemp("lineage")
    tiny_model(folder)
    texts = {"gold_kind": "response", "gold_json": "[]", "gold_text": "no"}
    rows = [task_row(i, f"please tell me about number {i}", **texts) for i in range(12)]
    run = folder / "run"
    with Output(run / "corpus", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, rows))
        output.finish()
    r0, r1 = run / "round-0", run / "round-1"
    for command in (
        ["curriculum", run / "corpus", "--tasks-per-round", "6", "-o", r0],
        [
            "rollout",
            r0 / "tasks",
            "--model",
            folder / "tiny",
            "-n",
            "4",
            "--max-new-tokens",
            "8",
            "-o",
            r1 / "rollouts",
        ],
        ["score", r0 / "tasks", r1 / "rollouts", "-o", r1 / "scores"],
        ["filter", r1 / "scores", "--method", "none", "-o", r1 / "groups"],
        [
            *("curriculum", run / "corpus", "--groups", r1 / "groups", "--scores", r1 / "scores"),
            *("--state", r0 / "state.json", "-o", r1),
        ],
        ["train", r1 / "rollouts", r1 / "batch", "--model", folder / "tiny", "--steps", "1", "-o", r1 / "checkpoint"],
    ):
        assert toolsample(list(map(str, command))) == 0
    return folder


def walk(link: Link) -> list[Link]:
    return [link, *(below for child in link.links for below in walk(child))]


def test_every_link_from_the_checkpoint_joins(made: Path):
    found = trace(made / "run")
    assert not list(found.broken())
    kinds = {(link.name, link.node.kind) for link in walk(found) if link.node}
    assert kinds >= {
        ("this", "checkpoint"), ("model", "model"), ("rollouts", "rollouts"), ("batch", "batch"), ("tasks", "tasks"),
        ("scores", "scores"), ("groups", "groups"), ("state", "state"), ("corpus", "tasks"),
    }  # fmt: skip
    rollouts = next(link for link in walk(found) if link.name == "rollouts" and not link.again)
    assert rollouts.node.settings["n"] == 4 and "temperature" not in rollouts.node.settings


def test_the_command_prints_it_and_ends_with_0_or_3(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    shutil.copytree(made / "run", tmp_path / "run")
    assert toolsample(["inspect", str(tmp_path / "run"), "--lineage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "checkpoint"
    shutil.rmtree(tmp_path / "run" / "round-1" / "groups")
    (tmp_path / "run" / "round-1" / "groups.manifest.json").unlink()
    file = tmp_path / "run" / "round-1" / "scores" / "part-00000.parquet"
    data = bytearray(file.read_bytes())
    data[500] ^= 1
    file.write_bytes(data)
    capsys.readouterr()
    assert toolsample(["inspect", str(tmp_path / "run"), "--lineage"]) == 3
    out = capsys.readouterr().out
    assert "groups: ?" in out and "nothing below" in out
    assert "part-00000.parquet: damaged" in out
    assert out.count("BROKEN") >= 2


def test_validate_checks_a_run_with_its_checkpoints(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    shutil.copytree(made / "run", tmp_path / "run")
    assert toolsample(["inspect", str(tmp_path / "run"), "--validate"]) == 0
    for name in ("round-1/checkpoint/model.safetensors", "round-1/state.json", "corpus/part-00000.parquet"):
        file = tmp_path / "run" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
        capsys.readouterr()
        assert toolsample(["inspect", str(tmp_path / "run"), "--validate"]) == 3
        assert f"{file}: damaged" in capsys.readouterr().out
        file.write_bytes(whole)
