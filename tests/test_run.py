"""`toolsample run`: the same bytes as the single commands, and the same end after any interruption."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_model import task_row, tiny_model

from toolsample_cli import schema
from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.config import read_recipe
from toolsample_cli.errors import ConfigError
from toolsample_cli.output import Output
from toolsample_cli.recipe import plans
from toolsample_cli.report import arm_table, collect, page
from toolsample_cli.stages import run as stage
from toolsample_cli.stages.common import Options

SETTINGS = """
[rollout]
n = 4
max_new_tokens = 8
[filter]
activation_batches = 0
[curriculum]
tasks_per_round = 6
[train]
lr = 1e-3
steps = 2
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a corpus in which some answers are right by luck, and a recipe."""
    folder = tmp_path_factory.mktemp("run")
    tiny_model(folder)
    # A plain answer is right, and the random policy sometimes ends at once, which is not one: rewards vary.
    texts = {"gold_kind": "response", "gold_json": "[]", "gold_text": "no"}
    rows = [task_row(i, f"please tell me about number {i}", **texts) for i in range(24)]
    with Output(folder / "corpus", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, rows))
        output.finish()
    with Output(folder / "held", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, rows[:5]))
        output.finish()
    table = f'[run]\ncorpus = "{folder / "corpus"}"\nmodel = "{folder / "tiny"}"\nrounds = 2\nkeep_checkpoints = 0\n'
    (folder / "recipe.toml").write_text(table + SETTINGS, encoding="utf-8")
    return folder


def tree(folder: Path, *patterns: str) -> dict[str, str]:
    """Digest of every matching file below a folder."""
    files = sorted(file for pattern in patterns for file in folder.rglob(pattern) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


SHARDS = ("*.parquet", "state.json", "*.safetensors")


def by_commands(start: Path) -> None:
    """The rounds of examples/round.sh, typed into the same process, with relative paths."""
    recipe, model = ["--config", str(start / "recipe.toml")], str(start / "tiny")
    assert toolsample(["curriculum", str(start / "corpus"), "-o", "out/round-0", *recipe]) == 0
    for number in (1, 2):
        last, here = f"out/round-{number - 1}", f"out/round-{number}"
        history = ["--history", f"{last}/groups"] if number > 1 else []
        given = ["--tasks", f"{last}/tasks", "--groups", f"{here}/groups", "--scores", f"{here}/scores"]
        for command in (
            ["rollout", f"{last}/tasks", "--model", model, "--round", str(number), "-o", f"{here}/rollouts"],
            ["score", f"{last}/tasks", f"{here}/rollouts", "-o", f"{here}/scores"],
            ["filter", f"{here}/scores", *history, "-o", f"{here}/groups"],
            ["curriculum", str(start / "corpus"), *given, "--state", f"{last}/state.json", "-o", here],
            ["train", f"{here}/rollouts", f"{here}/batch", "--model", model, "-o", f"{here}/checkpoint"],
        ):
            assert toolsample([*command, *recipe]) == 0
        model = f"{here}/checkpoint"


def test_run_writes_what_the_commands_write(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Shards, states and weights are equal byte for byte, and something was learned from."""
    for name, go in {
        "a": lambda: by_commands(start),
        "b": lambda: toolsample(["run", str(start / "recipe.toml"), "-o", "out"]),
    }.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        go()
    commands, run = (tree(tmp_path / name / "out", *SHARDS) for name in ("a", "b"))
    assert commands == run
    assert any(name.startswith("round-2/checkpoint/") for name in run)
    rounds = json.loads((tmp_path / "b/out/summary.json").read_text())[0]["rounds"]
    assert [entry["rollouts"] for entry in rounds] == [0, 24, 48]
    assert any(entry["dead"] < 1 for entry in rounds[1:]), "every group was dead: the test shows nothing"


def planned(start: Path, **run: object) -> list:
    recipe = read_recipe(start / "recipe.toml")
    recipe["run"] |= {"heldout": str(start / "held"), **run}
    return plans(recipe, {}, [], [])


def test_an_interrupted_run_ends_like_an_unbroken_one(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Broken at every stage of every round in turn, it still ends with the same files."""
    whole, broken = tmp_path / "whole" / "out", tmp_path / "broken" / "out"
    for folder in (whole, broken):
        folder.parent.mkdir()
    monkeypatch.chdir(whole.parent)
    stage.run(planned(start), Path("out"), Options())

    monkeypatch.chdir(broken.parent)
    calls = 0
    for name in ("rollout", "score", "filter", "curriculum", "train"):
        module = getattr(stage, name)

        def breaking(*args, original=module.run, **kwargs):
            nonlocal calls
            calls += 1
            result = original(*args, **kwargs)
            if calls == allowed:
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(module, "run", breaking)
    interruptions = 0
    for allowed in range(1, 200):  # noqa: B007 (read by `breaking`)
        calls = 0
        try:
            stage.run(planned(start), Path("out"), Options())
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions >= 8
    assert tree(broken, *SHARDS, "summary.json", "round.json") == tree(whole, *SHARDS, "summary.json", "round.json")


def test_stop_rules(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run stops at the rollout budget or the target, says why, and goes on when the rule is lifted."""
    monkeypatch.chdir(tmp_path)
    stage.run(planned(start, max_rollouts=24), Path("out"), Options())
    assert json.loads(Path("out/summary.json").read_text())[0]["stopped"] == "rollouts"
    stage.run(planned(start, target_exact=1e-6), Path("target"), Options())
    assert json.loads(Path("target/summary.json").read_text())[0]["stopped"] in ("target", "rounds")
    stage.run(planned(start), Path("out"), Options())
    summary = json.loads(Path("out/summary.json").read_text())[0]
    assert summary["stopped"] == "rounds"
    assert len(summary["rounds"]) == 3


def test_another_plan_in_the_same_folder_is_refused(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The keys that differ are named and nothing is touched."""
    monkeypatch.chdir(tmp_path)
    stage.run(planned(start, rounds=0), Path("out"), Options())
    before = tree(tmp_path, "*")
    recipe = read_recipe(start / "recipe.toml")
    recipe["run"]["rounds"], recipe["run"]["heldout"] = 0, str(start / "held")
    recipe["train"]["lr"] = 0.5
    with pytest.raises(ConfigError, match=r"train.lr was 0.001, now 0.5"):
        stage.run(plans(recipe, {}, [], []), Path("out"), Options())
    assert tree(tmp_path, "*") == before


def test_a_dead_round_is_passed_over(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where no group is kept nothing is trained, and the run goes on with the next draw and the same policy."""
    monkeypatch.chdir(tmp_path)
    plan = planned(start)[0]
    greedy = dataclasses.replace(plan.configs["rollout"], temperature=0.0)  # all samples alike: every group is flat
    method = dataclasses.replace(plan.configs["filter"], method="dapo")
    plan = dataclasses.replace(plan, configs={**plan.configs, "rollout": greedy, "filter": method})
    stage.run([plan], Path("out"), Options())
    rounds = json.loads(Path("out/summary.json").read_text())[0]["rounds"]
    assert [entry.get("trained_on") for entry in rounds] == [None, 0, 0]
    assert rounds[2]["policy"] == str(start / "tiny")


def test_dry_run_writes_nothing(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    """--dry-run prints the resolved plan as JSON."""
    assert toolsample(["run", str(start / "recipe.toml"), "-o", str(tmp_path / "x"), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"][0]["train"]["steps"] == 2
    assert not (tmp_path / "x").exists()


def test_report_of_a_run(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The page holds a row a round, the held-out table, and no outside reference."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    stage.run(planned(start), Path("out"), Options())
    runs = collect(Path("out"))
    text = page(Path("out"), runs)
    assert text.count("<svg") >= 3
    assert "http-equiv" not in text
    assert "src=" not in text
    row = arm_table(runs, "held")[0]
    assert row["exact"] == runs[0].rounds[-1]["heldout"]["held"]["exact"]
    assert row["difference"] == 0.0


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_the_same(start: Path, tmp_path: Path):
    """SIGKILL at 20 random moments, rerun each time; the summary is that of an unbroken run."""
    command = [sys.executable, "-m", "toolsample_cli", "run", str(start / "recipe.toml"), "-o", "out"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    began = time.monotonic()
    subprocess.run(command, cwd=whole, check=True, capture_output=True)
    duration = time.monotonic() - began
    moments = random.Random(5)
    for _ in range(20):
        process = subprocess.Popen(command, cwd=broken, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.3, 1.0) * duration)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if (broken / "out/summary.json").exists():
            subprocess.run(["rm", "-rf", str(broken / "out")], check=True)
    subprocess.run(command, cwd=broken, check=True, capture_output=True)
    assert (broken / "out/summary.json").read_bytes() == (whole / "out/summary.json").read_bytes()
    assert tree(broken / "out", *SHARDS) == tree(whole / "out", *SHARDS)
