"""What a server is sent and what a plan does: histories as the model wrote them, and nothing installed by a dry run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from support.bfcl_synthetic import hermes_text
from support.hostile_server import Hostile
from support.tiny_model import tiny_model

from toolsample_cli.bfcl import categories, dialogue, environment, memory_tasks, prompts
from toolsample_cli.bfcl.answering import Reply, ServedModel
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.judging import judgeable
from toolsample_cli.bfcl.questions import official_question
from toolsample_cli.config import EvalConfig
from toolsample_cli.errors import MissingDependency
from toolsample_cli.shards.journal import Journal

CALLS = [("mkdir", {"dir_name": 'a "quoted" ü'}), ("ls", {"a": True}), ("pwd", {}), ("cd", {"folder": "x"})]


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    try:
        place = environment.provide("v4")
    except MissingDependency as missing:
        pytest.skip(str(missing))
    with Checker(place) as held:
        yield held


class Here:
    """A model in this process that makes one call of CALLS per step of a turn; keeps every history it was sent."""

    def __init__(self) -> None:
        self.sent: list[list[dict]] = []

    def plan(self, asked, known):
        return [list(asked)]

    def answer(self, group):
        for prompt in group:
            self.sent.append(deepcopy(list(prompt.messages)))
            step = int(prompt.key.rsplit(" ", 1)[1])
            text = hermes_text([CALLS[step]]) if step < len(CALLS) else "Done."
            yield Reply(prompt.key, "p", text, finish_reason="stop")

    def close(self) -> None:
        pass


def _served(sent: list[list[dict]]):
    """The same model behind the API: steps are told by the calls since the user's last words."""

    def reply(path: str, body) -> dict:
        if body is None:
            return {"data": [{"id": "m"}]}
        messages = body["messages"]
        sent.append(deepcopy(messages))
        last = max(i for i, turn in enumerate(messages) if turn["role"] == "user")
        step = sum(turn["role"] == "assistant" for turn in messages[last:])
        message: dict = {"role": "assistant", "content": "Done."}
        if step < len(CALLS):
            name, arguments = CALLS[step]
            function = {"name": name, "arguments": json.dumps(arguments)}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": function}]}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}

    return reply


def _plain(messages: list[dict]) -> list[dict]:
    """A history with arguments as values, so that text and mapping compare."""
    plain = deepcopy(messages)
    for call in (call for turn in plain for call in turn.get("tool_calls", ())):
        if isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return plain


@pytest.mark.parametrize("category", ["multi_turn_base", pytest.param("memory_rec_sum", marks=pytest.mark.slow)])
def test_a_server_is_sent_the_history_of_the_same_dialogue_here(checker: Checker, tmp_path: Path, category: str):
    """Four calls a turn, several turns: message by message the same, arguments decoded once and no more."""
    row = next(row for row in checker.entries(category) if not memory_tasks.is_conversation(row["id"]))
    question, style = official_question(category, row), prompts.Style("hermes", checker.prompted)

    def hold(model, path: Path) -> None:
        with Journal(path, {}) as journal:
            if category == "multi_turn_base":
                held = [dialogue.Dialogue(question, style, checker.ask("constants"), list(question.functions))]
                dialogue.hold_all(model, checker, held, journal, lambda _: None)
            else:
                held = memory_tasks.Memories(model, checker, style, checker.ask("constants"), journal)
                held.hold_all([question], lambda _: None)

    here = Here()
    hold(here, tmp_path / "here.jsonl")
    there: list[list[dict]] = []
    with Hostile("closes", good=_served(there)) as server:
        config = EvalConfig(backend="openai", base_url=server.url, dots="keep", concurrency=1)
        model = ServedModel("m", "hermes", config)
        hold(model, tmp_path / "there.jsonl")
        model.close()
    assert len(here.sent) == len(there) > 4
    for mine, theirs in zip(here.sent, there, strict=True):
        assert _plain(theirs) == mine
    called = [call for turn in there[-1] for call in turn.get("tool_calls", ())]
    assert len(called) >= 4 and all(isinstance(call["function"]["arguments"], str) for call in called)


def test_numbers_that_json_has_not_are_kept_by_name(tmp_path: Path):
    """Python reads them in arguments; the journal holds JSON."""

    def reply(path: str, body) -> dict:
        function = {"name": "f", "arguments": '{"a": NaN, "b": [-Infinity, 1.5]}'}
        message = {"content": None, "tool_calls": [{"function": function}]}
        return {"choices": [{"message": message, "finish_reason": "stop"}]} if body else {"data": []}

    with Hostile("closes", good=reply) as server:
        model = ServedModel("m", "hermes", EvalConfig(backend="openai", base_url=server.url))
        [answer] = model.answer([prompts.Prompt("q", [{"role": "user", "content": "x"}], [])])
        model.close()
    with Journal(tmp_path / "j", {}) as journal:
        journal.add({"id": "q", "prompt": "", **answer.record()})
    assert Journal(tmp_path / "j", {}).records["q"]["calls"] == [["f", {"a": "NaN", "b": ["-Infinity", 1.5]}]]


def test_lines_that_cannot_be_judged_are_asked_again(tmp_path: Path):
    """Whatever an earlier version let in: a number for a text, calls that are none, a damaged byte, no JSON."""
    good = {"id": "a", "prompt": "p", "text": "x", "finish_reason": "stop", "calls": [["f", {}]]}
    odd = [{"text": 5}, {"finish_reason": 5}, {"calls": 5}, {"calls": [["f", 5]]}, {"calls": [[5, {}]]}, {"text": None}]
    odd += [{"error": 5}, {"turns": 5}, {"turns": [[5]]}, {"turns": [[{"text": 5}]]}]
    with Journal(tmp_path / "j", {"model": "m"}) as journal:
        journal.add(good)
        for number, change in enumerate(odd):
            journal.add({**good, "id": f"odd-{number}", **change})
        journal.add({**good, "id": "damaged"})
        journal.add({"id": "b", "prompt": "p", "turns": [[{"text": "x", "finish_reason": None}]]})
    data = bytearray((tmp_path / "j").read_bytes())
    data[data.index(b'"damaged"') + 3] ^= 1
    (tmp_path / "j").write_bytes(bytes(data) + b"no json\n")
    assert sorted(Journal(tmp_path / "j", {"model": "m"}, usable=judgeable).records) == ["a", "b"]


def test_a_dry_run_installs_nothing_and_ends_at_once(tmp_path: Path):
    """An empty cache and no network: the plan within three seconds."""
    model, cache = tiny_model(tmp_path), tmp_path / "cache"
    closed = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
    environ = {**os.environ, **closed, "TOOLSAMPLE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "toolsample_cli", "eval-bfcl", str(model), "-o", str(tmp_path / "out")]
    began, before = time.monotonic(), os.times()
    done = subprocess.run([*command, "--dry-run", "--json"], env=environ, capture_output=True, text=True, check=True)
    after = os.times()
    assert (after.children_user + after.children_system) - (before.children_user + before.children_system) < 3
    assert time.monotonic() - began < 30, "and a busy machine is given time"
    plan = json.loads(done.stdout)
    assert plan["would ask"] == "1240 questions" and plan["would install"].startswith("bfcl-eval 2026")
    assert not cache.exists() and not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v4", "v3"])
def test_sizes_of_a_plan_are_those_of_the_release(version: str):
    """Counted in the official package."""
    try:
        place = environment.provide(version)
    except MissingDependency as missing:
        pytest.skip(str(missing))
    with Checker(place) as held:
        for name, size in categories.SIZES[version].items():
            assert sum(not memory_tasks.is_conversation(row["id"]) for row in held.entries(name)) == size, name
