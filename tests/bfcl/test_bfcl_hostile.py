"""Hostile answers in every category of both releases: wrong, nothing executed, no hang; all through one scorer process.

    python -m pytest tests/test_bfcl_hostile.py            one category each; `-m slow` all of them

Two official rules are kept, since verdicts must equal the official ones: text that is no call is a right refusal
where no call is right, and any call, harmless here, is right where some call is wanted (`OFFICIAL`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolsample_cli.bfcl import categories, environment
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.judging import judge
from toolsample_cli.bfcl.prompts import PROMPTING
from toolsample_cli.bfcl.questions import Question, official_question
from toolsample_cli.errors import MissingDependency

OWNED = '__import__("os").system("touch owned")'
SIZE = 10_000_000


def hermes(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


PROMPTED = {
    "code": OWNED,
    "power": "9**9**9",
    "huge": "x" * SIZE,
    "code in a call": f"[f(a={OWNED})]",
    "code in arithmetic": f"[f(a={OWNED} + 1)]",
    "code as a name": f"[{OWNED}.f(a=1)]",
    "power in a call": "[f(a=9**9**9)]",
    "shift": "[f(a=1 << 9**9)]",
    "long product": "[f(a='x' * 9**9)]",
    "huge call": f"[f(a='{'x' * SIZE}')]",
    "deep": "[f(a=" + "(" * 100_000 + ")",
}
NATIVE = {
    "code": OWNED,
    "power": "9**9**9",
    "huge": "x" * SIZE,
    "code as a name": hermes(OWNED, {}),
    "code as an argument": hermes("f", {"a": OWNED}),
    "code as a parameter": hermes("f", {OWNED: 1, "b=9**9**9": 2}),
    "power as a name": hermes("9**9**9 or f", {"a": "9**9**9"}),
    "huge call": hermes("f", {"a": "x" * SIZE}),
    "deep": '<tool_call>\n{"name": "f", "arguments": ' + '{"a":' * 100_000 + "\n</tool_call>",
}
ANSWERS = {PROMPTING: PROMPTED, "hermes": NATIVE}

OFFICIAL = {
    ("irrelevance", PROMPTING): {"power", "deep"},
    ("irrelevance", "hermes"): {"code", "power", "deep"},
    ("relevance", PROMPTING): {"code", "code in a call", "code as a name"},
    ("relevance", "hermes"): {"code as a name", "code as an argument", "code as a parameter", "power as a name"},
}
"""Answers that the official evaluator takes for a right refusal, or for the call that was wanted; none is executed."""

FEW = {"v4": ("live_relevance",), "v3": ("irrelevance",)}
ALL = {"v4": (*categories.SCORED["v4"], categories.FORMATS), "v3": categories.SCORED["v3"]}


@pytest.fixture(scope="module", params=["v4", "v3"])
def scorer(request: pytest.FixtureRequest) -> Iterator[Checker]:
    """The checkers of one release, with little memory."""
    try:
        place = environment.provide(request.param)
    except MissingDependency as missing:
        pytest.skip(str(missing))
    with Checker(place, seconds=60.0, megabytes=1024) as scorer:
        yield scorer


def record(question: Question, text: str) -> dict:
    """The answer as the journal holds it: a text, or a dialogue whose every turn is that text."""
    said = {"text": text, "finish_reason": "stop"}
    if question.kind not in ("multi_turn", "memory", "web_search"):
        return {"prompt": "", **said}
    turns = len(question.turns) if question.kind == "multi_turn" else 1
    return {"prompt": "", "turns": [[said]] * turns}


def judged_hostile(scorer: Checker, category: str) -> None:
    """Three questions of a category, every hostile answer to each."""
    rows = scorer.ask("entries", category=category, hint=False, seconds=100)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        question = official_question(category, row)
        for protocol, answers in ANSWERS.items():
            if category == categories.FORMATS and protocol != PROMPTING:
                continue
            counted = OFFICIAL.get((question.kind, protocol), set())
            for name, text in answers.items():
                verdict, _ = judge(scorer, question, record(question, text), protocol)
                assert verdict["valid"] is (name in counted), (question.id, protocol, name, verdict["error_type"])


def steps_hostile(scorer: Checker, category: str) -> None:
    """Every hostile answer as the step of a dialogue with simulated tools: an error to the model, or refused."""
    rows = scorer.ask("entries", category=category, hint=True, seconds=100)
    entry_id = rows[0]["id"]
    if categories.kind_of(category) == "memory":
        scorer.ask("remember", category=category, id=entry_id)
    for text in PROMPTED.values():
        done = scorer.ask("execute", category=category, id=entry_id, answer={"text": text}, history=None)
        assert done["refused"] or all("rror" in result for result in done["results"])
    for text in NATIVE.values():
        done = scorer.ask("execute", category=category, id=entry_id, answer={"hermes": text}, history=None)
        assert done["refused"] or all("rror" in result for result in done["results"])


@pytest.mark.parametrize("extent", [FEW, pytest.param(ALL, marks=pytest.mark.slow)], ids=["few", "all"])
def test_hostile_answers_are_wrong_and_harmless(scorer: Checker, extent: dict, tmp_path: Path, monkeypatch):
    """No file appears, and no process is lost, neither to a limit of time nor to one of memory."""
    monkeypatch.chdir(tmp_path)
    for category in extent[scorer.environment.version]:
        judged_hostile(scorer, category)
        if categories.kind_of(category) == "multi_turn" or category == "memory_rec_sum":
            steps_hostile(scorer, category)
    assert scorer.generation == 1
    assert not list(tmp_path.iterdir())
    assert not list(scorer.folder.rglob("owned"))
    assert not (Path.home() / "owned").exists()
