"""`import-rollouts`: every row of every form finds its task, nothing is invented, scores are those of our own."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from support.bridge_world import POLICY, World, world_task, write
from support.trainer_dumps import DUMPS, dump

from toolsample_cli.bridges.rollouts_in import run
from toolsample_cli.config import RolloutsInConfig, ScoreConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.models.chat import Chat
from toolsample_cli.score.stage import run as run_score
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options


def taken(files: list[Path], tasks: Path, out: Path, model: Path | None = POLICY, options=Options(), **knobs):
    """(account, rollouts)"""
    account = run(files, tasks, out, str(model) if model else None, RolloutsInConfig(**knobs), options)
    return account, open_folder(out, schema.ROLLOUTS).load()


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat.load(POLICY)


@pytest.mark.parametrize("name", DUMPS)
def test_every_row_comes_back_and_scores_the_same(name: str, world: World, chat: Chat, tmp_path: Path):
    """Each form, by label, id or prompt: 1,000 of 1,000 rows join, and score gives each the reward it had."""
    rollouts = world.load("rollouts").to_dicts()
    file = dump(name, tmp_path / "dump" / "3", chat, world.load("tasks").to_dicts(), rollouts)
    account, found = taken([file], world.tasks, tmp_path / "in", max_new_tokens=400)
    assert (account.rows_in, account.rows_out, account.dropped) == (1000, 1000, {})
    assert account.extra["by prompt"] == (1000 if name in ("verl_old", "trl_bare", "nemo_rl") else 0)
    run_score(world.tasks, tmp_path / "in", out=tmp_path / "scores", config=ScoreConfig(), options=Options())
    columns = ["task_id", "sample", "reward", "exact", "format", "name", "key", "value"]
    again = open_folder(tmp_path / "scores", schema.SCORES).load().select(columns)
    assert again.sort("task_id", "sample").equals(world.load("scores").select(columns).sort("task_id", "sample"))
    ours = world.load("rollouts").sort("task_id", "sample")
    if name in ("trl", "traces", "nemo_rl", "lines"):
        assert found.sort("task_id", "sample")["completion_ids"].to_list() == ours["completion_ids"].to_list()
        assert not found["ids_from_text"].any()
    if name in ("traces", "nemo_rl", "lines"):
        assert found.sort("task_id", "sample")["logprobs"].to_list() == ours["logprobs"].to_list()
        assert found.sort("task_id", "sample")["prompt_ids"].to_list() == ours["prompt_ids"].to_list()
    if name in ("traces", "openai_batch", "lines"):
        assert found.sort("task_id", "sample")["finish_reason"].to_list() == ours["finish_reason"].to_list()


def test_what_a_file_does_not_say_stays_unknown(world: World, chat: Chat, tmp_path: Path):
    """Without a tokenizer and a limit: no finish reason, no ids, no logprobs, and nothing claims to be whole."""
    file = dump("verl_new", tmp_path / "1", chat, world.load("tasks").to_dicts(), world.load("rollouts").to_dicts()[:9])
    _, found = taken([file], world.tasks, tmp_path / "in", None)
    assert found["finish_reason"].null_count() == found["logprobs"].null_count() == 9
    assert found["completion_ids"].list.len().sum() == 0 and set(found["policy"]) == {"unknown"}


def test_finish_reasons_are_told_by_tokens_and_limit_only(chat: Chat, tmp_path: Path):
    """An end token proves stop; ids without one are cut at the limit; a text near the limit stays unknown."""
    tasks = write(tmp_path / "tasks", schema.TASKS, [world_task(0)])
    text = "find " * 40
    ids = chat.encode(text)
    rows = [
        {"task_id": "t00000", "text": text, "completion_ids": [*ids, chat.end_of_turn]},
        {"task_id": "t00000", "text": text, "completion_ids": ids},
        {"task_id": "t00000", "text": text},
        {"task_id": "t00000", "text": text, "finish_reason": "abort"},
    ]
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {
        0: ["stop", None, None, "abort"],
        len(ids): ["stop", "length", "length", "abort"],
        len(ids) + 5: ["stop", "stop", None, "abort"],
        len(ids) * 3: ["stop", "stop", "stop", "abort"],
    }
    for limit, reasons in expected.items():
        _, found = taken([file], tasks, tmp_path / f"in{limit}", max_new_tokens=limit)
        assert found["finish_reason"].to_list() == reasons, limit
        assert [ids[-1] == chat.end_of_turn for ids in found["completion_ids"]][2] == (reasons[2] == "stop")


def test_a_generation_logged_twice_counts_once(world: World, chat: Chat, tmp_path: Path):
    """TRL writes a generation again at each of its steps; equal samples within one generation all stay."""
    tasks, rollouts = world.load("tasks").to_dicts(), world.load("rollouts").to_dicts()[:16]
    rollouts[1] = {**rollouts[0], "sample": 1}  # the policy says the same twice
    file = dump("trl", tmp_path / "d" / "completions_00001", chat, tasks, rollouts)
    frame = pl.read_parquet(file)
    frame.with_columns(step=2).write_parquet(tmp_path / "d" / "completions_00002.parquet")
    frame.with_columns(step=3, advantage=0.25).write_parquet(tmp_path / "d" / "completions_00003.parquet")
    account, found = taken([tmp_path / "d"], world.tasks, tmp_path / "in")
    assert (account.rows_in, found.height, account.dropped) == (48, 32, {"repeated": 16})
    whole = tmp_path / "all.parquet"
    pl.concat([frame, frame.with_columns(step=pl.lit(2, pl.Int64))]).write_parquet(whole)
    assert taken([whole], world.tasks, tmp_path / "in2")[1].height == 16


def test_a_prompt_that_two_tasks_share_finds_neither(tmp_path: Path):
    """Only labels and ids can tell such tasks apart; the row is counted and named."""
    same = world_task(0)["messages_json"]
    tasks = write(tmp_path / "tasks", schema.TASKS, [world_task(0), world_task(4, messages_json=same), world_task(1)])
    file = tmp_path / "x.jsonl"
    prompts = [json.loads(world_task(number)["messages_json"]) for number in (0, 1)]
    file.write_text("".join(json.dumps({"prompt": one, "text": "a"}) + "\n" for one in prompts))
    account, found = taken([file], tasks, tmp_path / "in", None)
    assert found["task_id"].to_list() == ["t00001"] and account.dropped == {"unmatched": 1}
    assert account.extra["first unmatched"] == f"{file} row 1"


HOSTILE = [
    3, None, [], "text", {}, {"a": 1}, {"input": 1, "output": 2}, {"text": 5, "task_id": "t00000"},
    {"text": "a", "task_id": ["t00000"]}, {"text": "a", "task_id": "t00000", "sample": -1},
    {"text": "a", "task_id": "t00000", "sample": True}, {"text": "a", "task_id": "t00000", "completion_ids": [2**40]},
    {"text": "a", "task_id": "t00000", "completion_ids": ["7"]}, {"text": "a", "task_id": "t00000", "logprobs": "ab"},
    {"text": "a", "task_id": "t00000", "prompt": 7}, {"task": 1, "traces": [1]}, {"task": {"data": 3}, "traces": {}},
    {"task": {}, "traces": [{"nodes": [{"sampled": True, "parent": 0, "message": {}, "token_ids": [1], "mask": []}]}]},
    {"content": [1], "token_ids": [], "token_loss_mask": []}, {"custom_id": 1, "response": {}},
    {"custom_id": "t00000", "response": None}, {"prompt": 1, "completion": [[1]]},
]  # fmt: skip


def test_hostile_rows_are_counted_and_the_others_taken(tmp_path: Path):
    """Rows of any shape are left out by reason, without a traceback; surrogates and NULs in a text are kept whole."""
    tasks = write(tmp_path / "tasks", schema.TASKS, [world_task(0)])
    good = [{"task_id": "t00000", "text": "\ud800 \x00 ok"}, {"task_id": "t00000", "text": "x", "logprobs": [1, 2]}]
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*HOSTILE, *good]))
    account, found = taken([file], tasks, tmp_path / "in", None)
    assert found["text"].to_list() == ["\ufffd \x00 ok", "x"] and found["logprobs"].null_count() == 2
    assert sum(account.dropped.values()) == len(HOSTILE)
    assert set(account.dropped) == {"unknown_form", "broken", "without_answer"} - {"without_answer"}


def test_a_loop_of_parents_ends(tmp_path: Path):
    """A trace whose messages are their own parents is read in bounded time."""
    tasks = write(tmp_path / "tasks", schema.TASKS, [world_task(0)])
    node = {"parent": 0, "message": {"content": "a"}, "sampled": True, "token_ids": [1], "mask": [True]}
    row = {"task": {"data": {"id": "t00000"}}, "traces": [{"nodes": [node]}]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    assert taken([tmp_path / "x.jsonl"], tasks, tmp_path / "in", None)[1]["text"].to_list() == ["a"]


def test_parsed_calls_of_a_trace_are_calls_again(tmp_path: Path):
    """A message with tool calls and no tokens becomes OpenAI's form, which `--protocol openai` reads."""
    tasks = write(tmp_path / "tasks", schema.TASKS, [world_task(0, "openai")])
    calls = [{"id": "1", "name": "find_hotel", "arguments": '{"nights": 0, "city": "Porto"}'}]
    nodes = [
        {"parent": None, "message": {"role": "user", "content": "x"}},
        {"parent": 0, "message": {"role": "assistant", "content": None, "tool_calls": calls}, "sampled": True},
    ]
    (tmp_path / "x.jsonl").write_text(json.dumps({"task": {"data": {"id": "t00000"}}, "traces": [{"nodes": nodes}]}))
    taken([tmp_path / "x.jsonl"], tasks, tmp_path / "in", None)
    run_score(tasks, tmp_path / "in", out=tmp_path / "scores", config=ScoreConfig(), options=Options())
    assert open_folder(tmp_path / "scores", schema.SCORES).load()["exact"].to_list() == [True]


def test_special_tokens_come_from_the_ids(tmp_path: Path):
    """A trainer logs Mistral's answer without its mark; with the logged ids it is read as right."""
    from support.bridge_world import special_tokenizer

    model = special_tokenizer(tmp_path / "tokenizer", special=("[TOOL_CALLS]",))
    marked, task = Chat.load(model), world_task(0, "mistral")
    tasks = write(tmp_path / "tasks", schema.TASKS, [task])
    ids = marked.completion_ids(task["gold_text"])
    logged = marked.tokenizer.decode(ids, skip_special_tokens=True)
    assert "[TOOL_CALLS]" not in logged
    row = {"step": 1, "prompt": "p", "completion": logged, "task_id": "t00000", "completion_ids": ids}
    pl.DataFrame([row]).write_parquet(tmp_path / "c.parquet")
    _, found = taken([tmp_path / "c.parquet"], tasks, tmp_path / "in", model)
    assert found["text"].to_list() == [task["gold_text"]]


def test_errors_name_the_way_out(world: World, tmp_path: Path):
    """Nothing matched, half a line, no file, an empty folder."""
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "a", "task_id": "nobody"}\n')
    with pytest.raises(DataError, match="none of 1 rows belongs to a task"):
        taken([file], world.tasks, tmp_path / "in", None)
    assert not (tmp_path / "in").exists()
    file.write_text('{"text": "a"}\n{"te')
    with pytest.raises(DataError, match=r"x\.jsonl row 2: not valid JSON"):
        taken([file], world.tasks, tmp_path / "in", None)
    (tmp_path / "empty").mkdir()
    for missing in ("nowhere", "empty"):
        with pytest.raises(DataError, match="no"):
            taken([tmp_path / missing], world.tasks, tmp_path / "in", None)


def test_a_rerun_resumes_and_another_dump_is_refused(world: World, chat: Chat, tmp_path: Path):
    """The same files give the same bytes; a folder with one file more is another input."""
    tasks, rollouts = world.load("tasks").to_dicts(), world.load("rollouts").to_dicts()
    dump("verl_new", tmp_path / "d" / "9", chat, tasks, rollouts[:500])
    taken([tmp_path / "d"], world.tasks, tmp_path / "in", tasks_per_shard=20)
    before = {one.name: one.read_bytes() for one in (tmp_path / "in").iterdir()}
    (tmp_path / "in" / "part-00001.parquet").unlink()
    taken([tmp_path / "d"], world.tasks, tmp_path / "in", tasks_per_shard=20)
    assert {one.name: one.read_bytes() for one in (tmp_path / "in").iterdir()} == before
    dump("verl_new", tmp_path / "d" / "10", chat, tasks, rollouts[500:])
    with pytest.raises(ConfigError, match="input files"):
        taken([tmp_path / "d"], world.tasks, tmp_path / "in", tasks_per_shard=20)
    _, found = taken([tmp_path / "d"], world.tasks, tmp_path / "in", options=Options(overwrite=True))
    assert found.height == 1000
    assert found["text"].to_list()[:500] == [row["text"].removesuffix("<|im_end|>") for row in rollouts[:500]]
