"""`export` of tasks: the trainer will tokenise our prompt, the label holds all that the reward needs."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from support.bridge_world import POLICY, World, bridge_world, special_tokenizer, world_task, write

from toolsample_cli.bridges.label import Label
from toolsample_cli.bridges.prompts import PromptWriter
from toolsample_cli.bridges.stage import Paths, run
from toolsample_cli.bridges.task_rows import TASK_FORMS
from toolsample_cli.config import ExportConfig, FilterConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.filter.stage import run as run_filter
from toolsample_cli.models.chat import Chat
from toolsample_cli.shards import schema
from toolsample_cli.stage import Account, Options


def exported(tasks: Path, out: Path, model: Path | None = POLICY, options: Options = Options(), groups=None, **knobs):
    """(account, rows)"""
    config = ExportConfig(**knobs)
    account = run(Paths(tasks, groups), out, str(model) if model else None, config, options)
    return account, rows_of(out)


def rows_of(out: Path) -> list[dict]:
    if out.suffix == ".parquet":
        return pl.read_parquet(out).to_dicts()
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def history_task(number: int, **overrides) -> dict:
    """A task whose history holds a system turn, a call and the tool's answer."""
    function = {"name": "find_hotel", "arguments": {"nights": 2, "city": "Porto"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a hotel in Porto"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": '{"code": "B7"}'},
        {"role": "assistant", "content": "It is B7."},
        {"role": "user", "content": "cancel it"},
    ]
    return world_task(number, messages_json=json.dumps(messages), **overrides)


@pytest.mark.parametrize("form", TASK_FORMS)
@pytest.mark.parametrize("start", [False, True], ids=["plain", "start_token"])
def test_every_form_gives_our_prompt_token_by_token(form: str, start: bool, tmp_path: Path):
    """All prompts equal ours in every place of the tools, with histories and with a tokenizer that adds a token."""
    model = special_tokenizer(tmp_path / "tokenizer", start=start)
    tasks = [world_task(0), world_task(3), history_task(4), history_task(5)]
    write(tmp_path / "tasks", schema.TASKS, tasks)
    chat = Chat.load(model)
    for place in TASK_FORMS[form].places:
        out = tmp_path / f"{place}{TASK_FORMS[form].suffix}"
        account, rows = exported(tmp_path / "tasks", out, model, to=form, prompt=place)
        assert account.extra["prompts equal to ours"] == "4 of 4"
        for task, row in zip(tasks, rows, strict=True):
            prompt = row.get("prompt", row.get("input", row.get("messages")))
            if isinstance(prompt, str):
                ids = chat.tokenizer(prompt, add_special_tokens=TASK_FORMS[form].adds_special)["input_ids"]
            elif place == "system":
                assert all(turn.keys() == {"role", "content"} for turn in prompt)
                ids = chat.encode(chat.render(prompt))
            else:
                turns = json.loads(row["extra_info"]["messages_json"]) if form == "verl" else prompt
                tools = json.loads(row["extra_info"]["tools_json"]) if form == "verl" else row["tools"]
                ids = chat.tokenizer.apply_chat_template(
                    turns, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
                )
            assert ids == chat.prompt_ids(task)


@pytest.mark.parametrize("form", TASK_FORMS)
def test_the_label_survives_and_holds_the_task(form: str, world: World, tmp_path: Path):
    """Id, protocol, gold, kind and tools of every task come back from the field that trainers pass on."""
    _, rows = exported(world.tasks, tmp_path / f"x{TASK_FORMS[form].suffix}", to=form)
    texts = [row["reward_model"]["ground_truth"] if form == "verl" else row["label"] for row in rows]
    tasks = world.load("tasks").to_dicts()
    assert [Label.read(text) for text in texts] == [Label.of(task) for task in tasks]


def test_a_protocol_whose_tools_are_in_the_messages_has_them_once(tmp_path: Path):
    """RLLA writes tools into the system turn: no form hands them to the template a second time."""
    write(tmp_path / "tasks", schema.TASKS, [world_task(0, "rlla"), world_task(1, "rlla")])
    _, rows = exported(tmp_path / "tasks", tmp_path / "x.jsonl", None, to="slime")
    assert [row["tools"] for row in rows] == [[], []]
    _, rows = exported(tmp_path / "tasks", tmp_path / "x.parquet", None, to="verl")
    assert [row["extra_info"]["tools_json"] for row in rows] == ["[]", "[]"]
    assert Label.read(rows[0]["reward_model"]["ground_truth"]).tools[0]["name"] == "find_hotel"


def test_demonstrations_reach_the_trainer(tmp_path: Path):
    """A few-shot task is exported with its demonstrations, also for the agent loop."""
    demo = {"messages": [{"role": "user", "content": "shown"}, {"role": "assistant", "content": "so"}]}
    write(tmp_path / "tasks", schema.TASKS, [world_task(0, demos_json=json.dumps([demo]))])
    _, rows = exported(tmp_path / "tasks", tmp_path / "x.parquet", to="verl")
    assert [turn["content"] for turn in rows[0]["prompt"]][1:] == ["shown", "so", "please do number 0"]
    assert "shown" in rows[0]["extra_info"]["messages_json"]


def test_verdicts_travel(world: World, tmp_path: Path):
    """Rows carry their group's numbers; a condition on them chooses tasks."""
    run_filter(world.scores, None, tmp_path / "groups", FilterConfig(method="dapo"), Options())
    _, rows = exported(world.tasks, tmp_path / "x.parquet", groups=tmp_path / "groups")
    infos = [row["extra_info"] for row in rows]
    assert {info["n"] for info in infos} == {8} and all(info["reward_var"] > 0 for info in infos)
    where = "keep AND n_exact = 3 AND gold_kind = 'calls'"
    account, some = exported(world.tasks, tmp_path / "y.parquet", groups=tmp_path / "groups", where=where)
    chosen = [info for info, row in zip(infos, rows, strict=True) if info["keep"] and info["n_exact"] == 3]
    assert 0 < account.rows_out == len(some) <= len(chosen) < 125
    with pytest.raises(ConfigError, match="n_exact"):
        exported(world.tasks, tmp_path / "z.parquet", where="n_exact > 0")


@pytest.mark.parametrize("place", ["messages", "rendered", "system"])
def test_long_prompts_are_left_out_whole(place: str, tmp_path: Path):
    """A prompt over the limit is counted, never cut, wherever the tools are."""
    long = world_task(1, messages_json=json.dumps([{"role": "user", "content": "so " * 300}]))
    write(tmp_path / "tasks", schema.TASKS, [world_task(0), long])
    limit = len(Chat.load(POLICY).prompt_ids(world_task(0)))
    for allowed, out in ((limit, 1), (limit - 1, 0)):
        account, rows = exported(
            tmp_path / "tasks", tmp_path / f"{allowed}.jsonl", to="slime", prompt=place, max_prompt_tokens=allowed
        )
        assert (len(rows), account.dropped) == (out, {"prompt_too_long": 2 - out})
    with pytest.raises(ConfigError, match="needs --model"):
        exported(tmp_path / "tasks", tmp_path / "x.jsonl", None, to="slime", max_prompt_tokens=5)


def test_test_rows_are_refused(tmp_path: Path):
    """Benchmark rows leave the house only when asked for, and nothing is left of a refused export."""
    write(tmp_path / "tasks", schema.TASKS, [world_task(0), world_task(1, split="test")])
    with pytest.raises(DataError, match=r"row 2 \(task t00001\): benchmark test data"):
        exported(tmp_path / "tasks", tmp_path / "x.parquet")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith((".", "x"))] == []
    assert exported(tmp_path / "tasks", tmp_path / "x.parquet", allow_test_data=True)[0].rows_out == 2


def test_a_template_without_a_place_for_tools_in_the_system_turn(tmp_path: Path):
    """Such tasks are left out by reason; a prompt that lost its tools never leaves."""
    model = special_tokenizer(tmp_path / "tokenizer")
    template = (model / "chat_template.jinja").read_text(encoding="utf-8")
    refuses = "{%- if messages[0].role == 'system' and not tools %}{{ raise_exception('no system') }}{% endif %}"
    (model / "chat_template.jinja").write_text(refuses + template, encoding="utf-8")
    write(tmp_path / "tasks", schema.TASKS, [world_task(0)])
    account, rows = exported(tmp_path / "tasks", tmp_path / "x.parquet", model)
    assert (rows, account.dropped) == ([], {"no_place_for_tools": 1})
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    with pytest.raises(ConfigError, match="leaves the tools out"):
        exported(tmp_path / "tasks", tmp_path / "y.parquet", model)


def test_a_call_rendered_otherwise_than_we_write_it_still_gives_our_prompt(tmp_path: Path):
    """The history's calls are taken as the template writes them, not as our own writer would."""
    model = special_tokenizer(tmp_path / "tokenizer")
    template = (model / "chat_template.jinja").read_text(encoding="utf-8")
    (model / "chat_template.jinja").write_text(template.replace("<tool_call>", "CALL:"), encoding="utf-8")
    prompt = PromptWriter(Chat.load(model)).system(history_task(0))
    assert prompt.same and "CALL:" in prompt.form[2]["content"]


def test_special_tokens_that_verl_would_lose_are_named(tmp_path: Path):
    """Mistral's [TOOL_CALLS] is special: the closing line says what keeps it."""
    write(tmp_path / "tasks", schema.TASKS, [world_task(0, "mistral")])
    model = special_tokenizer(tmp_path / "tokenizer", special=("[TOOL_CALLS]",))
    account, _ = exported(tmp_path / "tasks", tmp_path / "x.parquet", model)
    assert "mistral" in account.extra["special tokens"]
    account, _ = exported(tmp_path / "tasks", tmp_path / "y.parquet", POLICY)
    assert "special tokens" not in account.extra


def test_refusals_name_the_way_out(world: World, tmp_path: Path):
    """Places a trainer cannot read, Parquet for nested values, an existing file, a folder, a missing model."""
    wrong = [
        ({"to": "openrlhf", "prompt": "system"}, "x.jsonl", POLICY, "cannot read tools there"),
        ({"to": "trl"}, "x.parquet", POLICY, r"written as \.jsonl"),
        ({"to": "trl"}, "x.jsonl", None, "needs --model"),
        ({"to": "verl"}, "", POLICY, "is a folder"),
    ]
    for knobs, name, model, message in wrong:
        with pytest.raises(ConfigError, match=message):
            exported(world.tasks, tmp_path / name, model, **knobs)
    (tmp_path / "x.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        exported(world.tasks, tmp_path / "x.jsonl", to="trl")
    assert (tmp_path / "x.jsonl").read_text() == "mine"


def test_the_same_export_has_the_same_bytes(world: World, tmp_path: Path):
    """Twice the same, and a dry run writes nothing but counts the same."""
    for name in ("a", "b"):
        exported(world.tasks, tmp_path / f"{name}.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    dry: Account = run(Paths(world.tasks), tmp_path / "c.parquet", str(POLICY), ExportConfig(), Options(dry_run=True))
    assert dry.rows_out == 125 and not (tmp_path / "c.parquet").exists()


def test_a_world_made_twice_is_equal(tmp_path: Path):
    """The support world itself is deterministic."""
    one = bridge_world(tmp_path / "a", [world_task(0)])
    two = bridge_world(tmp_path / "b", [world_task(0)])
    assert one.load("scores").equals(two.load("scores"))
