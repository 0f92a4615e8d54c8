"""DAPO's refill: a round draws until its batch is full, counts every rollout, and survives interruptions."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import read_recipe
from toolsample_cli.experiment import refill
from toolsample_cli.experiment import runner as stage
from toolsample_cli.experiment.recipe import Plan, plans
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options

N, SIZE, ROUNDS = 4, 10, 3

RECIPE = """
[run]
corpus = "{folder}/corpus"
model = "{folder}/tiny"
rounds = {rounds}
[rollout]
backend = "replay"
texts = "{folder}/texts.jsonl"
n = {n}
[filter]
method = "dapo"
[curriculum]
tasks_per_round = {size}
[train]
lr = 1e-3
steps = 2
old_policy = "recompute"
"""


def scripted(folder: Path, tasks: int, dead: float) -> Path:
    """A recipe over tasks of which a share is answered rightly every time and the others every other time."""
    tiny_model(folder)
    golds = {"gold_kind": "response", "gold_json": "[]", "gold_text": "no"}
    rows = [task_row(i, f"please tell me about number {i}", **golds) for i in range(tasks)]
    with Output(folder / "corpus", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, rows))
        output.finish()
    answers = [
        {"task_id": row["task_id"], "sample": sample, "text": "no" if number % 10 < 10 * dead or sample % 2 else ""}
        for number, row in enumerate(rows)
        for sample in range(N)
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    text = RECIPE.format(folder=folder, rounds=ROUNDS, n=N, size=SIZE)
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    return folder / "recipe.toml"


def planned(recipe: Path, **run: object) -> list[Plan]:
    tables = read_recipe(recipe)
    tables["run"] |= run
    return plans(tables, {}, [], [])


def summary(out: Path) -> list[dict]:
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))[0]["rounds"][1:]


def test_batches_are_full_where_two_groups_in_five_are_dead(tmp_path: Path):
    """Every round trains on ten groups that spread; what it drew beyond is counted and remembered, not trained on."""
    stage.run(planned(scripted(tmp_path, 200, 0.4)), tmp_path / "out", Options())
    rounds = summary(tmp_path / "out")
    assert [entry["full"] for entry in rounds] == [True] * ROUNDS
    assert [entry["groups_trained"] for entry in rounds] == [SIZE] * ROUNDS
    before = 0
    for number, entry in enumerate(rounds, 1):
        here = tmp_path / "out" / f"round-{number}"
        assert entry["draws"] >= 2
        assert (
            entry["rollouts"] - before == N * SIZE * entry["draws"] == open_folder(here / "scores", schema.SCORES).rows
        )
        before = entry["rollouts"]
        rollouts = open_folder(here / "rollouts", schema.ROLLOUTS).load(["rollout_id", "task_id"])
        assert rollouts["rollout_id"].n_unique() == rollouts.height
        assert rollouts["task_id"].n_unique() == SIZE * entry["draws"]
        records = open_folder(here / "checkpoint.records", schema.RECORDS).load()
        trained = records.join(rollouts, on="rollout_id").group_by("task_id").agg(pl.col("advantage").abs().max())
        assert trained.height == SIZE
        assert trained["advantage"].min() > 0
        assert not list(here.glob("draw-*"))


def test_a_corpus_that_cannot_fill_a_batch_ends_the_draws(tmp_path: Path):
    """Ten tasks in all, six with a spread: two draws at most, and the round trains on what there is."""
    stage.run(planned(scripted(tmp_path, 10, 0.4)), tmp_path / "out", Options())
    assert [(e["full"], e["groups_trained"], e["draws"]) for e in summary(tmp_path / "out")] == [(False, 6, 1)] * ROUNDS


def test_one_draw_when_asked_for(tmp_path: Path):
    """refill = 1 is the plain round: forty rollouts, and the groups that spread among ten."""
    stage.run(planned(scripted(tmp_path, 200, 0.4), refill=1), tmp_path / "out", Options())
    assert [entry["rollouts"] for entry in summary(tmp_path / "out")] == [40, 80, 120]
    assert all("draws" not in entry for entry in summary(tmp_path / "out"))


def test_an_interruption_between_draws_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed after each of its steps in turn, the run ends with the same shards."""
    recipe = scripted(tmp_path, 60, 0.4)
    stage.run(planned(recipe, rounds=1), tmp_path / "whole", Options())
    real, calls = refill.Filling.take, 0

    def breaking(self: refill.Filling, draw: Path) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise KeyboardInterrupt
        real(self, draw)

    monkeypatch.setattr(refill.Filling, "take", breaking)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            stage.run(planned(recipe, rounds=1), tmp_path / "broken", Options())
    stage.run(planned(recipe, rounds=1), tmp_path / "broken", Options())
    one, other = (
        {str(f.relative_to(tmp_path / name)): f.read_bytes() for f in (tmp_path / name).rglob("*.safetensors")}
        for name in ("whole", "broken")
    )
    assert one.keys() == other.keys()
    assert all(one[name] == other[name] for name in one)
