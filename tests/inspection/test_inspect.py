"""`inspect`: facts, joins, and what a terminal or a script gets to see."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli.cli.app import run as command
from toolsample_cli.config import ImportConfig, ScoreConfig
from toolsample_cli.importing import stage as importing
from toolsample_cli.score import stage as score
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options

RAW = Path(__file__).resolve().parents[2] / "fixtures" / "raw"
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
    statuses = open_folder(world / "scores", schema.SCORES).load()["parse_status"].to_list()
    assert f"ok {statuses.count('ok')} ({100 * statuses.count('ok') / 16:.0f} %)" in text


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
    assert "A table for two at Lume" in text
    assert "reserve_table(restaurant: string, guests: integer, date?: string)" in text
    assert "gold (calls)" in text and "completion (3 tokens, stop, mean logprob -0.500)" in text
    assert "4 in [-3, 4]" in text and "≠" not in text
    found = json.loads(say(capsys, world / "scores", "-i", "-1", "--json"))
    assert found["scores"]["rollout_id"].endswith("/0/3") and found["rollouts"]["error"] == "timeout"
    assert found["tasks"]["task_id"] == found["scores"]["task_id"]


def test_a_record_of_training_finds_its_rollout_by_its_id(world, capsys, recwarn):
    """Rows of `records` have no task_id of their own."""
    rollout = open_folder(world / "rollouts", schema.ROLLOUTS).load()["rollout_id"][0]
    empty = dict.fromkeys(schema.RECORDS.schema) | {"rollout_id": rollout, "step": 0, "advantage": 0.5, "tokens": 3}
    with Output(world / "checkpoint.records", schema.RECORDS, {}) as output:
        output.write(0, schema.frame(schema.RECORDS, [empty | {"dropped_tokens": 0}]))
        output.finish()
    found = json.loads(say(capsys, world / "checkpoint.records", "-i", "1", "--json"))
    assert {found[kind]["task_id"] for kind in ("tasks", "rollouts", "scores")} == {rollout.rsplit("/", 2)[0]}
    assert not [warning for warning in recwarn if "null" in str(warning.message).lower()]


def test_steps_are_told_metric_by_metric(tmp_path, capsys):
    rows = [
        {"step": step, "round": 0, "metric": name, "value": value * (step + 1)}
        for step in range(3)
        for name, value in (("loss", 1.0), ("tokens", 123456.0))
    ]
    with Output(tmp_path / "steps", schema.STEPS, {}) as output:
        output.write(0, schema.frame(schema.STEPS, rows))
        output.finish()
    text = say(capsys, tmp_path / "steps")
    assert re.search(r"tokens +3 +123,456 +370,368 +123,456 +246,912 +370,368", text) and "…" not in text
    loss = json.loads(say(capsys, tmp_path / "steps", "--json"))["metrics"][0]
    assert loss == {"metric": "loss", "steps": 3, "first": 1.0, "last": 3.0, "min": 1.0, "mean": 2.0, "max": 3.0}


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


def test_validate_sound_shards(world, capsys):
    for name in ("tasks", "rollouts", "scores", "tasks.rejects"):
        assert say(capsys, world / name, "--validate") == "valid\n"
    assert json.loads(say(capsys, world / "scores", world / "tasks", "--validate", "--json"))["valid"] is True


def broken(tmp_path, kind, rows) -> Path:
    """Rows written past the checks that a stage goes through."""
    (tmp_path / "x").mkdir()
    schema.frame(kind, rows).write_parquet(tmp_path / "x" / "part-00000.parquet")
    return tmp_path / "x"


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("scores", lambda rows: rows[0].update(reward=9.0), "row 1 .*reward lies outside"),
        ("scores", lambda rows: rows[0].update(name=2.0), "name exceeds name_max"),
        ("scores", lambda rows: rows[1].update(sample=0), "row 2 .*task_id, sample came before"),
        ("scores", lambda rows: rows.insert(0, rows.pop(2)), "not in order"),
        ("scores", lambda rows: rows.append(rows.pop(0)), "are not adjacent"),
        ("scores", lambda rows: rows[2].update(calls_json="[{"), "row 3 .*calls_json is not JSON"),
        ("scores", lambda rows: rows[2].update(calls_json="{}"), "row 3 .*calls_json holds dict"),
        ("scores", lambda rows: rows[0].update(format=-1.0), "column format = -1.0"),
        ("rollouts", lambda rows: rows[0].update(logprobs=[-1.0]), "row 1 .*as many logprobs"),
        ("rollouts", lambda rows: rows[0].update(error="x"), "row 1 .*an errored rollout holds tokens"),
    ],
)
def test_validate_names_every_fault(world, tmp_path, capsys, kind, change, message):
    rows = open_folder(world / kind, schema.KINDS[kind]).load().to_dicts()
    change(rows)
    text = say(capsys, broken(tmp_path, schema.KINDS[kind], rows), "--validate", code=3)
    assert any(re.search(message, line) for line in text.splitlines()), text


def test_validate_notices_a_changed_shard(world, tmp_path, capsys):
    shutil.copytree(world, tmp_path / "run")
    file = tmp_path / "run" / "scores" / "part-00001.parquet"
    data = bytearray(file.read_bytes())
    (tmp_path / "run" / "scores" / "part-00000.parquet").unlink()
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    text = say(capsys, tmp_path / "run" / "scores", "--validate", code=3)
    assert "part-00000.parquet: missing" in text and "part-00001.parquet" in text.splitlines()[1]


def test_diff_of_further_rewards(world, tmp_path, capsys):
    """Means of each one, and none where it was not asked for."""
    places = {}
    for name, rewards in (("one", "tool_n1,schema"), ("two", "schema,irrelevance")):
        places[name] = tmp_path / name
        config = ScoreConfig(rewards=rewards)
        score.run(world / "tasks", world / "rollouts", out=places[name], config=config, options=Options())
    found = json.loads(say(capsys, "--diff", places["one"], places["two"], "--json"))["further"]
    assert found["schema"]["changed"] == 0 and found["schema"]["old"] == found["schema"]["new"] is not None
    assert found["tool_n1"]["new"] is None and found["irrelevance"]["old"] is None
    assert "irrelevance: none -> " in say(capsys, "--diff", places["one"], places["two"])


def test_diff(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    same = json.loads(say(capsys, "--diff", world / "scores", world / "scores", "--json"))
    assert same["compared"] == 16 and same["changed"] == 0 and same["mean_old"] == same["mean_new"]
    rows = open_folder(world / "scores", schema.SCORES).load().to_dicts()
    first = next(row for row in rows if row["reward"] == 4.0)
    first.update(reward=2.5, value=first["value"] - 1, parse_status="lenient")
    second = next(row for row in rows if row["reward"] == -3.0)
    second.update(reward=None)
    rows.pop()
    new = broken(tmp_path, schema.SCORES, rows)
    found = json.loads(say(capsys, "--diff", world / "scores", new, "--json"))
    assert (found["compared"], found["only_old"], found["down"], found["vanished"], found["up"]) == (15, 1, 1, 1, 0)
    assert found["why"] == {"value down": 1, "read as lenient, was ok": 1, "reward vanished": 1, "read as no_call": 1}
    assert found["largest"][0]["rollout_id"] == first["rollout_id"] and found["largest"][0]["reward"] == [4.0, 2.5]
    text = say(capsys, "--diff", world / "scores", new)
    assert "reward changed: 2 (up 0, down 1" in text and "4>2.500" in text
    score.run(
        world / "tasks", world / "rollouts", out=tmp_path / "l", config=ScoreConfig(lift="all"), options=Options()
    )
    found = json.loads(say(capsys, "--diff", world / "scores", tmp_path / "l", "--json"))
    assert found["settings"] == {"lift": ["", "all"]} and found["compared"] == 16
    assert "settings: lift none -> all" in say(capsys, "--diff", world / "scores", tmp_path / "l")
    assert command(["inspect", "--diff", str(new)]) == 2
    assert command(["inspect", "--diff", str(world / "tasks"), str(new)]) == 2


def test_status_of_a_run(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copytree(world, tmp_path / "run" / "round-10")
    shutil.copytree(world, tmp_path / "run" / "round-2")
    (tmp_path / "run" / "round-2" / "scores.manifest.json").unlink()
    (tmp_path / "run" / "round-2" / "tasks" / "part-00000.parquet").write_bytes(b"")
    (tmp_path / "run" / "round-2" / "round.json").write_text('{"round": 2, "exact": 0.25, "more": []}')
    (tmp_path / "run" / "round-2" / "checkpoint").mkdir()
    (tmp_path / "run" / "round-2" / "checkpoint" / "config.json").write_text("{}")
    found = {entry["path"]: entry for entry in json.loads(say(capsys, tmp_path / "run", "--json"))["entries"]}
    assert next(iter(found)) == "round-2/round.json", "rounds come in numerical order"
    states = {path: entry.get("state") for path, entry in found.items()}
    assert states["round-2/scores"] == "not finished" and states["round-10/scores"] == "complete"
    assert states["round-2/tasks"] == "damaged" and "0 bytes" in found["round-2/tasks"]["about"]
    assert (
        found["round-2/checkpoint"]["kind"] == "model" and found["round-2/round.json"]["about"] == "round 2, exact 0.25"
    )
    with Output(tmp_path / "run" / "round-2" / "scores", schema.SCORES, {}, overwrite=True):
        found = {entry["path"]: entry for entry in json.loads(say(capsys, tmp_path / "run", "--json"))["entries"]}
        assert found["round-2/scores"]["state"] == "being written"
    text = say(capsys, tmp_path / "run")
    assert max(map(len, text.splitlines())) <= 80 and "not finished or damaged" in text


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
