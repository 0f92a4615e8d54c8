"""The real verl (0.9.1): its dataset, agent loops, reward managers and dump writer over our exports.

`VERL_PYTHON` names an interpreter that has verl and our package's light dependencies; without it these are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.bridge_world import POLICY, ROOT, World, special_tokenizer, world_task

from toolsample_cli.bridges.label import Label
from toolsample_cli.bridges.rollouts_in import run as run_import
from toolsample_cli.bridges.stage import Paths, run
from toolsample_cli.bridges.trainer_reward import KEYS
from toolsample_cli.config import ExportConfig, RolloutsInConfig
from toolsample_cli.models.chat import Chat
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checked(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, Path]:
    """(what verl was given, what it made of it, folder)"""
    python = os.environ.get("VERL_PYTHON")
    if not python:
        pytest.skip("VERL_PYTHON names no interpreter with verl")
    folder = tmp_path_factory.mktemp("verl")
    files = {place: folder / f"{place}.parquet" for place in ("system", "messages")}
    for place, file in files.items():
        run(Paths(world.tasks), file, str(POLICY), ExportConfig(prompt=place), Options())
    labels = {task["task_id"]: Label.of(task).text for task in world.load("tasks").to_dicts()}
    joined = world.load("rollouts").join(world.load("scores").select("rollout_id", "reward", "exact"), on="rollout_id")
    rollouts = [{**row, "label": labels[row["task_id"]]} for row in joined.to_dicts()]
    special = special_tokenizer(folder / "tokenizer", special=("[TOOL_CALLS]",))
    chat, task = Chat.load(special), world_task(0, "mistral")
    ids = {"prompt_ids": chat.prompt_ids(task), "completion_ids": chat.completion_ids(task["gold_text"])}
    job = {
        **{place: str(file) for place, file in files.items()}, "model": str(POLICY), "special_model": str(special),
        "rollouts": rollouts, "per_task": [row for row in rollouts if row["sample"] == 0][:64],
        "special": [{"task_id": task["task_id"], "label": Label.of(task).text, **ids}],
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [python, str(ROOT / "tests" / "support" / "verl_check.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    return job, json.loads((folder / "found.json").read_text(encoding="utf-8")), folder


@pytest.mark.parametrize("place", ["system", "messages"])
def test_prompts_and_responses_are_our_ids(place: str, checked: tuple[dict, dict, Path]):
    """64 of 64, through the default loop with tools as text and through ours with the row's tools."""
    job, found, _ = checked
    assert found["rows"] == [125, 125]
    assert found[place] == [[row["prompt_ids"], row["completion_ids"]] for row in job["per_task"]]
    assert len(found[place]) == 64


@pytest.mark.parametrize("manager", ["rewards", "whole_rewards"])
def test_its_managers_give_the_numbers_of_score(manager: str, checked: tuple[dict, dict, Path]):
    """1,000 of 1,000, with every key on every row."""
    job, found, _ = checked
    assert [one["reward_score"] for one in found[manager]] == [row["reward"] for row in job["rollouts"]]
    assert all(tuple(one["reward_extra_info"]) == KEYS for one in found[manager]) and len(found[manager]) == 1000


def test_a_special_token_needs_our_manager(checked: tuple[dict, dict, Path]):
    """Mistral's right answer: wrong by verl's own decoding, right by ours."""
    _, found, _ = checked
    assert found["special_naive"][0]["reward_score"] < 4.0 == found["special_whole"][0]["reward_score"]


def test_its_dumps_come_back(world: World, checked: tuple[dict, dict, Path], tmp_path: Path):
    """Two steps written by verl's own writer: every row finds its task and keeps its text."""
    job, _, folder = checked
    account = run_import([folder / "dump"], world.tasks, tmp_path / "in", str(POLICY), RolloutsInConfig(), Options())
    assert (account.rows_in, account.rows_out, account.extra["matched by id"]) == (1000, 1000, 1000)
    back = open_folder(tmp_path / "in", schema.ROLLOUTS).load()
    assert sorted(zip(back["task_id"], back["text"], strict=True)) == sorted(
        (row["task_id"], row["text"]) for row in job["rollouts"]
    )
