"""How models are asked: dialogues with simulated tools, servers, RLLA's prompt, a base to compare with.

python -m pytest tests/test_bfcl_models.py
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from support.bfcl_synthetic import hermes_text, python_text
from support.bfcl_world import write_world
from support.tiny_model import tiny_model

from toolsample_cli.bfcl import dialogue, environment, memory_tasks, paired, prompts, toolrl_prompt
from toolsample_cli.bfcl.answering import LocalModel, Reply, check_model_settings, open_model
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.inside import pycalls
from toolsample_cli.bfcl.judging import judge, judge_all
from toolsample_cli.bfcl.questions import official_question, read_questions
from toolsample_cli.bfcl.stage import Against, QuestionSource, _as_trained, run
from toolsample_cli.config import EvalConfig
from toolsample_cli.errors import ConfigError, MissingDependency, StageFailure
from toolsample_cli.models.chat import SELF_EXAMPLES
from toolsample_cli.models.prompting import prompting_of
from toolsample_cli.rollout.engines import server_client
from toolsample_cli.shards import schema
from toolsample_cli.shards.journal import Journal
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options


@pytest.fixture(scope="module")
def scorer() -> Iterator[Checker]:
    """The v4 checker."""
    try:
        place = environment.provide("v4")
    except MissingDependency as missing:
        pytest.skip(str(missing))
    with Checker(place) as scorer:
        yield scorer


class Scripted:
    """A model whose replies are a function of the prompt's key; remembers what it was sent."""

    def __init__(self, reply):
        self.reply, self.sent = reply, {}

    def plan(self, prompts, known):
        return [list(prompts)] if prompts else []

    def answer(self, group):
        for prompt in group:
            self.sent[prompt.key] = prompt
            said = self.reply(prompt.key)
            yield said if isinstance(said, Reply) else Reply(prompt.key, "prompt", said, finish_reason="stop")

    def close(self):
        pass


def _hold(scorer: Checker, questions, model, protocol: str, path: Path) -> dict[str, dict]:
    style = prompts.Style(protocol, lambda q: scorer.ask("prompted", entry=q.official))
    constants = scorer.ask("constants")
    with Journal(path, {}) as journal:
        going = [dialogue.Dialogue(q, style, constants, list(q.functions)) for q in questions]
        dialogue.hold_all(model, scorer, going, journal, lambda _: None)
    return journal.records


def _golden(scorer: Checker, category: str, count: int, written) -> tuple[list, dict[str, list[str]]]:
    """Questions whose ground truth names all arguments, with the replies turn by turn."""
    truths = scorer.ask("answers", category=category, seconds=60)
    questions, replies = [], {}
    for row in scorer.entries(category):
        turns = [[pycalls.decode(string)[0] for string in turn] for turn in truths[row["id"]]]
        named = all("()" in s or "=" in s for turn in truths[row["id"]] for s in turn)
        if named and len(questions) < count:
            questions.append(official_question(category, row))
            calls = [[pair for call in turn for pair in call.items()] for turn in turns]
            replies[row["id"]] = [written(turn) if turn else "What is missing?" for turn in calls]
    return questions, replies


def _script(replies: dict[str, list[str]]):
    def reply(key: str) -> str:
        entry_id, _, turn, _, step = key.split(" ")
        return replies[entry_id][int(turn) - 1] if step == "0" else "That is done."

    return reply


@pytest.mark.parametrize(("protocol", "written"), [("hermes", hermes_text), ("prompting", python_text)])
def test_dialogues_that_call_as_the_gold_does_are_right(scorer: Checker, tmp_path: Path, protocol: str, written):
    """Held-out functions are handed over, results come back, the official checker is content."""
    for category in ("multi_turn_miss_func", "multi_turn_long_context"):
        questions, replies = _golden(scorer, category, 6, written)
        model = Scripted(_script(replies))
        records = _hold(scorer, questions, model, protocol, tmp_path / protocol / f"{category}.jsonl")
        for question in questions:
            row, _ = judge(scorer, question, records[question.id], protocol)
            assert row["valid"], (question.id, row["error_type"])
            assert json.loads(row["calls_json"])[0].keys() == {"name", "arguments"}
    late = next(q for q in _golden(scorer, "multi_turn_miss_func", 6, written)[0])
    turn = int(next(iter(late.official["missed_function"])))
    held = late.official["missed_function"][str(turn)][0]["name"]
    records = _hold(scorer, [late], model := Scripted(lambda key: "No."), protocol, tmp_path / protocol / "late.jsonl")
    before, after = (model.sent[f"{late.id} turn {number} step 0"] for number in (turn, turn + 1))
    assert held not in [f["name"] for f in before.functions]
    assert held in [f["name"] for f in after.functions]
    assert "updated some more functions" in after.messages[-1]["content"]
    assert (held in after.messages[-1]["content"]) == (protocol == "prompting")
    assert judge(scorer, late, records[late.id], protocol)[0]["error_type"] == "multi_turn:empty_turn_model_response"


def test_results_of_calls_go_back_to_the_model(scorer: Checker, tmp_path: Path):
    """As tool messages after the assistant's calls; an unknown function is told as Python would tell it."""
    question = official_question("multi_turn_base", scorer.entries("multi_turn_base")[0])
    script = {"step 0": hermes_text([("pwd", {}), ("no_such_tool", {"a": 1})]), "step 1": "Done."}
    model = Scripted(lambda key: script.get(key[-6:], "Done."))
    _hold(scorer, [question], model, "hermes", tmp_path / "a.jsonl")
    spoken, *told = model.sent[f"{question.id} turn 1 step 1"].messages[-3:]
    assert [call["function"]["name"] for call in spoken["tool_calls"]] == ["pwd", "no_such_tool"]
    assert [turn["role"] for turn in told] == ["tool", "tool"]
    assert "current_working_directory" in told[0]["content"]
    assert told[1]["content"] == "Error during execution: name 'no_such_tool' is not defined"


def test_a_model_that_never_stops_calling_is_given_up(scorer: Checker, tmp_path: Path):
    """After more than 20 steps, as officially; the dialogue is wrong, not an error."""
    question = official_question("multi_turn_base", scorer.entries("multi_turn_base")[0])
    model = Scripted(lambda key: hermes_text([("pwd", {})]))
    records = _hold(scorer, [question], model, "hermes", tmp_path / "a.jsonl")
    assert [len(turn) for turn in records[question.id]["turns"]] == [21]
    row, _ = judge(scorer, question, records[question.id], "hermes")
    assert (row["valid"], row["error_type"]) == (False, "multi_turn:force_terminated")


def test_one_failed_step_is_an_error_of_that_dialogue_only(scorer: Checker, tmp_path: Path):
    """The official generator loses the entry for good; a rerun holds it again, the others are kept."""
    questions = [official_question("multi_turn_base", row) for row in scorer.entries("multi_turn_base")[:2]]
    broken = Scripted(lambda key: Reply(key, "p", error="timeout") if " turn 2" in key and "_0 " in key else "Done.")
    records = _hold(scorer, questions, broken, "hermes", tmp_path / "a.jsonl")
    assert records[questions[0].id]["error"] == "multi_turn_base_0 turn 2 step 0: timeout"
    assert "turns" in records[questions[1].id]
    assert [row["valid"] for row, _ in judge_all(scorer, questions, records, "hermes")] == [None, False]
    healed = _hold(scorer, questions, Scripted(lambda key: "Done."), "hermes", tmp_path / "a.jsonl")
    assert "turns" in healed[questions[0].id]


def test_a_dialogue_goes_on_after_the_scorer_was_replaced(scorer: Checker, tmp_path: Path):
    """The simulated tools are set up anew from the calls so far."""
    questions, replies = _golden(scorer, "multi_turn_base", 1, hermes_text)
    script = _script(replies)

    def reply(key: str) -> str:
        if key.endswith("turn 2 step 0"):
            scorer._stop()
        return script(key)

    records = _hold(scorer, questions, Scripted(reply), "hermes", tmp_path / "a.jsonl")
    assert judge(scorer, questions[0], records[questions[0].id], "hermes")[0]["valid"]


def test_hostile_steps_end_a_dialogue_as_wrong(scorer: Checker, tmp_path: Path, monkeypatch):
    """Code in arithmetic, endless arithmetic, a huge reply."""
    monkeypatch.chdir(tmp_path)
    question = official_question("multi_turn_base", scorer.entries("multi_turn_base")[0])
    for number, (text, fault) in enumerate(
        [
            ("[cd(folder=__import__('os').popen('touch owned') + 'x')]", "refused:code"),
            ("[cd(folder=9**9**9)]", "refused:code"),
            ("x" * 10_000_000, "refused:too_long"),
        ]
    ):
        records = _hold(scorer, [question], Scripted(lambda key, t=text: t), "prompting", tmp_path / f"{number}.jsonl")
        row, _ = judge(scorer, question, records[question.id], "prompting")
        assert (row["valid"], row["error_type"]) == (False, fault)
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("protocol", ["hermes", "prompting"])
def test_memory_is_filled_by_conversations_and_survives_a_kill(scorer: Checker, tmp_path: Path, protocol: str):
    """What one conversation notes down, the next and the questions see; a rerun fills it anew without asking."""
    category = "memory_rec_sum"
    rows = [row for row in scorer.entries(category) if not memory_tasks.is_conversation(row["id"])]
    questions = [official_question(category, row) for row in rows if row["scenario"] == "finance"][:2]
    written = hermes_text if protocol == "hermes" else python_text

    def reply(key: str) -> str:
        if "prereq" in key:
            note = key.split(" ")[0]
            return written([("memory_append", {"text": f"<{note}>"})]) if key.endswith("turn 1 step 0") else "Noted."
        return "{'answer': 'I do not know', 'context': 'none'}"

    def ask_questions(path: Path) -> Scripted:
        style = prompts.Style(protocol, lambda q: scorer.ask("prompted", entry=_shown(q)))
        model = Scripted(reply)
        with Journal(path, {}) as journal:
            holder = memory_tasks.Memories(model, scorer, style, scorer.ask("constants"), journal)
            holder.hold_all(questions, lambda _: None)
        return model

    model = ask_questions(tmp_path / "a.jsonl")
    sent = model.sent[f"{questions[1].id} turn 1 step 0"]
    notes = [key.split(" ")[0] for key in model.sent if key.endswith("turn 1 step 0") and "prereq" in key]
    assert len(notes) == 7
    assert all(f"<{note}>" in sent.messages[0]["content"] for note in notes)
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[:-1]))
    again = ask_questions(tmp_path / "b.jsonl")
    assert not [key for key in again.sent if "prereq" in key]
    assert again.sent[f"{questions[1].id} turn 1 step 0"].messages == sent.messages
    records = Journal(tmp_path / "b.jsonl", {}).records
    row, _ = judge(scorer, questions[1], records[questions[1].id], protocol)
    assert (row["valid"], row["error_type"]) == (False, "agentic:answer_not_found")


@pytest.mark.slow
def test_the_key_value_memory_runs_in_its_own_environment(tmp_path: Path):
    """Its search needs numpy and a ranking library, which only this category installs."""
    with Checker(environment.provide("v4", memory=True)) as scorer:
        category = "memory_kv"
        row = next(row for row in scorer.entries(category) if not memory_tasks.is_conversation(row["id"]))
        note = hermes_text([("core_memory_add", {"key": "name", "value": "Michael"})])
        look = hermes_text([("core_memory_key_search", {"query": "name", "k": 1})])

        def reply(key: str) -> str:
            if "prereq" in key:
                return note if key.split(" ")[0].endswith("-0") and key.endswith("turn 1 step 0") else "Noted."
            return look if key.endswith("step 0") else "{'answer': 'Michael', 'context': 'he said so'}"

        model = Scripted(reply)
        with Journal(tmp_path / "a.jsonl", {}) as journal:
            holder = memory_tasks.Memories(
                model, scorer, prompts.Style("hermes", list), scorer.ask("constants"), journal
            )
            holder.hold_all([question := official_question(category, row)], lambda _: None)
        assert "Michael" in model.sent[f"{row['id']} turn 1 step 0"].messages[0]["content"]
        assert "ranked_results" in model.sent[f"{row['id']} turn 1 step 1"].messages[-1]["content"]
        assert judge(scorer, question, journal.records[row["id"]], "hermes")[0]["valid"]


def _shown(question) -> dict:
    return {"id": question.id, "question": question.turns, "function": question.functions}


def test_questions_about_a_failed_conversation_are_errors(scorer: Checker, tmp_path: Path):
    """Instead of being asked with an empty memory, as officially."""
    category = "memory_rec_sum"
    row = next(row for row in scorer.entries(category) if not memory_tasks.is_conversation(row["id"]))
    model = Scripted(lambda key: Reply(key, "p", error="timeout") if "prereq" in key else "x")
    with Journal(tmp_path / "a.jsonl", {}) as journal:
        holder = memory_tasks.Memories(model, scorer, prompts.Style("hermes", list), scorer.ask("constants"), journal)
        holder.hold_all([official_question(category, row)], lambda _: None)
        assert "conversation memory_rec_sum_prereq_" in journal.records[row["id"]]["error"]


# ---- RLLA ------------------------------------------------------------------------------------------------------------


def test_rlla_prompts_number_the_tools_and_hold_the_history(tmp_path: Path):
    """The layout of ToolRL; the tags and the JSON of a call are spelled out."""
    question = read_questions(write_world(tmp_path / "world"))[1]
    style = prompts.Style("rlla", lambda q: [])
    history = [
        *style.first(question),
        {"role": "assistant", "content": "<think> mail </think>\n<tool_call>\n{}\n</tool_call>"},
        {"role": "tool", "name": "send_mail(to='Ana')", "content": "sent"},
        {"role": "user", "content": "And the room?"},
    ]
    system, user = style.prompt(question.id, history, question.functions).messages
    assert "1. Name: send_mail\nDescription: Send a mail.\nParameters: {" in system["content"]
    assert "2. Name: rooms.book" in system["content"]
    assert user["content"].startswith("**Dialogue Records History**\n<user> Book Oak, mail Ana. </user>\n\n<think>")
    assert "</tool_call>\n<obs> [{" in user["content"]
    assert user["content"].endswith("<user> And the room? </user>")


def test_rlla_takes_its_system_prompt_from_the_tasks_a_model_was_trained_on(tmp_path: Path):
    """Their wording to the letter, the question's tools in place of theirs."""
    text = "Our own words.\n\n**Tools**\n1. Name: old\nDescription: d\nParameters: {}\n2. Name: older\nDescription: e\nParameters: {}\n\n**Format** x"  # fmt: skip  # noqa: E501
    row = {column.name: "" for column in schema.TASKS.columns} | {
        "task_id": "a", "protocol": "rlla", "gold_kind": "none", "demo_task_ids": [], "parent_task_id": None,
        "messages_json": json.dumps([{"role": "system", "content": text}, {"role": "user", "content": "u"}]),
    }  # fmt: skip
    with Output(tmp_path / "tasks", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, [row]))
        output.finish()
    found = toolrl_prompt.template(tmp_path / "tasks")
    assert toolrl_prompt.system(found, [{"name": "new", "description": "n", "parameters": {}}]) == (
        "Our own words.\n\n**Tools**\n1. Name: new\nDescription: n\nParameters: {}\n\n**Format** x"
    )
    row["protocol"] = "hermes"
    with Output(tmp_path / "other", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, [row]))
        output.finish()
    with pytest.raises(ConfigError, match="no task with an RLLA system prompt"):
        toolrl_prompt.template(tmp_path / "other")


def test_a_checkpoint_is_asked_as_its_record_says(tmp_path: Path):
    """Protocol, RLLA's system prompt and self-made examples; what is given on the command line comes first."""
    system = "Our words.\n\n**Tools**\n1. Name: old\nDescription: d\nParameters: {}\n\n**Format** x"
    row = {column.name: "" for column in schema.TASKS.columns} | {
        "task_id": "a", "protocol": "rlla", "gold_kind": "none", "demo_task_ids": [], "parent_task_id": None,
        "messages_json": json.dumps([{"role": "system", "content": system}, {"role": "user", "content": "u"}]),
    }  # fmt: skip
    with Output(tmp_path / "tasks", schema.TASKS, {}) as output:
        output.write(0, schema.frame(schema.TASKS, [row]))
        output.finish()
    asked = prompting_of(open_folder(tmp_path / "tasks", schema.TASKS), self_examples=True)
    (tmp_path / "model" / "trainer").mkdir(parents=True)
    state = {"rounds": 1, "config": {"lr": 1e-6, "prompting": asked.record()}}
    (tmp_path / "model" / "trainer" / "state.json").write_text(json.dumps(state))
    config, found = _as_trained(str(tmp_path / "model"), EvalConfig())
    assert (config.protocol, config.self_examples) == ("rlla", True)
    assert toolrl_prompt.system(found, [{"name": "new", "parameters": {}}]).startswith(
        "Our words.\n\n**Tools**\n1. Name: new"
    )
    given = EvalConfig(protocol="hermes")
    assert _as_trained(str(tmp_path / "model"), given) == (given, None)
    assert _as_trained(str(tmp_path), EvalConfig()) == (given, None)


def test_rlla_replies_are_read_as_toolrls_own_handler_reads_them():
    """The last block counts, one object a line, broken lines and a tool called None are dropped."""
    reply = (
        '<think> x </think>\n<tool_call>\n{"name": "early", "parameters": {}}\n</tool_call>\n<tool_call>\n'
        '{"name": "f", "parameters": {"a": 1}}\n{broken\n{"name": "None", "parameters": {}}\n'
        '{"name": "g", "arguments": {}}\n</tool_call>\n<response> ok </response>'
    )
    assert toolrl_prompt.toolrl_calls(reply) == [["f", {"a": 1}]]
    assert toolrl_prompt.toolrl_calls("<think> x </think> <response> no </response>") == []


# ---- servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict], list]]:
    """(base URL, requests that came, a queue of replies: status and body, or a function of the request)."""
    seen: list[dict] = []
    replies: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(request)
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
            status, body = reply(request) if callable(reply) else reply
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}/v1", seen, replies
    http.shutdown()
    http.server_close()


def _said(content: str | None, *calls: tuple[str, str]) -> tuple[int, dict]:
    tools = [{"id": "c", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    message = {"role": "assistant", "content": content, **({"tool_calls": tools} if tools else {})}
    return 200, {"choices": [{"message": message, "finish_reason": "tool_calls" if tools else "stop"}]}


def _config(url: str, **settings) -> EvalConfig:
    return EvalConfig(backend="openai", base_url=url, concurrency=1, **settings)


def _rows(out: Path) -> dict[str, dict]:
    return {row["entry_id"]: row for row in pl.read_parquet(out / "entries" / "part-00000.parquet").to_dicts()}


def test_a_server_is_asked_with_tools_and_its_calls_are_judged(scorer: Checker, server, tmp_path: Path):
    """Dots become underscores on the way out and are understood on the way back; broken arguments are no call."""
    url, seen, replies = server
    booked = ("rooms_book", json.dumps({"room": "Oak", "seats": 6}))

    def reply(request: dict):
        if len(request["tools"]) == 2:
            return _said(None, booked, ("send_mail", '{"to": "Ana"}'))
        return _said(None, ("send_mail", "{broken")) if "Peru" in str(request["messages"]) else _said(None, booked)

    replies.append(reply)
    world = write_world(tmp_path / "world")
    run("model-x", out=tmp_path / "out", sources=QuestionSource(world), config=_config(url), options=Options())
    rows = _rows(tmp_path / "out")
    assert [rows[key]["valid"] for key in sorted(rows)] == [True, True, True]
    assert {request["model"] for request in seen} == {"model-x"}
    assert seen[0]["temperature"] == 0.0
    assert seen[-1]["tools"][0]["function"]["name"] == "rooms_book"
    assert seen[-1]["tools"][0]["function"]["parameters"]["type"] == "object"
    assert (tmp_path / "out" / "result" / "gpt-4o-2024-11-20-FC" / "non_live").is_dir()
    keep = _config(url, dots="keep")
    run("model-x", out=tmp_path / "kept", sources=QuestionSource(world), config=keep, options=Options())
    assert seen[-1]["tools"][0]["function"]["name"] == "rooms.book"
    assert _rows(tmp_path / "kept")["simple_python_0"]["error_type"] == "simple_function_checker:wrong_func_name"


def test_failing_requests_are_retried_then_errors_and_a_rerun_heals_them(
    scorer: Checker, server, tmp_path: Path, monkeypatch
):
    """500, broken JSON, an answer without choices: never a correct refusal."""
    monkeypatch.setattr(server_client, "BACKOFF", 0.01)
    url, seen, replies = server
    world = write_world(tmp_path / "world")
    replies += [(500, {"error": "busy"}), (200, b"{torn"), _said("No tool fits."), (400, {"error": "no"}), (200, {})]
    account = run("m", out=tmp_path / "out", sources=QuestionSource(world), config=_config(url), options=Options())
    rows = _rows(tmp_path / "out")
    assert rows["irrelevance_0"]["valid"] is True  # the third try of the first question
    assert rows["parallel_multiple_0"]["valid"] is None
    assert "400" in rows["parallel_multiple_0"]["error_type"]
    assert "malformed reply" in rows["simple_python_0"]["error_type"]
    assert "2 answers failed" in account.report
    asked = len(seen)
    replies[:] = [_said("No.")]
    run("m", out=tmp_path / "out", sources=QuestionSource(world), config=_config(url), options=Options())
    assert len(seen) == asked + 2
    assert [row["valid"] for row in _rows(tmp_path / "out").values()].count(None) == 0


def test_a_dead_server_ends_the_run_with_one_line(scorer: Checker, tmp_path: Path):
    """Instead of waiting for ever or counting refusals."""
    world = write_world(tmp_path / "world")
    with pytest.raises(StageFailure, match="no server answers"):
        run(
            "m",
            out=tmp_path / "out",
            sources=QuestionSource(world),
            config=_config("http://127.0.0.1:9/v1"),
            options=Options(),
        )
    with pytest.raises(ConfigError, match="needs base_url"):
        run(
            "m",
            out=tmp_path / "out2",
            sources=QuestionSource(world),
            config=EvalConfig(backend="openai"),
            options=Options(),
        )


def test_a_server_gives_the_answers_of_the_same_model_here(scorer: Checker, server, tmp_path: Path):
    """One model in this process and behind the API, greedy: the same texts and verdicts."""
    model = str(tiny_model(tmp_path))
    config = EvalConfig(max_new_tokens=16)
    world = write_world(tmp_path / "world")
    run(model, out=tmp_path / "here", sources=QuestionSource(world), config=config, options=Options())
    local = LocalModel(model, "hermes", config)
    url, _, replies = server

    def reply(request: dict):
        functions = [tool["function"] for tool in request["tools"]]
        (group,) = local.plan([prompts.Prompt("q", request["messages"], functions)], lambda _: False)
        return _said(next(local.answer(group)).text)

    replies.append(reply)
    there = _config(url, dots="keep", max_new_tokens=16)
    run(model, out=tmp_path / "there", sources=QuestionSource(world), config=there, options=Options())
    here, there = _rows(tmp_path / "here"), _rows(tmp_path / "there")
    assert {k: (r["answer"], r["valid"]) for k, r in here.items()} == {k: (r["answer"], r["valid"]) for k, r in there.items()}  # fmt: skip  # noqa: E501


# ---- a base to compare with ------------------------------------------------------------------------------------------


def test_a_model_trained_with_self_made_examples_is_asked_for_them(tmp_path: Path):
    """The prompt carries the addition of `rollout --self-examples`; a server's prompt is not ours to change."""
    model = tiny_model(tmp_path / "model")
    function = {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}
    prompt = prompts.Prompt("x", [{"role": "user", "content": "add"}], [function])
    config = EvalConfig(max_new_tokens=4, self_examples=True)
    asked = open_model(str(model), "hermes", config)
    asked.plan([prompt], lambda _: False)
    [reply] = asked.answer([prompt])
    assert SELF_EXAMPLES in reply.prompt and '"name": "add"' in reply.prompt
    with pytest.raises(ConfigError, match="self_examples"):
        check_model_settings(dataclasses.replace(config, backend="openai", base_url="http://x/v1"))


def test_mcnemar_against_values_worked_by_hand():
    """Exact binomial tails: 0 of 5 flips is 2 / 32, 1 of 9 is 2 * (1 + 9) / 512, a tie is 1."""
    assert paired.mcnemar(5, 0) == 2 / 32
    assert paired.mcnemar(1, 8) == 2 * (1 + 9) / 512
    assert paired.mcnemar(3, 3) == paired.mcnemar(0, 0) == 1.0


def test_a_comparison_is_paired_and_names_what_flipped():
    """Entries without a verdict from either are left out and counted."""
    mine = {"a": ("simple", True), "b": ("simple", False), "c": ("parallel", True), "d": ("simple", None)}
    base = {"a": ("simple", False), "b": ("simple", True), "c": ("parallel", True), "d": ("simple", True)}
    record = paired.compare_verdicts(mine, base)
    assert (record["gained"], record["lost"], record["unpaired"]) == (["a"], ["b"], 1)
    assert record["all"] == {"n": 3, "accuracy": 2 / 3, "base_accuracy": 2 / 3, "gained": 1, "lost": 1, "p_value": 1.0}
    assert "all paired entries" in paired.comparison_table(record)


def test_a_base_model_is_asked_the_same_in_the_same_run(scorer: Checker, server, tmp_path: Path):
    """Its own folder, its own protocol; the summary holds the comparison."""
    url, _, replies = server
    replies.append(lambda request: _said("No." if request["model"] == "tuned" else None, *(
        [] if request["model"] == "tuned" else [("send_mail", "{}")])))  # fmt: skip
    out, world = tmp_path / "out", write_world(tmp_path / "world")
    account = run("tuned", out=out, sources=QuestionSource(world), config=_config(url), options=Options(),
                  against=Against("plain"))  # fmt: skip
    compared = json.loads((out / "summary.json").read_text())["compared"]
    assert (compared["base"], compared["gained"], compared["lost"]) == ("plain", ["irrelevance_0"], [])
    assert (out / "base" / "summary.json").exists()
    assert "against the base" in account.report
