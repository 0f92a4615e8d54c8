"""`import` from raw files to shards: what becomes a task, what is rejected and why, and what bad input says."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from support.importing_runs import RAW, chat, imported, lines

from toolsample_cli.config import ImportConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.importing.raw_rows import raw_rows
from toolsample_cli.importing.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Options

TIDE = {"name": "tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}


def test_messages(tmp_path):
    account, tasks, rejects = imported(RAW / "messages.jsonl", tmp_path / "tasks")
    assert account.rows_in == 5 and account.rows_out == len(tasks) == 4
    assert account.dropped == {"no_gold": 1, "bad_call": 1} and account.extra["format"] == "messages"
    first = tasks[0]
    assert json.loads(first["gold_json"]) == [
        {"name": "reserve_table", "arguments": {"restaurant": "Lume", "guests": 2, "date": "2026-05-03"}}
    ]
    assert first["category"] == "simple" and json.loads(first["extra_json"])["id"] == "book-1"
    assert first["protocol"] == "hermes" and first["split"] == "train" and first["source"] == "messages"
    assert first["gold_text"].startswith('<tool_call>\n{"name": "reserve_table", "arguments": {')
    assert json.loads(first["messages_json"]) == [
        {"role": "user", "content": "A table for two at Lume on 3 May, please."}
    ]
    refusal = tasks[1]
    assert refusal["gold_kind"] == "response" and refusal["gold_text"] == "None of my tools knows rooms."
    assert [m["role"] for m in json.loads(refusal["messages_json"])] == ["system", "user"]
    assert json.loads(refusal["tools_json"])[0]["parameters"] == {
        "type": "object",
        "properties": {"restaurant": {"type": "string"}, "guests": {"type": "integer", "default": 2}},
        "required": ["restaurant"],
    }
    parallel, after = tasks[2], tasks[3]
    assert [c["arguments"] for c in json.loads(parallel["gold_json"])] == [
        {"city": "Graz"},
        {"city": "Linz", "days": "3"},
    ]
    assert json.loads(parallel["extra_json"]) == {"id": "book-3", "said_before_calls": "Let me look.", "turn": 1}
    assert json.loads(parallel["gold_issues_json"])[0]["issue"] == "number_as_text"
    history = json.loads(after["messages_json"])
    assert [m["role"] for m in history] == ["user", "assistant", "tool", "tool"]
    assert history[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Graz"}
    assert [(r["row"], r["reason"]) for r in rejects] == [(4, "no_gold"), (5, "bad_call")]


def test_rlla_keeps_prompt_and_answer_verbatim(tmp_path):
    account, tasks, rejects = imported(RAW / "rlla.json", tmp_path / "tasks")
    raw = json.loads((RAW / "rlla.json").read_text())
    assert [(r["row"], r["reason"]) for r in rejects] == [
        (3, "tag_in_thought"),
        (4, "bad_gold"),
        (5, "gold_format"),
    ]
    assert len(tasks) == 2 and account.extra["flagged"] == 1
    task = tasks[0]
    assert task["protocol"] == "rlla" and task["gold_text"] == raw[0]["output"]
    assert [m["content"] for m in json.loads(task["messages_json"])] == [raw[0]["instruction"], raw[0]["input"]]
    ferry, tide = json.loads(task["tools_json"])
    assert ferry["name"] == "find ferry" and ferry["description"].endswith("belongs to the description.")
    assert (
        ferry["parameters"]["required"] == ["port"] and ferry["parameters"]["properties"]["cars"]["type"] == "integer"
    )
    assert tide["parameters"]["properties"]["hours"]["items"] == {"type": "integer"}
    assert [c["name"] for c in json.loads(task["gold_json"])] == ["find ferry", "tide"]
    assert json.loads(tasks[1]["tools_json"])[0]["parameters"]["properties"]["port"]["description"] == "the port's name"


def test_verl_parquet_is_the_same_as_raw(tmp_path):
    raw = json.loads((RAW / "rlla.json").read_text())
    rows = [
        {
            "data_source": "rlla",
            "prompt": [{"role": "system", "content": r["instruction"]}, {"role": "user", "content": r["input"]}],
            "ability": "math",
            "reward_model": {"ground_truth": r["output"], "style": "rule"},
            "extra_info": {"index": i, "split": "train", "instruction": r["instruction"]},
        }
        for i, r in enumerate(raw)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "rlla.parquet")
    _, table, _ = imported(tmp_path / "rlla.parquet", tmp_path / "a")
    _, plain, _ = imported(RAW / "rlla.json", tmp_path / "b")
    assert [t["task_id"] for t in table] == [t["task_id"] for t in plain]
    assert json.loads(table[0]["extra_json"]) == {"data_source": "rlla", "index": 0, "split": "train"}


def test_ids_depend_on_content_only_and_repeats_are_numbered(tmp_path):
    row = chat("Tide in Bari?", ("tide", {"port": "Bari"}), tools=[TIDE])
    other = chat("Tide in Oslo?", ("tide", {"port": "Oslo"}), tools=[TIDE])
    _, first, _ = imported(lines(tmp_path / "a.jsonl", [row, other, row, row]), tmp_path / "a")
    _, second, _ = imported(lines(tmp_path / "b.jsonl", [other, row]), tmp_path / "b")
    ids = [task["task_id"] for task in first]
    assert ids[2:] == [f"{ids[0]}-2", f"{ids[0]}-3"] and len(set(ids)) == 4
    assert [task["task_id"] for task in second] == [ids[1], ids[0]]
    _, both, _ = imported([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "c")
    assert len({task["task_id"] for task in both}) == 6


def test_keys_stay_in_the_order_of_their_source(tmp_path):
    """Models see tools, earlier calls and gold as their authors wrote them; the id does not depend on the order."""
    schema_of = {"description": "what", "type": "str", "enum": ["b", "a"]}
    parameters = {
        "type": "object",
        "required": ["z"],
        "properties": {"z": schema_of, "a": {"items": {}, "type": "list"}},
    }
    call = {"name": "f", "arguments": {"z": "b", "a": [{"y": 1, "x": 2}]}}
    earlier = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    talk = [{"role": "user", "content": "q"}, earlier, {"role": "tool", "content": "1"}, earlier]
    row = {"messages": talk, "tools": [{"function": {"name": "f", "description": "d", "parameters": parameters}}]}
    file = lines(tmp_path / "data.jsonl", [row, json.loads(json.dumps(row, sort_keys=True))])
    _, (_, one, _, other), _ = imported(file, tmp_path / "out")  # a task for each turn of the assistant
    properties = '"z":{"description":"what","type":"string","enum":["b","a"]},"a":{"items":{},"type":"array"}'
    shown = '{"type":"object","required":["z"],"properties":{' + properties + "}}"
    assert one["tools_json"] == '[{"name":"f","description":"d","parameters":' + shown + "}]"
    assert one["gold_json"] == '[{"name":"f","arguments":{"z":"b","a":[{"y":1,"x":2}]}}]'
    assert '{"name": "f", "arguments": {"z": "b", "a": [{"y": 1, "x": 2}]}}' in one["gold_text"]
    assert '"arguments":{"z":"b","a":[{"y":1,"x":2}]}' in one["messages_json"]
    assert other["task_id"] == one["task_id"] + "-2" and other["tools_json"] != one["tools_json"]


def test_rerun_makes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        imported(RAW / "messages.jsonl", tmp_path / name)
    files = [tmp_path / name / "part-00000.parquet" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    before = files[0].stat().st_mtime_ns
    imported(RAW / "messages.jsonl", tmp_path / "a")
    assert files[0].stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"license was '', now 'MIT'"):
        imported(RAW / "messages.jsonl", tmp_path / "a", license="MIT")
    imported(RAW / "messages.jsonl", tmp_path / "a", Options(overwrite=True), license="MIT")


def test_limit_ids_and_dry_run(tmp_path):
    _, all_tasks, _ = imported(RAW / "messages.jsonl", tmp_path / "all")
    _, tasks, _ = imported(RAW / "messages.jsonl", tmp_path / "limit", Options(limit=2))
    assert [t["task_id"] for t in tasks] == [t["task_id"] for t in all_tasks[:2]]
    (tmp_path / "ids").write_text(all_tasks[3]["task_id"] + "\n")
    account, tasks, _ = imported(RAW / "messages.jsonl", tmp_path / "ids-out", Options(ids=tmp_path / "ids"))
    assert [t["task_id"] for t in tasks] == [all_tasks[3]["task_id"]] and account.dropped["not_in_ids"] == 3
    account = run([str(RAW)], tmp_path / "dry", ImportConfig(), Options(dry_run=True))
    assert not (tmp_path / "dry").exists() and "would import" in account.line()


def test_a_broken_line_is_named_and_nothing_is_left(tmp_path):
    rows = [json.dumps(chat(f"Tide {i}?", ("tide", {}), tools=[TIDE])) for i in range(30)]
    rows[16] = rows[16][:-9]
    path = tmp_path / "raw.jsonl"
    path.write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"raw.jsonl row 17: not valid JSON"):
        imported(path, tmp_path / "tasks")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raw.jsonl"]
    _, tasks, rejects = imported(path, tmp_path / "tasks", broken="reject")
    assert len(tasks) == 29 and [(r["row"], r["reason"]) for r in rejects] == [(17, "broken_row")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "0 bytes"),
        ("blank.jsonl", b"\n\n", "no rows"),
        ("latin.jsonl", b'{"messages": "\xe4"}', "not UTF-8"),
        ("odd.jsonl", b'{"a": 1}', "unknown format: rows have the keys a"),
        ("numbers.json", b"[1, 2]", "unknown format: rows are int"),
        ("open.json", b'[{"messages": []}', "row 2: the array is not closed"),
        ("comma.json", b'[{"messages": []} {"messages": []}]x', "row 2: .*expected a comma"),
        ("torn.json", b'[{"messages": [}]', "row 1: not valid JSON"),
        ("pretty.json", b'{\n "messages": []\n}', "over many lines"),
        ("torn.parquet", b"PAR1xxxx", "not a readable Parquet file"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        run([str(tmp_path / name)], tmp_path / "tasks", ImportConfig(), Options())
    assert not (tmp_path / "tasks").exists()


def test_missing_input_and_wrong_settings(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        run([str(tmp_path / "nothing.json")], tmp_path / "tasks", ImportConfig(), Options())
    with pytest.raises(ConfigError, match="format = 'mesages'") as error:
        run([str(RAW / "messages.jsonl")], tmp_path / "tasks", ImportConfig(format="mesages"), Options())
    assert "messages" in error.value.hint
    with pytest.raises(ConfigError, match="protocol rlla"):
        run([str(RAW / "rlla.json")], tmp_path / "tasks", ImportConfig(protocol="hermes"), Options())


def test_public_rlla(shared_data, tmp_path):
    account, tasks, _ = imported(shared_data / "rlla_4k" / "test.parquet", tmp_path / "tasks")
    assert (account.rows_in, account.rows_out) == (80, 80)
    counts = [sum(t["gold_kind"] == kind for t in tasks) for kind in ("calls", "response")]
    assert counts == [71, 9]
    calls = [len(json.loads(t["gold_json"])) for t in tasks]
    assert [calls.count(n) for n in range(6)] == [9, 36, 23, 8, 3, 1]
    account, _, rejects = imported(shared_data / "rlla_4k" / "rlla_sft.json", tmp_path / "sft")
    assert account.rows_out == 383 and account.dropped == {"tag_in_thought": 17}
    assert {r["reason"] for r in rejects} == {"tag_in_thought"}


PROGRAM = """
import sys, time
import toolsample_cli.importing.stage as importing
from toolsample_cli.cli.app import run
importing.ROWS = 40
if sys.argv[1] == "slow":
    build = importing._row
    importing._row = lambda *given: (time.sleep(0.01), build(*given))[1]
sys.exit(run(sys.argv[2:]))
"""


def test_sigkill_and_rerun_equal_an_unbroken_run(tmp_path):
    rows = [chat(f"Tide {i}?", ("tide", {"port": str(i)}), tools=[TIDE]) for i in range(200)]
    raw = lines(tmp_path / "raw.jsonl", [*rows, *[{"messages": []}] * 4])

    def program(pace: str, out: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAM, pace, "import", str(raw), "-o", str(out)]

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert subprocess.run(program("fast", whole), capture_output=True).returncode == 0
    process = subprocess.Popen(program("slow", broken), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (broken / "part-00001.parquet").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert 2 <= len(list(broken.iterdir())) < 5, "killed too late to prove anything"
    assert subprocess.run(program("fast", broken), capture_output=True).returncode == 0
    for name in ("{}", "{}.rejects"):
        one, two = (tmp_path / name.format(stem) for stem in ("whole", "broken"))
        assert {f.name: f.read_bytes() for f in one.iterdir()} == {f.name: f.read_bytes() for f in two.iterdir()}
        manifests = [(tmp_path / f"{path.name}.manifest.json").read_bytes() for path in (one, two)]
        assert manifests[0] == manifests[1]
    assert open_folder(whole, schema.TASKS).rows == 200 and len(list(whole.iterdir())) == 5


def test_slices_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--slice is not for import"):
        run([str(RAW / "messages.jsonl")], tmp_path / "x", ImportConfig(), Options(slice=Slice(0, 3)))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_arrays_are_read_the_same_through_any_window(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("toolsample_cli.importing.raw_rows.CHUNK", chunk)
    rows = [{"a": [1, {"b": 'ü]},{[\\"'}]}, {"n": 12345.678e-3}, {"s": "\u2028🦩"}, {}, {"t": True}]
    for indent in (None, 1):
        (tmp_path / "rows.json").write_text(" \n" + json.dumps(rows, indent=indent, ensure_ascii=False) + "\n", "utf-8")
        assert [raw.value for raw in raw_rows(tmp_path / "rows.json")] == rows
        assert [raw.number for raw in raw_rows(tmp_path / "rows.json")] == [1, 2, 3, 4, 5]


def test_odd_values_at_the_door(tmp_path):
    path = tmp_path / "raw.jsonl"
    deep = '{"messages": ' + "[" * 500 + "]" * 500 + "}"
    deeper = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
    good = json.dumps(chat("a\ud800b\0c", ("tide", {"port": "\udc00", "n": 10**30}), tools=[TIDE]))
    nan = json.dumps(chat("x", ("tide", {"port": float("nan")}), tools=[TIDE]))
    path.write_text("\ufeff" + "\n".join([good, deep, deeper, "[1]", "null", nan, good]), encoding="utf-8")
    account, tasks, _ = imported(path, tmp_path / "tasks", broken="reject")
    assert account.dropped == {"broken_row": 2, "not_an_object": 2, "not_json": 1}
    assert json.loads(tasks[0]["messages_json"])[0]["content"] == "a\ufffdb\0c"
    assert json.loads(tasks[0]["gold_json"])[0]["arguments"] == {"port": "\ufffd", "n": 10**30}
    assert tasks[1]["task_id"] == tasks[0]["task_id"] + "-2"


def test_a_broken_first_line_and_what_json_has_no_word_for(tmp_path):
    """The format is told by the first row that can be read; every reject has its row number and reason."""
    good = chat("x", ("tide", {"port": "a"}), tools=[TIDE])
    deep = "[" * 3000 + "]" * 3000
    rows = ['{"messages": ' + deep, json.dumps(good), json.dumps({**good, "score": float("nan")}), json.dumps(good)]
    rows += [json.dumps(chat("y", ("tide", deep), tools=[TIDE]))]
    path = tmp_path / "raw.jsonl"
    path.write_bytes("\n".join(rows).encode() + b'\n{"messages": "\xff"}\n')
    account, tasks, left = imported(path, tmp_path / "tasks", broken="reject")
    assert len(tasks) == 2 and account.extra["repeats"] == 1 and account.exit_code == 0
    assert [(row["row"], row["reason"]) for row in left][:2] == [(1, "broken_row"), (3, "not_json")]
    assert left[-1]["row"] == 6 and "not UTF-8 text: byte 0xff" in left[-1]["detail"]
    (tmp_path / "none.jsonl").write_text(json.dumps({"messages": [], "tools": []}))
    account, _, _ = imported(tmp_path / "none.jsonl", tmp_path / "none")
    assert account.exit_code == 3 and sum(account.dropped.values()) == 1


def test_compressed_files_and_folders(tmp_path):
    (tmp_path / "raw" / "deep").mkdir(parents=True)
    with gzip.open(tmp_path / "raw" / "b.jsonl.gz", "wb") as handle:
        handle.write((RAW / "messages.jsonl").read_bytes())
    (tmp_path / "raw" / "deep" / "a.json").write_bytes((RAW / "rlla.json").read_bytes())
    (tmp_path / "raw" / "README.md").write_text("not data")
    (tmp_path / "raw" / ".cache.json").write_text("{")
    account, tasks, _ = imported(tmp_path / "raw", tmp_path / "tasks")
    assert account.rows_in == 10 and len(tasks) == 6
    (tmp_path / "torn.jsonl.gz").write_bytes((tmp_path / "raw" / "b.jsonl.gz").read_bytes()[:-20])
    with pytest.raises(DataError, match=r"torn.jsonl.gz: cannot be read"):
        imported(tmp_path / "torn.jsonl.gz", tmp_path / "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no data files"):
        imported(tmp_path / "empty", tmp_path / "x")


def test_openai_weight_zero_is_context_only(tmp_path):
    row = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": 0},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d", "weight": 1},
        ]
    }
    _, tasks, _ = imported(lines(tmp_path / "raw.jsonl", [row]), tmp_path / "tasks")
    assert [task["gold_text"] for task in tasks] == ["d"] and len(json.loads(tasks[0]["messages_json"])) == 3


def test_prompt_and_completion(tmp_path):
    said = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, "abcd", strict=True)]
    row = {"prompt": said[:3], "completion": said[3:]}
    _, tasks, _ = imported(lines(tmp_path / "raw.jsonl", [row]), tmp_path / "tasks")
    assert [task["gold_text"] for task in tasks] == ["d"]


def test_ids_of_a_benchmark_in_training_data_are_pointed_out(tmp_path):
    ids = ["simple_python_3", "live_multiple_12-4-0", "train-simple-1", "parallel_multiple_7", "multiple_choice_1"]
    raw = lines(tmp_path / "raw.jsonl", [chat(f"{i}", ("tide", {}), tools=[TIDE], id=i) for i in ids])
    account, _, _ = imported(raw, tmp_path / "tasks")
    assert (
        account.extra["counts"]["benchmark_ids"] == 3 and "WARNING benchmark ids in training data 3" in account.line()
    )
    account, _, _ = imported(raw, tmp_path / "test", split="test")
    assert "WARNING" not in account.line()
