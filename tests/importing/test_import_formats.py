"""Every raw format by a small hand-written sample: what becomes of its prompts, tools, calls and oddities."""

from __future__ import annotations

import json

import polars as pl
import pytest
from support.importing_runs import RAW, chat, imported, lines

from toolsample_cli.config import ImportConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.importing.formats import FORMATS
from toolsample_cli.importing.stage import run
from toolsample_cli.stage import Options


def gold(task: dict) -> list[tuple[str, dict]]:
    return [(call["name"], call["arguments"]) for call in json.loads(task["gold_json"])]


def roles(task: dict) -> list[str]:
    return [message["role"] for message in json.loads(task["messages_json"])]


def issues(task: dict) -> list[str]:
    return [issue["issue"] for issue in json.loads(task["gold_issues_json"])]


@pytest.mark.parametrize(
    ("name", "form", "rows", "tasks", "dropped", "split"),
    [
        ("xlam.json", "xlam", 4, 3, {"bad_tools": 1}, "train"),
        ("sharegpt.json", "sharegpt", 3, 4, {"unknown_role": 1}, "train"),
        ("toolace.json", "toolace", 2, 2, {"bad_call": 1}, "train"),
        ("glaive.json", "glaive", 1, 2, {}, "train"),
        ("hammer.json", "hammer", 1, 1, {}, "test"),
        ("hammer_masked.json", "hammer-masked", 2, 2, {}, "train"),
        ("when2call.jsonl", "when2call", 3, 2, {"no_gold": 1}, "test"),
        ("api_bank.json", "api-bank", 1, 1, {}, "test"),
        ("bfcl", "bfcl", 4, 2, {"multi_turn": 1, "no_gold": 1}, "test"),
        ("messages.jsonl", "messages", 5, 4, {"no_gold": 1, "bad_call": 1}, "train"),
        ("rlla.json", "rlla", 5, 2, {"tag_in_thought": 1, "bad_gold": 1, "gold_format": 1}, "train"),
    ],
)
def test_every_format_is_recognised_and_accounted_for(tmp_path, name, form, rows, tasks, dropped, split):
    account, found, rejects = imported(RAW / name, tmp_path / "tasks")
    assert account.extra["format"] == form and account.rows_in == rows and len(found) == tasks
    assert account.dropped == dropped and len(rejects) == sum(dropped.values())
    assert {task["split"] for task in found} == {split}
    forced, _, _ = imported(RAW / name, tmp_path / "forced", format=form)
    assert forced.rows_out == tasks


def test_every_format_has_a_sample():
    sampled = {"xlam", "sharegpt", "toolace", "glaive", "hammer", "hammer-masked", "when2call", "api-bank", "bfcl"}
    assert set(FORMATS) == sampled | {"messages", "rlla", "tasks", "seal-tools"}  # the last two: test_merging.py


def test_xlam(tmp_path):
    _, tasks, _ = imported(RAW / "xlam.json", tmp_path / "tasks")
    assert gold(tasks[0]) == [("find_ferry", {"origin": "Split", "cars": 2}), ("tide", {"port": "Split", "hours": [6]})]
    assert tasks[0]["category"] == "parallel_multiple" and json.loads(tasks[0]["extra_json"]) == {"id": 1}
    assert json.loads(tasks[0]["tools_json"])[0]["parameters"]["required"] == ["origin"]
    assert issues(tasks[1]) == ["container_as_text"] and tasks[1]["category"] == "simple"
    assert tasks[2]["gold_kind"] == "none" and tasks[2]["gold_text"] is None and tasks[2]["category"] == "irrelevance"


def test_sharegpt_turns_tags_and_system(tmp_path):
    _, tasks, _ = imported(RAW / "sharegpt.json", tmp_path / "tasks")
    assert [task["gold_kind"] for task in tasks] == ["calls", "response", "calls", "response"]
    assert roles(tasks[1]) == ["user", "assistant", "tool"]
    hermes = tasks[2]
    assert gold(hermes) == [("tide", {"port": "Bar"}), ("tide", {"port": "Ulcinj"})]
    assert roles(hermes) == ["user"], "the instruction for calling goes: the chat template adds its own"
    assert json.loads(hermes["tools_json"])[0]["name"] == "tide"
    assert json.loads(tasks[3]["messages_json"])[-1] == {"role": "tool", "content": '{"height": 1}'}
    assert tasks[3]["gold_text"] == "<think>\nOne metre.\n</think>\n\nOne metre in both."
    for turns, number in (("calls", 2), ("last", 2)):
        _, some, _ = imported(RAW / "sharegpt.json", tmp_path / turns, turns=turns)
        assert len(some) == number
        assert {task["gold_kind"] for task in some} == ({"calls"} if turns == "calls" else {"response"})


def test_toolace_text_is_read_never_run(tmp_path):
    _, tasks, rejects = imported(RAW / "toolace.json", tmp_path / "tasks")
    name = "Harbour Tides/v2"
    assert gold(tasks[0]) == [(name, {"port": "Rab (old town)", "days": 2, "exact": True}), (name, {"port": "Cres"})]
    assert roles(tasks[0]) == ["user"] and issues(tasks[0]) == []
    assert rejects[0]["reason"] == "bad_call" and "without a name" in rejects[0]["detail"]


def test_glaive(tmp_path):
    _, tasks, _ = imported(RAW / "glaive.json", tmp_path / "tasks")
    assert gold(tasks[0]) == [("tide", {"port": "St. John's"})] and roles(tasks[1]) == ["user", "assistant", "tool"]
    assert tasks[1]["gold_text"] == "Two metres."


def test_hammer_and_when2call(tmp_path):
    _, tasks, _ = imported(RAW / "hammer.json", tmp_path / "hammer")
    assert roles(tasks[0]) == ["user", "assistant", "user"] and gold(tasks[0]) == [("move", {"id": "7"})]
    assert json.loads(tasks[0]["extra_json"]) == {"said_before_calls": "I will do so."}
    _, tasks, _ = imported(RAW / "when2call.jsonl", tmp_path / "when")
    assert [task["category"] for task in tasks] == ["request_for_info", "tool_call"]
    assert tasks[0]["gold_text"] == "In which port?"


def test_bfcl_takes_the_first_allowed_value(tmp_path):
    _, tasks, rejects = imported(RAW / "bfcl", tmp_path / "tasks")
    irrelevant, first = tasks
    assert gold(first) == [("sea.tide", {"port": "Hvar", "at": {"day": 4}, "points": [1.5, 2]})] and issues(first) == []
    extra = json.loads(first["extra_json"])
    assert extra["id"] == "multiple_0" and extra["possible_answer"][0]["sea.tide"]["unit"] == ["", "m"]
    assert first["category"] == "multiple" and irrelevant["category"] == "irrelevance"
    schema = json.loads(first["tools_json"])[0]["parameters"]
    assert schema["type"] == "object" and schema["properties"]["points"] == {
        "type": "array",
        "items": {"type": "number"},
    }
    names = ["BFCL_v4_irrelevance.json", "possible_answer/BFCL_v4_multiple.json", "BFCL_v4_multiple.json"]
    files = [RAW / "bfcl" / name for name in names]
    _, again, _ = imported(files, tmp_path / "named")
    assert [t["task_id"] for t in again] == [t["task_id"] for t in tasks]
    with pytest.raises(DataError, match="without their questions"):
        run([str(files[1])], tmp_path / "x", ImportConfig(), Options())
    assert [r["reason"] for r in rejects] == ["no_gold", "multi_turn"]


def test_benchmarks_cannot_be_called_training_data(tmp_path):
    with pytest.raises(ConfigError, match="benchmark data") as error:
        run([str(RAW / "bfcl")], tmp_path / "x", ImportConfig(split="train"), Options())
    assert "--allow-test-data" in error.value.hint


def test_many_files_and_formats_at_once(tmp_path):
    names = ["xlam.json", "sharegpt.json", "rlla.json"]
    account, tasks, rejects = imported([RAW / name for name in names], tmp_path / "tasks")
    assert account.extra["format"] == "xlam, sharegpt, rlla" and len(tasks) == 9
    assert [task["source"] for task in tasks] == ["xlam"] * 3 + ["sharegpt"] * 4 + ["rlla"] * 2
    assert {task["protocol"] for task in tasks[:7]} == {"hermes"} and {t["protocol"] for t in tasks[7:]} == {"rlla"}
    assert len({r["file"] for r in rejects}) == 3


def test_other_protocols_get_their_tools_in_words(tmp_path):
    row = chat("Tide in Bari?", ("tide", {"port": "Bari"}), tools=[{"name": "tide", "parameters": {"port": "str"}}])
    refusal = chat("Sing.", answer="I cannot sing.", tools=[{"name": "tide", "parameters": {"port": "str"}}])
    raw = lines(tmp_path / "raw.jsonl", [row, refusal])
    _, tasks, rejects = imported(raw, tmp_path / "tasks", protocol="rlla")
    assert not rejects
    system, user = json.loads(tasks[0]["messages_json"])
    assert system["role"] == "system" and '"name":"tide"' in system["content"] and "<tool_call>" in system["content"]
    assert user == {"role": "user", "content": "Tide in Bari?"}
    assert tasks[0]["gold_text"].endswith('<tool_call>\n{"name": "tide", "parameters": {"port": "Bari"}}\n</tool_call>')
    assert tasks[1]["gold_text"].endswith("<response> I cannot sing. </response>")


def test_padding_of_parquet_structs_is_taken_off(tmp_path):
    text = {"type": "string"}
    tide, rain = (
        {"name": name, "parameters": {"type": "object", "properties": properties}}
        for name, properties in (("tide", {"port": text, "city": None}), ("rain", {"port": None, "city": text}))
    )
    rows = [
        chat("Tide?", ("tide", {"port": "Rab", "city": None}), tools=[tide]),
        chat("Rain?", ("rain", {"port": None, "city": "Graz"}), tools=[rain]),
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "padded.parquet")
    _, tasks, _ = imported(tmp_path / "padded.parquet", tmp_path / "tasks")
    assert [gold(task) for task in tasks] == [[("tide", {"port": "Rab"})], [("rain", {"city": "Graz"})]]
    assert [list(json.loads(t["tools_json"])[0]["parameters"]["properties"]) for t in tasks] == [["port"], ["city"]]
    meant = chat("Tide?", ("tide", {"port": None}), tools=[{"name": "tide", "parameters": {"port": "str"}}])
    _, tasks, _ = imported(lines(tmp_path / "null.jsonl", [meant]), tmp_path / "null")
    assert gold(tasks[0]) == [("tide", {"port": None})] and issues(tasks[0]) == ["null_value"]


def test_json_columns_of_datasets_are_opened(tmp_path):
    """Written by `datasets` 5.2: messages are a list of JSON, properties JSON inside structs."""
    _, tasks, _ = imported(RAW / "json_columns.parquet", tmp_path / "tasks")
    assert [gold(task) for task in tasks] == [
        [("tide", {"port": "Rab", "n": 1})],
        [("rain", {"city": "Graz", "n": "x"})],
    ]
    assert issues(tasks[1]) == ["unknown_argument"]


def test_dialogues_stored_as_text_are_opened(tmp_path):
    row = chat("Tide?", ("tide", {"port": "Rab"}), tools=[{"name": "tide", "parameters": {"port": "str"}}])
    _, plain, _ = imported(lines(tmp_path / "a.jsonl", [row]), tmp_path / "a")
    text = {"messages": json.dumps(row["messages"]), "tools": json.dumps(row["tools"])}
    _, opened, _ = imported(lines(tmp_path / "b.jsonl", [text]), tmp_path / "b")
    pl.DataFrame([text]).write_parquet(tmp_path / "c.parquet")
    _, table, _ = imported(tmp_path / "c.parquet", tmp_path / "c")
    assert opened[0]["task_id"] == plain[0]["task_id"] == table[0]["task_id"]


def test_hub_paths(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    files = ["README.md", "data/b.json", "data/a.json", "other/c.json", ".hidden/d.json"]
    monkeypatch.setattr(hub.HfApi, "list_repo_files", lambda self, *_, **__: files)
    fetched = []

    def download(repo, name, *, repo_type, revision):
        fetched.append((repo, name, repo_type, revision))
        return str(RAW / "xlam.json")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    run(["hf://datasets/me/tides@v2/data"], tmp_path / "a", ImportConfig(), Options())
    assert [(name, revision) for _, name, _, revision in fetched] == [("data/a.json", "v2"), ("data/b.json", "v2")]
    fetched.clear()
    _, _, rejects = imported(["hf://datasets/me/tides/other/c.json"], tmp_path / "b")
    assert fetched == [("me/tides", "other/c.json", "dataset", None)]
    assert rejects[0]["file"] == "hf://datasets/me/tides/other/c.json"
    with pytest.raises(DataError, match="no data files"):
        run(["hf://datasets/me/tides/nothing"], tmp_path / "c", ImportConfig(), Options())
    with pytest.raises(ConfigError, match="not an address"):
        run(["hf://me/tides"], tmp_path / "c", ImportConfig(), Options())


def test_the_hub_out_of_reach(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def offline(*_, **__):
        raise hub.errors.OfflineModeIsEnabled("offline mode is enabled")

    monkeypatch.setattr(hub.HfApi, "list_repo_files", offline)
    monkeypatch.setattr(hub, "hf_hub_download", offline)
    for address in ("hf://datasets/me/tides", "hf://datasets/me/tides/a.json"):
        with pytest.raises(DataError, match="cannot be fetched: OfflineModeIsEnabled: offline mode") as error:
            run([address], tmp_path / "x", ImportConfig(), Options())
        assert "hf download" in error.value.hint
    assert not list(tmp_path.iterdir())
