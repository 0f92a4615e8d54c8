"""Demonstrations: the leak rule as a property, the order of preference, the budget, and both forms of rewriting."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.curation_data import RIGHT, WRONG, score_frame, task_row, write

from toolsample_cli.config import CurriculumConfig, FilterConfig
from toolsample_cli.curriculum import fewshot, hard_tasks
from toolsample_cli.curriculum.example import Example, leaks
from toolsample_cli.curriculum.fewshot import Bank
from toolsample_cli.curriculum.stage import Paths, run
from toolsample_cli.curriculum.state import HardTask, State
from toolsample_cli.filter.stage import run as run_filter
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS

VALUES = st.sampled_from([1, 1.0, True, "1", "Rome", "rome ", " ROME", "Oslo", None, [1], [1.0], {"a": 1}, {"a": True}])
CALL = st.tuples(st.sampled_from("fgh"), st.dictionaries(st.sampled_from("xy"), VALUES, max_size=2))
CALLS = st.lists(CALL, max_size=2)


def row(task: str, calls: list[tuple[str, dict]], text: str | None = None, **changes) -> dict:
    gold = [{"arguments": arguments, "name": name} for name, arguments in calls]
    tools = [{"description": "", "name": name, "parameters": {}} for name in "fgh"]
    made = {"gold_json": json.dumps(gold), "tools_json": json.dumps(tools), "gold_text": text}
    return task_row(task, **{**made, "gold_kind": "calls" if calls else "response", **changes})


def shown_calls(task: dict) -> list[Call]:
    turns = [turn for demo in json.loads(task["demos_json"]) for turn in demo["messages"]]
    functions = [c["function"] for turn in turns for c in turn.get("tool_calls", [])]
    return [Call(f["name"], f["arguments"]) for f in functions]


@settings(deadline=None, max_examples=200)
@given(st.lists(CALL, min_size=1, max_size=2), st.lists(CALLS, max_size=12), st.integers(1, 4))
def test_no_demonstration_ever_shows_an_answer(gold, others, shots):
    """Whatever the corpus: no call shown equals a gold call, by Python's equality or up to case and spaces."""
    task = row("self", gold)
    bank = Bank()
    bank.add([task, *(row(f"t{i}", calls) for i, calls in enumerate(others)), {**task, "task_id": "self-2"}])
    form = fewshot.rewrite(task, bank.choose(Example.of(task), shots, 10_000).examples)
    assert "self" not in form["demo_task_ids"] and "self-2" not in form["demo_task_ids"]
    assert len(form["demo_task_ids"]) <= shots and len(set(form["demo_task_ids"])) == len(form["demo_task_ids"])
    for shown in shown_calls(form):
        for name, arguments in gold:
            assert shown != Call(name, arguments)
            assert str(shown.record()).casefold().replace(" ", "") != str(Call(name, arguments).record()).casefold()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["I cannot.", "i  CANNOT.", "Please ask.", ""]), max_size=6))
def test_an_answer_without_call_is_not_shown_either(texts):
    """For a task whose gold is text, no demonstration ends in that text."""
    task = row("self", [], "I cannot.")
    bank = Bank()
    bank.add([row(f"t{i}", [], text) for i, text in enumerate(texts)])
    for example in bank.choose(Example.of(task), 4, 10_000).examples:
        assert example.answer != "i cannot."


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ({"x": 1}, {"x": 1.0}, True),
        ({"x": 1}, {"x": True}, True),
        ({"x": 1}, {"x": "1"}, False),
        ({"x": "New  York"}, {"X": "new york"}, True),
        ({"x": {"b": [1, 2.0]}}, {"x": {"b": [True, 2]}}, True),
        ({"x": 0.1}, {"x": 0.2}, False),
    ],
)
def test_what_counts_as_equal(a, b, equal):
    assert leaks(Example.of(row("p", [("f", a)])), Example.of(row("q", [("f", b)]))) == equal


def test_one_shared_call_of_several_is_a_leak():
    task = Example.of(row("p", [("f", {"x": 1}), ("g", {"x": 2})]))
    assert leaks(task, Example.of(row("q", [("h", {"x": 5}), ("g", {"x": 2})])))
    assert not leaks(task, Example.of(row("q", [("h", {"x": 5}), ("g", {"x": 3})])))


OWN = json.dumps([{"description": "weather report", "name": "k", "parameters": {"properties": {"x": {}, "y": {}}}}])


def test_order_of_preference():
    """The same parameters, the same tool, tools on offer, other tools with their schemas; own ones first."""
    task = row("self", [("f", {"x": 0})])
    bank = Bank()
    bank.add([row("mine", [("f", {"y": 8})])], "own", {"mine": "<think>\nso\n</think>"})
    bank.add([row("brought", [("f", {"y": 9})])], "bank")
    bank.add(
        [
            row("far", [("k", {"x": 3})], tools_json=OWN, messages_json='[{"role":"user","content":"something"}]'),
            row("near", [("k", {"x": 4})], tools_json=OWN),
            row("two", [("k", {"x": 5}), ("k", {"x": 6})], tools_json=OWN),  # another kind of request
            row("offered", [("g", {"x": 1})]),
            row("tool", [("f", {"y": 1})]),
            row("same", [("f", {"x": 1})]),
            row("other-protocol", [("f", {"x": 7})], protocol="rlla"),
            row("doubtful", [("f", {"x": 8})], gold_issues_json='["type"]'),
        ]
    )
    choice = bank.choose(Example.of(task), 9, 10_000)
    order = [("far", "shown"), ("near", "shown"), ("offered", "offered"), ("tool", "tool")]
    order += [
        ("brought", "tool"),
        ("mine", "tool"),
        ("same", "parameters"),
    ]  # the best stands last, next to the request
    assert list(zip([e.task_id for e in choice.examples], choice.fits, strict=True)) == order
    for least, count in (("parameters", 1), ("tool", 4), ("offered", 5), ("shown", 7)):
        assert len(bank.choose(Example.of(task), 9, 10_000, least).examples) == count


class TestForeignTools:
    task = row("self", [("f", {"x": 0})])

    def form(self, *others: dict, **changes) -> dict | None:
        bank = Bank()
        bank.add(others)
        task = {**self.task, **changes}
        return fewshot.rewrite(task, bank.choose(Example.of(task), 4, 10_000).examples)

    def test_their_schemas_join_the_offer(self):
        form = self.form(row("a", [("k", {"x": 1})], tools_json=OWN))
        assert [tool["name"] for tool in json.loads(form["tools_json"])] == ["f", "g", "h", "k"]
        assert json.loads(form["tools_json"])[-1] == json.loads(OWN)[0] and form["parent_task_id"] == "self"

    def test_without_a_schema_they_are_not_shown(self):
        assert self.form(row("a", [("k", {"x": 1})]))["demo_task_ids"] == []

    def test_a_tool_of_the_same_name_with_other_parameters_is_not_shown(self):
        """It would contradict what the prompt says about that tool."""
        mine = json.dumps([{"name": "f", "description": "", "parameters": {"properties": {"x": {}}}}])
        other = row("a", [("f", {"z": 1})], tools_json=mine.replace('"x"', '"z"'))
        assert self.form(other, tools_json=mine)["demo_task_ids"] == []
        assert self.form(row("b", [("f", {"x": 1})], tools_json=mine), tools_json=mine)["demo_task_ids"] == ["b"]

    def test_two_foreign_tools_of_one_name_are_not_shown_together(self):
        other = OWN.replace("weather", "traffic")
        ids = self.form(row("a", [("k", {"x": 1})], tools_json=OWN), row("b", [("k", {"y": 1})], tools_json=other))
        assert len(ids["demo_task_ids"]) == 1

    def test_calls_in_earlier_turns_count(self):
        """An example whose history calls a tool that nobody explains is not shown, in either way of writing history."""
        turn = {"role": "assistant", "tool_calls": [{"function": {"name": "q", "arguments": {}}}]}
        for turns in ([turn], [{"role": "user", "content": '<tool_call>\n{"name": "q"}\n</tool_call>'}]):
            history = json.dumps([{"role": "user", "content": "go"}, *turns])
            assert self.form(row("a", [("f", {"x": 1})], messages_json=history))["demo_task_ids"] == []

    def test_rlla_numbers_them_on_in_its_list(self):
        listed = "**Available Tools**\nYou can use:\n1. Name: f\nDescription: d\nParameters: {}\n\n**Steps**\n1. Think"
        messages = json.dumps([{"role": "system", "content": listed}, {"role": "user", "content": "go"}])
        tools = json.dumps([{"name": "f", "description": "d", "parameters": {}}])
        changes = {"protocol": "rlla", "messages_json": messages, "tools_json": tools}
        form = self.form(row("a", [("k", {"x": 1})], tools_json=OWN, protocol="rlla"), **changes)
        shown = json.loads(form["messages_json"])[0]["content"]
        assert (
            'Parameters: {}\n2. Name: k\nDescription: weather report\nParameters: {"x": {}, "y": {}}\n\n**Steps**'
            in shown
        )
        assert (
            self.form(row("a", [("k", {"x": 1})], tools_json=OWN, protocol="rlla"), protocol="rlla")["demo_task_ids"]
            == []
        )


@settings(deadline=None, max_examples=150)
@given(
    st.lists(CALL, min_size=1, max_size=2), st.lists(CALLS, max_size=10), st.sets(st.sampled_from("fgh"), min_size=1)
)
def test_every_tool_that_is_called_is_on_offer(gold, others, offered):
    """Whatever the corpus: after rewriting, each call shown names an offered tool and only parameters it has."""

    def tools(names):
        return json.dumps([{"name": n, "description": "", "parameters": {"properties": {"x": {}}}} for n in names])

    task = row("self", gold, tools_json=tools(sorted(offered)))
    bank = Bank()
    bank.add([row(f"t{i}", calls, tools_json=tools("fg" if i % 2 else "gh")) for i, calls in enumerate(others)])
    form = fewshot.rewrite(task, bank.choose(Example.of(task), 4, 10_000).examples)
    known = {tool["name"]: set(tool["parameters"]["properties"]) for tool in json.loads(form["tools_json"])}
    assert all(call.name in known and call.arguments.keys() <= known[call.name] for call in shown_calls(form))


@settings(deadline=None, max_examples=100)
@given(CALLS, st.lists(CALLS, max_size=12))
def test_a_demonstration_calls_where_its_task_calls(gold, others):
    """No call is shown before a request that none answers, and no refusal before one that wants a call."""
    task = row("self", gold, None if gold else "own words")
    bank = Bank()
    bank.add([row(f"t{i}", calls, None if calls else f"no {i}") for i, calls in enumerate(others)])
    chosen = bank.choose(Example.of(task), 20, 10_000).examples
    assert all(example.calling == bool(gold) for example in chosen)
    if not gold:
        assert len(chosen) == others.count([])


def test_a_hard_refusal_gets_refusals_with_its_tools_first_or_stays(tmp_path):
    """Through the stage: from all over a corpus of calls; with no other refusal it is drawn without demonstrations."""
    offer = json.dumps([{"name": "find_train", "description": "", "parameters": {}}], separators=(",", ":"))
    other = offer.replace("find_train", "send_mail")

    def refusal(name: str, tools: str) -> dict:
        return task_row(name, tools_json=tools, gold_json="[]", gold_kind="response", gold_text=f"No, {name}.")

    calls = [task_row(f"t{i:03d}") for i in range(700)]
    refusals = [refusal("r0", offer), refusal("r1", other), refusal("r2", offer), refusal("r3", other)]
    for name, rows in {"some": calls + refusals, "one": calls + refusals[:1]}.items():
        corpus = write(schema.TASKS, tmp_path / name / "corpus", [schema.frame(schema.TASKS, rows)])
        scores = write(schema.SCORES, tmp_path / name / "scores", [score_frame({"r0": [WRONG] * 12})])
        groups, out = tmp_path / name / "groups", tmp_path / name / "out"
        run_filter(scores, None, groups, FilterConfig(method="none"), Options())
        config = CurriculumConfig(tasks_per_round=8, hard="fewshot", hard_share=1.0, demo_for="all")
        account = run(Paths(corpus, groups, scores), out, config, Options())
        drawn = {task["slot"]: task for task in slots(open_folder(out / "tasks", schema.TASKS).load())}
        if name == "some":  # the one with the same tool stands last, next to the request
            assert drawn["r0"]["demo_task_ids"][-1] == "r2" and drawn["r0"]["demo_task_ids"][0] in ("r1", "r3")
        else:
            assert drawn["r0"]["demo_task_ids"] == [] and account.extra["without: no example fits"] == 1


def slots(tasks) -> list[dict]:
    return [{**task, "slot": task["parent_task_id"] or task["task_id"]} for task in tasks.to_dicts()]


def test_the_budget_bounds_the_demonstrations():
    """A demonstration that does not fit is passed over; a shorter one may still fit."""
    task = row("self", [("f", {"x": 0})])
    bank = Bank()
    bank.add([row("long", [("f", {"x": "y" * 400})]), row("short", [("g", {"x": 1})])])
    short = next(e for e in bank.general[True] if e.task_id == "short")
    assert [e.task_id for e in bank.choose(Example.of(task), 2, short.tokens).examples] == ["short"]
    none = bank.choose(Example.of(task), 2, short.tokens - 1)
    assert none.examples == () and none.why == "the examples that fit are too long"
    assert short.tokens == -(-len(fewshot.canonical(list(short.messages))) // 4)


def test_demonstrations_in_template_and_text_protocols():
    """Hermes-like ones carry tool_calls with mappings, text ones the answer as text; system turns are left out."""
    messages = json.dumps([{"role": "system", "content": "tools"}, {"role": "user", "content": "go"}])
    hermes = Example.of(row("a", [("f", {"x": 1})], messages_json=messages)).messages
    assert [turn["role"] for turn in hermes] == ["user", "assistant"]
    assert hermes[1]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    [_, text] = Example.of(row("a", [("f", {"x": 1})], protocol="rlla")).messages
    assert PROTOCOLS["rlla"].parse(text["content"], "calls").calls == (Call("f", {"x": 1}),)
    [_, own] = Example.of(row("a", [("f", {"x": 1})], "gold text", protocol="rlla"), "own text").messages
    assert own["content"] == "own text"


def test_own_thoughts_are_shown_before_the_calls():
    text = '<think>\nbecause\n</think>\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    [_, turn] = Example.of(row("a", [("f", {"x": 1})]), text).messages
    assert "because" in turn["content"] and turn["tool_calls"][0]["function"]["name"] == "f"


def test_rewriting_keeps_the_request_and_records_the_origin():
    task = row("self", [("f", {"x": 0})])
    assert fewshot.rewrite(task, []) == task
    form = fewshot.rewrite(task, [Example.of(row("a", [("f", {"x": 1})]))])
    assert (form["task_id"], form["parent_task_id"], form["demo_task_ids"]) == ("self@1shot", "self", ["a"])
    assert form["messages_json"] == task["messages_json"] and form["gold_json"] == task["gold_json"]
    schema.check(schema.TASKS, schema.frame(schema.TASKS, [form, fewshot.hint(task)]), "forms")


def test_own_demonstrations_come_from_solved_tasks_alone(tmp_path):
    """`demo_source = own`: only tasks the model got right; its own completion is what is shown."""
    names = [f"t{i}" for i in range(8)]
    corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, [task_row(n) for n in names])])
    frame = score_frame({name: [RIGHT if name in ("t3", "t6") else WRONG] * 12 for name in names})
    scores = write(schema.SCORES, tmp_path / "scores", [frame])
    run_filter(scores, None, tmp_path / "groups", FilterConfig(method="none"), Options())
    call = '<tool_call>\n{"name": "find_train", "arguments": {"city": "t3"}}\n</tool_call>'
    spoken = {"t3/0/0": f"<think>\nmine\n</think>\n{call}"}
    rows = [
        rollout(r["rollout_id"], r["task_id"], spoken.get(r["rollout_id"], "?"))
        for r in frame.to_dicts()
        if r["task_id"] != "t6"
    ]
    rollouts = write(schema.ROLLOUTS, tmp_path / "rollouts", [schema.frame(schema.ROLLOUTS, rows)])
    config = CurriculumConfig(tasks_per_round=8, hard="fewshot", demo_source="own", hard_share=1.0)
    run(Paths(corpus, tmp_path / "groups", scores, rollouts=rollouts), tmp_path / "out", config, Options())
    forms = open_folder(tmp_path / "out" / "tasks", schema.TASKS).load().to_dicts()
    few = [form for form in forms if form["parent_task_id"]]
    assert len(few) == 6 and {name for form in few for name in form["demo_task_ids"]} == {"t3"}
    assert all("mine" in form["demos_json"] for form in few)


@pytest.mark.parametrize("asked", ["all", "calls"])
def test_tasks_that_want_no_call_can_be_left_without_demonstrations(tmp_path, asked):
    """`demo_for = calls`: demonstrations that all decline would tell the answer."""
    names = [f"t{i}" for i in range(8)]
    declines = {name: {"gold_json": "[]", "gold_kind": "response", "gold_text": f"not {name}"} for name in names[:4]}
    tasks = [{**task_row(name), **declines.get(name, {})} for name in names]
    corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, tasks)])
    scores = write(schema.SCORES, tmp_path / "scores", [score_frame({name: [WRONG] * 12 for name in names})])
    run_filter(scores, None, tmp_path / "groups", FilterConfig(method="none"), Options())
    config = CurriculumConfig(tasks_per_round=8, hard="fewshot", demo_for=asked, hard_share=1.0)
    account = run(Paths(corpus, tmp_path / "groups", scores), tmp_path / "out", config, Options())
    forms = open_folder(tmp_path / "out" / "tasks", schema.TASKS).load()
    few = forms.filter(pl.col("parent_task_id").is_not_null())
    wanted = names if asked == "all" else names[4:]
    assert sorted(few["parent_task_id"].to_list()) == wanted and forms.height == 8
    assert account.extra.get("without: wants no call", 0) == 8 - len(wanted)


def rollout(name: str, task: str, text: str) -> dict:
    ids = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "ids_from_text": True}
    where = {"rollout_id": name, "task_id": task, "round": 0, "sample": int(name.split("/")[2])}
    return {
        **where,
        "policy": "p",
        "backend": "b",
        "seed": 0,
        **ids,
        "finish_reason": "stop",
        "text": text,
        "error": None,
    }


class TestHardness:
    def move(self, row: dict, hard: dict[str, HardTask], **changes) -> tuple[dict[str, HardTask], dict]:
        config = CurriculumConfig(**{"hard": "fewshot", **changes})
        full = {"slot_id": "a", "n": 10, "n_exact": 0, "shots": 0, "misses": 10, **row}
        state, moves = hard_tasks.update(State({}, round=5, hard=hard), schema_free(full), config)
        return state.hard, moves

    def test_shots_grow_to_their_most(self):
        assert self.move({}, {})[0] == {"a": HardTask(2, 5)}
        assert self.move({"shots": 2}, {"a": HardTask(2, 3)})[0] == {"a": HardTask(4, 5)}
        hard, moves = self.move({"shots": 4}, {"a": HardTask(4, 3)})
        assert hard == {"a": HardTask(4, 3, waiting=False)} and moves == {"stuck": 1}

    def test_shots_fade_step_by_step(self):
        solved = {"n_exact": 8, "misses": 0}
        [two, four] = [HardTask(2, 3), HardTask(4, 3)]
        done = HardTask(2, 5, waiting=False, unsolved=False)
        assert self.move({**solved, "shots": 4}, {"a": four}) == ({"a": done}, {"faded": {"a": 2}})
        assert self.move({**solved, "shots": 2}, {"a": two}) == ({}, {"faded": {"a": 0}})
        assert self.move({**solved, "n_exact": 7, "shots": 2}, {"a": two})[0] == {"a": replace(done, since=3)}

    def test_a_hard_task_drawn_without_its_demonstrations_goes_on_waiting(self):
        """Beyond the cap it gets no more shots than it was ever shown; solved as it is, it is no longer hard."""
        assert self.move({}, {"a": HardTask(2, 3)}) == ({"a": HardTask(2, 3)}, {})
        assert self.move({"n_exact": 9, "misses": 0}, {"a": HardTask(2, 3)}) == ({}, {"faded": {"a": 0}})
        unfit = HardTask(2, 3, waiting=False, unfit=True)
        assert self.move({}, {"a": unfit}) == ({"a": unfit}, {"stuck": 1})

    def test_hard_sampling_ends_with_the_pass(self):
        """Fewer than 1 % still unsolved, or so many passes: all tasks are zero-shot from then on."""
        config = CurriculumConfig(hard="fewshot")
        hard = {"a": HardTask(2, 0), "b": HardTask(2, 0, unsolved=False)}

        def end(before: int, after: int, size: int = 100, **changes) -> State:
            states = [State({"tasks": size}, task_visits=visits, hard=hard) for visits in (before, after)]
            return hard_tasks.end_of_pass(*states, replace(config, **changes))

        assert end(90, 110, size=200).hard_ended == ""  # in the middle of a pass
        assert end(90, 110).hard_ended == "" and end(190, 210, size=200).hard == {}
        assert end(190, 210, size=200).hard_ended == "1 hard tasks, under 0.01 of the corpus"
        assert end(490, 510).hard_ended == "5 passes over the corpus" and end(490, 510, hard_passes=0).hard == hard
        assert end(190, 210, size=200, hard="drop").hard_ended == ""
        over = replace(State({}), hard_ended="5 passes over the corpus")
        assert hard_tasks.update(over, schema_free({"slot_id": "a", "n": 9}), config) == (over, {})

    def test_an_errored_group_moves_nothing(self):
        assert self.move({"n": 0}, {"a": HardTask(2, 3)}) == ({"a": HardTask(2, 3)}, {})

    def test_fewer_misses_than_the_threshold_are_not_hard(self):
        assert self.move({"misses": 9}, {}) == ({}, {})


def schema_free(row: dict):
    import polars as pl

    return pl.DataFrame([row])
