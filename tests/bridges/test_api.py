"""The Python interface: frames in and out, the numbers of the commands, and the notebook that the page shows."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from support.bridge_world import POLICY, ROOT, World, world_task

import toolsample_cli as ts
from toolsample_cli.bridges.trainer_reward import KEYS
from toolsample_cli.config import CurriculumConfig, FilterConfig
from toolsample_cli.curriculum.stage import Paths, run
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.filter.stage import run as run_filter
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options


def test_every_public_name_is_there_and_none_is_a_module():
    """`toolsample_cli.api` has them all; importing the package loads nothing, using it never torch."""
    code = """
import sys, toolsample_cli as ts
assert "polars" not in sys.modules
import toolsample_cli.score.stage, toolsample_cli.filter.stage, toolsample_cli.curriculum.stage
assert all(callable(getattr(ts, name)) for name in ts.PUBLIC)
assert set(ts.PUBLIC) <= set(dir(ts)) and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="nothing"):
        ts.nothing  # noqa: B018


def test_scores_are_those_of_the_command(world: World):
    """Frames of all columns, of task_id and text alone, as rows, and as folders give the same scores."""
    tasks, rollouts, mine = ts.read(world.tasks), ts.read(world.rollouts), ts.read(world.scores)
    assert ts.scores(tasks, rollouts).equals(mine)
    assert ts.scores(world.tasks, str(world.rollouts)).equals(mine)
    few = rollouts.select("task_id", "text", "finish_reason")
    for form in (few, few.lazy(), few.to_dicts()):
        assert ts.scores(tasks, form)["reward"].equals(mine["reward"])
    assert not ts.scores(tasks, rollouts, reading="lenient").equals(mine)
    with pytest.raises(ConfigError, match="valeus"):
        ts.scores(tasks, rollouts, valeus="json")
    with pytest.raises(DataError, match="task_id and text"):
        ts.scores(tasks, [{"answer": "x"}])


def test_arrow_and_pandas_are_taken(world: World):
    """Where pyarrow or pandas is there; skipped by name where not."""
    arrow = pytest.importorskip("pyarrow")
    tasks, rollouts = ts.read(world.tasks), ts.read(world.rollouts)
    assert isinstance(tasks.to_arrow(), arrow.Table)
    assert ts.scores(tasks.to_arrow(), rollouts.to_arrow()).equals(ts.read(world.scores))
    pytest.importorskip("pandas")
    few = rollouts.select("task_id", "text")
    assert ts.scores(tasks.to_pandas(), few.to_pandas())["reward"].equals(ts.read(world.scores)["reward"])


def test_groups_and_picks_are_those_of_the_commands(world: World, tmp_path: Path):
    """The verdicts of filter and the draw of curriculum, over two rounds."""
    config = FilterConfig(method="dapo")
    run_filter(world.scores, None, tmp_path / "groups", config, Options())
    groups = ts.groups(ts.read(world.scores), method="dapo")
    assert groups.equals(ts.read(tmp_path / "groups"))
    paths = Paths(world.tasks, tmp_path / "groups", world.scores)
    run(paths, tmp_path / "next", CurriculumConfig(tasks_per_round=20, seed=3), Options())
    drawn = open_folder(tmp_path / "next" / "tasks", schema.TASKS).load()
    assert ts.pick(world.tasks, tmp_path / "groups", n=20, seed=3, round=0).equals(drawn)
    assert ts.pick(world.tasks, groups, n=20, seed=3, round=0, method="dapo").equals(drawn)
    assert ts.pick(world.tasks, n=500).height == 125
    later = ts.read(world.rollouts).with_columns(round=pl.lit(1)).drop("rollout_id")
    again = ts.groups(ts.scores(world.tasks, later), groups, method="dapo")
    assert set(again["visits"]) == {2} and set(again["last_round"]) == {1}


def test_a_pick_by_rds_goes_by_importance_at_once(world: World):
    """In a notebook nothing waits for the mean reward: visited tasks may come before those never visited."""
    groups = ts.groups(world.scores, method="rds").head(60)
    picked = set(ts.pick(world.tasks, groups, n=65, round=0)["task_id"])
    assert picked & set(groups["task_id"])


def test_right_and_pairs_are_what_export_writes(world: World, tmp_path: Path):
    """Same answers, same rule."""
    ts.export(world.tasks, "dpo", tmp_path / "x.jsonl", str(POLICY), rollouts=world.rollouts, scores=world.scores)
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").open(encoding="utf-8")]
    found = ts.pairs(world.scores, world.rollouts)
    assert [row["chosen"] for row in rows] == [f"{text}<|im_end|>" for text in found["chosen"]]
    assert found["reward_rejected"].to_list() == [row["reward_rejected"] for row in rows]
    assert ts.right(world.scores, world.rollouts, per_task=9).height > ts.right(world.scores, world.rollouts).height


def test_import_and_export_round_trip(world: World, tmp_path: Path):
    """A file of {task_id, text} comes in; tasks go out and their labels come back."""
    account = ts.export(ts.read(world.tasks), "trl", tmp_path / "x.jsonl", str(POLICY))
    assert account.rows_out == 125
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").open(encoding="utf-8")]
    answers = [{"label": line["label"], "text": "no"} for line in lines]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in answers))
    found = ts.import_rollouts(tmp_path / "mine.jsonl", world.tasks)
    assert found["task_id"].to_list() == [line["task_id"] for line in lines]
    ts.write(found, tmp_path / "folder", "rollouts")
    assert ts.read(tmp_path / "folder").equals(found)


def test_a_reward_of_ones_own():
    """From a task, a label, or gold calls and tools in OpenAI's form; None is an empty text; pickled it is the same."""
    task = world_task(0)
    reward = ts.Reward(task)
    assert reward(task["gold_text"]) == 4.0 and reward(None) == -3.0
    assert tuple(reward.score("x")) == KEYS
    assert pickle.loads(pickle.dumps(reward))(task["gold_text"]) == ts.Reward(reward.label)(task["gold_text"]) == 4.0
    tools = [{"type": "function", "function": tool} for tool in json.loads(task["tools_json"])]
    mine = ts.Reward.of(json.loads(task["gold_json"]), tools)
    assert mine(task["gold_text"]) == 4.0
    assert mine.score(task["gold_text"].replace('"Porto"', "3"))["schema_valid"] == 0.0
    assert ts.Reward.of([])("There is no tool for that.") == 1.0


def test_the_notebook_runs(world: World, tmp_path: Path):
    """examples/notebook.py, cell by cell, on a run of its form."""
    (tmp_path / "run").mkdir()
    answers = ts.read(world.rollouts).select("task_id", "text", "finish_reason")
    answers.write_ndjson(tmp_path / "run" / "mine.jsonl")
    command = [
        sys.executable,
        str(ROOT / "examples" / "notebook.py"),
        str(world.tasks),
        str(tmp_path / "run" / "mine.jsonl"),
    ]
    done = subprocess.run([*command, str(POLICY), str(tmp_path / "out")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "125 tasks" in done.stdout and (tmp_path / "out" / "pairs.jsonl").stat().st_size > 0
