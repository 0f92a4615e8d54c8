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

import polars as pl
import pytest
from support import curation_data
from support.tiny_model import task_row, tiny_model

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.config import CurriculumConfig, read_recipe
from toolsample_cli.curriculum.mastery import measure_loss
from toolsample_cli.curriculum.stage import Paths
from toolsample_cli.curriculum.stage import run as curriculum
from toolsample_cli.errors import ConfigError, DataError, MissingDependency
from toolsample_cli.experiment import runner as stage
from toolsample_cli.experiment.recipe import plans
from toolsample_cli.experiment.report import RunRecord, arm_table, collect, page
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options
from toolsample_cli.train import adapter

SETTINGS = """
[rollout]
n = 4
max_new_tokens = 8
[filter]
drop_flat = false
[curriculum]
activation_passes = 0
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


def typed(number: int, model: str, recipe: Path, folder: Path) -> list[list[str]]:
    """The commands that examples/round.sh types for one round in `folder`, written down instead of carried out."""
    shim = folder / "shim"
    shim.mkdir(exist_ok=True)
    (shim / "toolsample").write_text(
        f"#!/bin/sh\nprintf '%s\\037' \"$@\" >> {shim}/typed; printf '\\n' >> {shim}/typed\n"
    )
    (shim / "toolsample").chmod(0o755)
    (shim / "typed").unlink(missing_ok=True)
    script = Path(__file__).resolve().parents[2] / "examples" / "round.sh"
    environment = {**os.environ, "PATH": f"{shim}:{os.environ['PATH']}"}
    subprocess.run(["bash", script, "out", str(number), model, recipe], cwd=folder, env=environment, check=True)
    return [line.split("\x1f")[:-1] for line in (shim / "typed").read_text(encoding="utf-8").splitlines()]


def by_commands(start: Path, recipe: Path, folder: Path) -> None:
    """Two rounds of examples/round.sh, its commands carried out in this process, with relative paths."""
    model = str(start / "tiny")
    (folder / "out").mkdir()
    (folder / "out" / "corpus").symlink_to(start / "corpus")
    (folder / "out" / "corpus.manifest.json").symlink_to(start / "corpus.manifest.json")
    for number in (1, 2):
        for command in typed(number, model, recipe, folder):
            assert toolsample(command) == 0
        model = f"out/round-{number}/checkpoint"


def both_ways(start: Path, recipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two rounds by commands and by `run`, which must be equal byte for byte; the folder of the latter."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        monkeypatch.chdir(folder / name)
        if name == "a":
            by_commands(start, recipe, folder / name)
        else:
            assert toolsample(["run", str(recipe), "-o", "out"]) == 0
    commands, run = (tree(folder / name / "out", "round-*/**/*.parquet", *SHARDS[1:]) for name in ("a", "b"))
    assert commands == run
    assert any(name.startswith("round-2/checkpoint/") for name in run)
    return folder / "b" / "out"


def test_run_writes_what_the_commands_write(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Shards, states and weights are equal byte for byte, and something was learned from."""
    out = both_ways(start, start / "recipe.toml", tmp_path, monkeypatch)
    rounds = json.loads((out / "summary.json").read_text())[0]["rounds"]
    assert [entry["rollouts"] for entry in rounds] == [0, 24, 48]
    assert any(entry["dead"] < 1 for entry in rounds[1:]), "every group was dead: the test shows nothing"


LOSS = """
[rollout]
n = 4
max_new_tokens = 48
[filter]
method = "none"
[curriculum]
tasks_per_round = 8
mastery = "loss"
hard = "fewshot"
hard_after = 4
demo_source = "own"
[train]
lr = 1e-4
lr_schedule = "constant"
steps = 1
"""


def test_rollouts_and_records_reach_the_curriculum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Mastery by loss and own demonstrations need them: both ways give them, and the mastery is what they say."""
    root = Path(__file__).resolve().parents[2]
    make = [sys.executable, str(root / "fixtures" / "make_tasks.py"), str(tmp_path / "raw"), "--n", "40"]
    subprocess.run([*make, "--heldout", "1"], check=True, capture_output=True)
    assert toolsample(["import", str(tmp_path / "raw" / "train.jsonl"), "-o", str(tmp_path / "corpus")]) == 0
    (tmp_path / "tiny").symlink_to(root / "fixtures" / "policy")
    table = (
        f'[run]\ncorpus = "{tmp_path / "corpus"}"\nmodel = "{tmp_path / "tiny"}"\nrounds = 2\nkeep_checkpoints = 0\n'
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(table + LOSS, encoding="utf-8")
    out = both_ways(tmp_path, recipe, tmp_path, monkeypatch)
    for number, given in ((1, {"rollouts"}), (2, {"rollouts", "records"})):
        inputs = json.loads((out / f"round-{number}" / "tasks.manifest.json").read_text())["inputs"]
        assert inputs.keys() - {"corpus", "groups", "scores", "state"} == given
    records = open_folder(out / "round-1" / "checkpoint.records", schema.RECORDS).load()
    mastery = json.loads((out / "round-2" / "state.json").read_text())["mastery"]
    measured = measure_loss(records)
    assert len(measured) == 3
    assert {name: mastery[name] for name in measured} == pytest.approx(measured)
    few = open_folder(out / "round-2" / "tasks", schema.TASKS).load().drop_nulls("parent_task_id")
    groups = open_folder(out / "round-2" / "groups", schema.GROUPS).load()
    solved = set(groups.filter(pl.col("n_exact") > 0)["slot_id"])
    assert few.height
    assert {task for shown in few["demo_task_ids"] for task in shown} <= solved


def test_a_round_after_a_dead_one_needs_no_records(tmp_path: Path):
    """Mastery by loss: a round without a kept group was not trained on, so there is nothing to give."""
    rows = [curation_data.task_row(name) for name in "ab"]
    corpus = curation_data.write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, rows)])
    config = CurriculumConfig(mastery="loss", tasks_per_round=2)

    def take_in(number: int, outcomes: list[str]) -> None:
        scores = curation_data.score_frame(dict.fromkeys("ab", outcomes), round=number)
        folder = curation_data.write(schema.SCORES, tmp_path / f"scores{number}", [scores])
        groups = tmp_path / f"groups{number}"
        assert toolsample(["filter", str(folder), "--method", "dapo", "-o", str(groups)]) == 0
        state = tmp_path / f"round{number - 1}" / "state.json" if number > 1 else None
        curriculum(Paths(corpus, groups, folder, state=state), tmp_path / f"round{number}", config, Options())

    with pytest.raises(DataError, match="no group of round 1 was kept"):
        take_in(1, ["wrong", "wrong"])
    take_in(2, ["right", "wrong"])
    with pytest.raises(ConfigError, match="needs --records"):
        take_in(3, ["right", "wrong"])


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
        module = getattr(stage, f"{name}_stage")

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
    times = [json.loads(line) for line in Path("out/times.jsonl").read_text().splitlines()]
    assert [line["round"] for line in times] == [0, 1, 2]
    assert set(times[2]) == {"round", "rollout", "score, filter", "curriculum", "train", "evaluate"}
    assert all(times[2][stage]["cpu"] > 0 for stage in ("rollout", "train"))


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


def test_training_gets_the_plain_prompts_that_the_batch_asks_for(start: Path, tmp_path: Path, monkeypatch):
    """With update_on = plain the corpus goes to train, which renders them; otherwise nothing does."""
    given: list[Path | None] = []
    monkeypatch.setattr(stage.train_stage, "run", lambda *_, tasks, **__: given.append(tasks))
    plan = planned(start, rounds=1, heldout="")[0]
    for name in ("shown", "plain"):
        asked = dataclasses.replace(plan.configs["curriculum"], update_on=name)
        chosen = dataclasses.replace(plan, configs={**plan.configs, "curriculum": asked})
        stage.run([chosen], tmp_path / name, Options())
    assert given == [None, start / "corpus"]


def test_dry_run_writes_nothing(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    """--dry-run prints the plan in a few lines, or all settings as JSON."""
    command = ["run", str(start / "recipe.toml"), "-o", str(tmp_path / "x"), "--dry-run"]
    assert toolsample(command) == 0
    text = capsys.readouterr().out
    assert "rounds         2 of 6 tasks x 4 completions = 48 rollouts; 0.5 passes over the corpus" in text
    assert "learning rate  0.001 from start to end" in text
    assert (
        "loss           dapo clip 0.2/0.28, no dual clip, over tokens; advantage group_std; 4 optimizer steps" in text
    )
    assert toolsample([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"][0]["train"]["steps"] == 2
    assert not (tmp_path / "x").exists()


def test_an_adapter_that_is_never_merged_is_refused_before_the_first_round(start: Path, tmp_path: Path, monkeypatch):
    """The second round could not sample from it. A missing package is said as early."""
    monkeypatch.setattr(adapter, "find_spec", lambda name: name)
    recipe = read_recipe(start / "recipe.toml")
    recipe["train"] |= {"lora_rank": 2, "merge": False}
    with pytest.raises(ConfigError, match="merge = false"):
        stage.run(plans(recipe, {}, [], []), tmp_path / "out", Options())
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="--lora-rank needs the package peft"):
        stage.run(plans(recipe, {}, [], []), tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()


def test_report_of_a_run(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The page holds one row per round, the held-out table, and no outside reference."""
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


def test_one_arm_is_compared_with_nothing_and_names_are_only_text():
    """No table of dashes for a single arm; what a folder or a metric is called cannot become markup."""
    pytest.importorskip("matplotlib")
    evil = "<script>\u202e\x1b[2J"
    rounds = tuple({"round": n, "rollouts": n, evil: 1, "heldout": {evil: {"exact": 0.25 * n}}} for n in (1, 2))
    text = page(Path("a<b>" + evil), [RunRecord("", 0, rounds)])
    assert "difference" not in text and "<td>0.250</td><td>0.500</td>" in text
    assert "<script>" not in text and "\u202e" not in text and "\x1b" not in text
    both = page(Path("x"), [RunRecord("", 0, rounds), RunRecord("", 1, rounds)])
    assert "end interval" in both and "difference" not in both


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
