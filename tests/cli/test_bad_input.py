"""Bad input at the command line: one clear line, the right exit code, nothing half-written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.tiny_model import task_row, tiny_model

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output


def row(number: int) -> dict:
    """A raw row in OpenAI's form."""
    tool = {"type": "function", "function": {"name": "get", "description": "", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "get", "arguments": {}}}
    turns = [{"role": "user", "content": f"get {number}"}, {"role": "assistant", "tool_calls": [call]}]
    return {"messages": turns, "tools": [tool]}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder with good tasks, and one of each thing that can be wrong."""
    with Output(tmp_path / "tasks", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, [task_row(i) for i in range(3)]))
        output.finish()
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "part-00000.parquet").touch()
    with Output(tmp_path / "steps", schema.STEPS, {}) as output:
        output.write(0, schema.frame(schema.STEPS, [{"step": 0, "round": 0, "metric": "loss", "value": 0.0}]))
        output.finish()
    lines = [json.dumps(row(i)) for i in range(20)]
    lines[16] = lines[16][:-30]
    (tmp_path / "broken.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00garbage")
    model = tiny_model(tmp_path)
    torn = shutil.copytree(model, tmp_path / "torn") / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1000])
    (model / "tokenizer.json").unlink()
    (tmp_path / "good.jsonl").write_text(json.dumps(row(0)), encoding="utf-8")
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(row(0)).encode() + b'\n{"messages": "\xe4"}\n')
    (tmp_path / "texts.jsonl").write_text('{"task_id": "nobody", "text": "a"}\n', encoding="utf-8")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    (tmp_path / "run.toml").write_text("[run]\nmodel = 'torn'\n", encoding="utf-8")
    (tmp_path / "typo.toml").write_text("[rollout]\ntemprature = 1.0\n", encoding="utf-8")
    (tmp_path / "range.toml").write_text("[rollout]\ntemperature = -1.0\n", encoding="utf-8")
    return tmp_path


CASES = {
    "a missing raw file": (["import", "nowhere.jsonl"], 3, ["nowhere.jsonl"]),
    "a broken line": (["import", "broken.jsonl"], 3, ["broken.jsonl", "17"]),
    "not text at all": (["import", "binary.jsonl"], 3, ["binary.jsonl"]),
    "a missing folder": (["score", "tasks", "nowhere"], 3, ["nowhere", "no such file or folder"]),
    "a 0-byte shard": (["filter", "lost"], 3, ["lost/part-00000.parquet", "0 bytes"]),
    "a folder of another kind": (["score", "tasks", "steps"], 3, ["steps", "expected rollouts"]),
    "a file of another kind": (["filter", "steps/part-00000.parquet"], 3, ["part-00000.parquet", "expected scores"]),
    "a model without tokenizer": (["rollout", "tasks", "--model", "tiny"], 3, ["tiny", "without tokenizer"]),
    "a model that is not there": (["rollout", "tasks", "--model", "./nothing"], 3, ["nothing"]),
    "torn weights": (["rollout", "tasks", "--model", "torn"], 3, ["torn/model.safetensors", "its header says", "hint"]),
    "torn weights, dry": (["rollout", "tasks", "--model", "torn", "--dry-run"], 3, ["torn/model.safetensors"]),
    "no tokenizer, dry": (["rollout", "tasks", "--model", "tiny", "--dry-run"], 3, ["without tokenizer"]),
    "a run without corpus": (["run", "run.toml", "--dry-run"], 2, ["needs corpus"]),
    "a run of what is not there": (["run", "run.toml", "--corpus", "nowhere", "--dry-run"], 3, ["nowhere: no such"]),
    "heldout tasks that are not there": (
        ["run", "run.toml", "--corpus", "tasks", "--heldout", "gone", "--dry-run"],
        3,
        ["gone: no such"],
    ),
    "a run of torn weights": (["run", "run.toml", "--corpus", "tasks", "--dry-run"], 3, ["torn/model.safetensors"]),
    "a byte that is not UTF-8": (["import", "latin.jsonl"], 3, ["latin.jsonl row 2", "byte 0xe4"]),
    "texts of another corpus": (
        ["rollout", "tasks", "--backend", "replay", "--texts", "texts.jsonl"],
        3,
        ["texts.jsonl: task nobody is not in tasks"],
    ),
    "no texts": (["rollout", "tasks", "--backend", "replay", "--texts", "empty.jsonl"], 3, ["empty.jsonl: no texts"]),
    "an output inside the input": (["score", "tasks", "tasks", "-o", "tasks/deep"], 2, ["inside", "tasks"]),
    "no model": (["rollout", "tasks"], 2, ["--model"]),
    "an unknown recipe key": (
        ["rollout", "tasks", "--model", "tiny", "--config", "typo.toml"],
        2,
        ["typo.toml", "temprature", "did you mean 'temperature'"],
    ),
    "a recipe value out of range": (
        ["rollout", "tasks", "--model", "tiny", "--config", "range.toml"],
        2,
        ["temperature", "at least 0"],
    ),
    "a missing recipe": (["filter", "lost", "--config", "no.toml"], 2, ["no.toml"]),
    "an unknown flag": (["filter", "lost", "--methd", "rds"], 2, ["--methd"]),
    "a wrong slice": (["score", "tasks", "tasks", "--slice", "3/3"], 2, ["--slice 3/3"]),
    "a slice of what has none": (["import", "good.jsonl", "--slice", "0/2"], 2, ["No such option: --slice"]),
    "a slice of training": (["train", "t", "b", "--model", "tiny", "--slice", "0/2"], 2, ["No such option: --slice"]),
    "a line forged by a name": (["filter", "a\x1b[2K\nhint: rm -rf ~\u202e"], 3, [r"a\u001b[2K hint: rm -rf ~\u202e"]),
    "a negative limit": (["score", "tasks", "tasks", "--limit", "-1"], 2, ["--limit", " 1"]),
    "an unknown command": (["scroe"], 2, ["scroe"]),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input_is_one_clear_line(case: str, world: Path, monkeypatch, capsys: pytest.CaptureFixture):
    """The message names the file and what is wrong with it; the output folder does not come into being."""
    arguments, code, words = CASES[case]
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    out = ["-o", "out"] if len(arguments) > 1 and "-o" not in arguments else []
    assert toolsample([*arguments, *out]) == code
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    errors = [line for line in lines if line.startswith("toolsample: error: ")]
    assert len(errors) == 1, captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    for word in words:
        assert word in captured.err
    assert sorted(world.rglob("*")) == before
