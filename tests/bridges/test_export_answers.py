"""`export` of right answers and pairs: what is imitated is right, clean and whole, and no argument is invented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bridge_world import POLICY, World, bridge_world, special_tokenizer, world_task
from test_export_tasks import history_task, rows_of

from toolsample_cli.bridges.stage import Paths, run
from toolsample_cli.config import ExportConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.models.chat import Chat
from toolsample_cli.stage import Options


def taken(world: World, out: Path, model: Path | None = POLICY, options: Options = Options(), **knobs):
    """(account, rows)"""
    paths = Paths(world.tasks, rollouts=world.rollouts, scores=world.scores)
    account = run(paths, out, str(model) if model else None, ExportConfig(**knobs), options)
    return account, rows_of(out)


def test_sft_text_is_what_was_sampled(world: World, tmp_path: Path):
    """Prompt and completion, tokenised together as TRL does, are the rollout's own ids; one right answer per task."""
    chat = Chat.load(POLICY)
    account, rows = taken(world, tmp_path / "x.jsonl", to="sft")
    assert account.rows_out == 125 and account.dropped == {}
    rollouts = {row["rollout_id"]: row for row in world.load("rollouts").to_dicts()}
    for row in rows:
        rollout = rollouts[f"{row['task_id']}/0/0"]
        ids = chat.tokenizer(row["prompt"] + row["completion"])["input_ids"]
        assert ids == [*rollout["prompt_ids"], *rollout["completion_ids"]]


def test_only_answers_worth_imitating_are_taken(world: World, tmp_path: Path):
    """Of eight answers the gold and the one with a thought remain; doubled keys, cut and wordy ones do not."""
    _, rows = taken(world, tmp_path / "x.jsonl", to="sft", per_task=9)
    texts = {}
    for row in rows:
        texts.setdefault(row["task_id"], []).append(row["completion"].removesuffix("<|im_end|>"))
    for task in world.load("tasks").to_dicts():
        gold = task["gold_text"]
        assert texts[task["task_id"]][:2] == [gold, f"<think>\nthis is it\n</think>\n\n{gold}"] or not json.loads(
            task["gold_json"]
        )
        assert not any("hostel" in text or '"city": "Porto", "city"' in text for text in texts[task["task_id"]])
    scores = world.load("scores")
    doubled = scores.filter(scores["exact"] & (scores["parse_status"] == "duplicate_key"))
    assert doubled.height  # exact and yet not worth imitating: the world has such answers


def test_an_unknown_end_is_no_right_answer(tmp_path: Path):
    """An answer that may have been cut is not imitated, and cannot be the rejected one either."""
    from support.bridge_world import write

    from toolsample_cli.shards import schema

    made = bridge_world(tmp_path / "a", [world_task(0)])
    rows = [{**row, "finish_reason": None} for row in made.load("rollouts").to_dicts()]
    unknown = World(made.tasks, write(tmp_path / "unknown", schema.ROLLOUTS, rows), made.scores)
    account, found = taken(unknown, tmp_path / "x.jsonl", to="dpo")
    assert (found, account.dropped) == ([], {"task_without_right_answer": 1})


def test_pairs_hold_a_right_and_the_worst_answer(world: World, tmp_path: Path):
    """chosen beats rejected; rejected ended by itself; both rewards are those of the scores."""
    account, rows = taken(world, tmp_path / "x.jsonl", to="dpo")
    assert account.rows_out == 125
    rewards = {}
    texts = world.load("rollouts").select("rollout_id", "text", "finish_reason")
    for row in world.load("scores").join(texts, on="rollout_id").to_dicts():
        if row["finish_reason"] == "stop":
            rewards.setdefault(row["task_id"], {})[row["text"]] = row["reward"]
    for row in rows:
        mine = rewards[row["task_id"]]
        assert row["reward_chosen"] == mine[row["chosen"].removesuffix("<|im_end|>")] == max(mine.values())
        assert row["reward_rejected"] == mine[row["rejected"].removesuffix("<|im_end|>")] == min(mine.values())
        assert row["reward_rejected"] < row["reward_chosen"]


def _rendered(row: dict, chat: Chat) -> str:
    """The openai form as a trainer renders it: arguments become objects again."""
    messages = []
    for turn in row["messages"]:
        calls = [
            {"type": "function", "function": {**one["function"], "arguments": json.loads(one["function"]["arguments"])}}
            for one in turn.get("tool_calls", [])
        ]
        messages.append({**turn, "content": turn["content"] or "", **({"tool_calls": calls} if calls else {})})
    return chat.tokenizer.apply_chat_template(messages, tools=row.get("tools"), tokenize=False)


def test_openai_messages_render_to_what_was_sampled(world: World, tmp_path: Path):
    """Several calls, nested values and no call: the template writes prompt and answer as we have them, in order."""
    chat = Chat.load(POLICY)
    account, rows = taken(world, tmp_path / "x.jsonl", None, to="openai")
    assert account.rows_out == 125
    for task, row in zip(world.load("tasks").to_dicts(), rows, strict=True):
        assert _rendered(row, chat) == chat.prompt_text(task) + task["gold_text"] + "<|im_end|>\n"
        for call in row["messages"][-1].get("tool_calls", []):
            assert isinstance(call["function"]["arguments"], str) and call["id"]


def test_llamafactory_turns_alternate_and_keep_thoughts(world: World, tmp_path: Path):
    """Objects as arguments, tools as JSON text, a thought before the calls."""
    _, rows = taken(world, tmp_path / "x.jsonl", None, to="llamafactory", per_task=2)
    thoughtful = [row["conversations"][-1] for row in rows if "<think>" in row["conversations"][-1]["value"]]
    assert {turn["from"] for turn in thoughtful} == {"function_call", "gpt"}
    for turn in thoughtful:
        rest = "[{" if turn["from"] == "function_call" else "I cannot"
        assert turn["value"].startswith(f"<think>\nthis is it\n</think>\n\n{rest}")
    for row in rows:
        sides = [turn["from"] in ("human", "observation") for turn in row["conversations"]]
        assert sides == [True, False] and isinstance(json.loads(row["tools"]), list)
        if row["conversations"][-1]["from"] == "function_call":
            value = row["conversations"][-1]["value"].rpartition("</think>\n\n")[2]
            assert all(isinstance(one["arguments"], dict) for one in json.loads(value))


def test_histories_keep_their_calls_and_tools_answers(tmp_path: Path):
    """OpenAI: every tool turn names its call. LLaMA-Factory: calls and observations alternate."""
    made = bridge_world(tmp_path / "w", [history_task(2), history_task(4)])
    _, rows = taken(made, tmp_path / "x.jsonl", None, to="openai")
    chat = Chat.load(POLICY)
    for row, task in zip(rows, made.load("tasks").to_dicts(), strict=True):
        assert row["messages"][3]["tool_call_id"] == row["messages"][2]["tool_calls"][0]["id"]
        assert _rendered(row, chat).startswith(chat.prompt_text(task))
    _, rows = taken(made, tmp_path / "y.jsonl", None, to="llamafactory")
    assert [turn["from"] for turn in rows[0]["conversations"]] == [
        "human", "function_call", "observation", "gpt", "human", "function_call",
    ]  # fmt: skip
    assert rows[0]["system"] == "Be brief."


def test_what_a_form_cannot_hold_is_counted(tmp_path: Path):
    """Two requests in a row (LLaMA-Factory skips such rows in silence), and thoughts for OpenAI."""
    twice = json.dumps([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    made = bridge_world(tmp_path / "w", [world_task(0), world_task(1, messages_json=twice)])
    account, rows = taken(made, tmp_path / "x.jsonl", None, to="llamafactory")
    assert (len(rows), account.dropped) == (1, {"turns_do_not_alternate": 1})
    account, rows = taken(made, tmp_path / "y.jsonl", None, to="openai", per_task=2)
    assert (len(rows), account.dropped) == (2, {"has_a_thought": 2})


def test_a_protocol_that_no_template_knows_stays_text(tmp_path: Path):
    """RLLA answers are plain text in every form: the prompt's own words ask for exactly that."""
    made = bridge_world(tmp_path / "w", [world_task(0, "rlla")])
    _, rows = taken(made, tmp_path / "x.jsonl", None, to="openai")
    assert rows[0]["messages"][-1] == {"role": "assistant", "content": made.load("tasks")["gold_text"][0]}
    assert "tools" not in rows[0]


def test_types_of_a_typeless_protocol_come_from_the_tools(tmp_path: Path):
    """Qwen3-Coder's tags hold text only: numbers, objects and lists are numbers, objects and lists again."""
    made = bridge_world(tmp_path / "w", [world_task(4, "qwen_xml"), world_task(5, "qwen_xml")])
    _, rows = taken(made, tmp_path / "x.jsonl", None, to="openai")
    arguments = [json.loads(row["messages"][-1]["tool_calls"][0]["function"]["arguments"]) for row in rows]
    assert arguments == [json.loads(task["gold_json"])[0]["arguments"] for task in made.load("tasks").to_dicts()]


def test_a_start_token_is_not_doubled(tmp_path: Path):
    """With a tokenizer that adds one, prompt and completion together are still the ids that were sampled."""
    model = special_tokenizer(tmp_path / "tokenizer", start=True)
    made = bridge_world(tmp_path / "w", [world_task(0)], model)
    _, rows = taken(made, tmp_path / "x.jsonl", model, to="sft")
    rollout = made.load("rollouts").to_dicts()[0]
    ids = Chat.load(model).tokenizer(rows[0]["prompt"] + rows[0]["completion"])["input_ids"]
    assert ids == [*rollout["prompt_ids"], *rollout["completion_ids"]]


def test_refusals(world: World, tmp_path: Path):
    """Missing folders, another round's rollouts, test data, a missing model."""
    with pytest.raises(ConfigError, match="--rollouts and --scores"):
        run(Paths(world.tasks), tmp_path / "x.jsonl", str(POLICY), ExportConfig(to="sft"), Options())
    with pytest.raises(ConfigError, match="needs --model"):
        taken(world, tmp_path / "x.jsonl", None, to="sft")
    other = bridge_world(tmp_path / "w", [world_task(500, split="test")])
    with pytest.raises(DataError, match="is not in"):
        taken(World(world.tasks, other.rollouts, world.scores), tmp_path / "x.jsonl", to="sft")
    with pytest.raises(DataError, match="benchmark test data"):
        taken(other, tmp_path / "x.jsonl", to="sft")
