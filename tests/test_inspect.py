"""`inspect`: facts, joins, and what a terminal or a script gets to see."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli import schema
from toolsample_cli.cli.app import run as command
from toolsample_cli.config import ImportConfig, ScoreConfig
from toolsample_cli.output import Output
from toolsample_cli.shards import open_folder
from toolsample_cli.stages import importing, score
from toolsample_cli.stages.common import Options

RAW = Path(__file__).resolve().parent.parent / "fixtures" / "raw"
EVIL = '\x1b[2J\x1b]0;owned\x07<tool_call>\n{"name": "weather", "arguments": {"city": "Gr\u202eaz"}}\n</tool_call>'


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A run folder: tasks, rollouts (gold, wrong, hostile, errored) and their scores."""
    folder = tmp_path_factory.mktemp("run")
    importing.run([str(RAW / "messages.jsonl")], folder / "tasks", ImportConfig(), Options())
    tasks = open_folder(folder / "tasks", schema.TASKS)
    write_rollouts(folder / "rollouts", tasks.load().to_dicts(), tasks.digest)
    score.run(folder / "tasks", folder / "rollouts", out=folder / "scores", config=ScoreConfig(), options=Options())
    return folder


def write_rollouts(path: Path, tasks: list[dict], digest: str, last: str = "No tool fits.") -> None:
    rows = []
    for task in tasks:
        texts = [task["gold_text"], last, EVIL, None]
        for sample, text in enumerate(texts):
            ids = list(range(3)) if text is not None else []
            rows.append(
                {
                    "rollout_id": f"{task['task_id']}/0/{sample}", "task_id": task["task_id"], "round": 0,
                    "sample": sample, "policy": "script", "backend": "replay", "seed": sample, "prompt_ids": [1, 2],
                    "completion_ids": ids, "logprobs": [-0.5] * len(ids) or None, "ids_from_text": True,
                    "finish_reason": "stop" if ids else None, "text": text or "", "error": None if ids else "timeout",
                }
            )  # fmt: skip
    with Output(path, schema.ROLLOUTS, {"n": 4}, {"tasks": digest}) as output:
        half = len(rows) // 8 * 4
        for number, part in enumerate((rows[:half], rows[half:])):
            output.write(number, schema.frame(schema.ROLLOUTS, part))
        output.finish()


@pytest.fixture(autouse=True)
def only_these_commands(monkeypatch):
    monkeypatch.setattr("toolsample_cli.cli.app.COMMANDS", ("importing", "inspect"))


def say(capsys, *arguments: str, code: int = 0) -> str:
    """stdout of one command."""
    assert command(["inspect", *map(str, arguments)]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 120])
def test_facts_fit_the_terminal(world, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = say(capsys, world / "scores")
    assert "16 rows in 2 shard(s)" in text and "complete" in text and "reward:" in text
    assert max(map(len, text.splitlines())) <= width
    assert "parse_status" in text and "ok 6 (38 %)" in text


def test_facts_as_json_are_right(world, capsys):
    found = json.loads(say(capsys, world / "scores", "--json"))
    data = open_folder(world / "scores", schema.SCORES).load()
    assert found["kind"] == "scores" and found["rows"] == data.height == 16
    reward = next(column for column in found["columns"] if column["column"] == "reward")
    assert reward["nulls"] == 4 and reward["mean"] == pytest.approx(data["reward"].mean())
    assert reward["std"] == pytest.approx(data["reward"].std(ddof=0))
    assert sum(bar["rows"] for bar in reward["histogram"]) == 12
    exact = next(column for column in found["columns"] if column["column"] == "exact")
    assert exact["mean"] == pytest.approx(data["exact"].cast(pl.Float64).mean())


def test_record_joins_its_siblings(world, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = say(capsys, world / "scores", "-i", "1")
    assert (
        "A table for two at Lume" in text
        and "reserve_table(guests: integer, restaurant: string, date?: string)" in text
    )
    assert "gold (calls)" in text and "completion (3 tokens, stop, mean logprob -0.500)" in text
    assert "4 in [-3, 4]" in text and "≠" not in text
    found = json.loads(say(capsys, world / "scores", "-i", "-1", "--json"))
    assert found["scores"]["rollout_id"].endswith("/0/3") and found["rollouts"]["error"] == "timeout"
    assert found["tasks"]["task_id"] == found["scores"]["task_id"]


def test_what_a_model_wrote_cannot_reach_the_terminal(world, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = say(capsys, world / "rollouts", "-i", "3")
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert r"\u001b[2J" in text and r"\u202e" in text


def test_ids(world, capsys):
    task_id = open_folder(world / "tasks", schema.TASKS).load()["task_id"][0]
    for wanted in (task_id, task_id[:6], "book-1"):
        found = json.loads(say(capsys, world / "tasks", "--id", wanted, "--json"))
        assert found["tasks"]["task_id"] == task_id and len(found["samples"]) == 4
    assert command(["inspect", str(world / "tasks"), "--id", "nothing"]) == 3
    assert command(["inspect", str(world / "tasks"), "-i", "99"]) == 2
    assert "rows 1 to 4" in capsys.readouterr().err


def test_other_programs_parquet(tmp_path, capsys):
    pl.DataFrame({"a": [1, None], "b": ["x", "y"]}).write_parquet(tmp_path / "t.parquet")
    assert "not one of ours" in say(capsys, tmp_path / "t.parquet")
    assert '"row": {"a": 1, "b": "x"}' in say(capsys, tmp_path / "t.parquet", "-i", "1", "--json")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "no shards in it"),
        (lambda path: path.write_text("x"), "not Parquet"),
        (lambda path: None, "no such file"),
    ],
)
def test_bad_paths(tmp_path, capsys, make, message):
    make(tmp_path / "x")
    assert command(["inspect", str(tmp_path / "x")]) in (2, 3)
    assert message in capsys.readouterr().err
