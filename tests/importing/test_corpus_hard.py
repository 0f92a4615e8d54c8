"""The hard cases: each is read as it was meant, and each reward pays what stands beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import toolrl_twin

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))
import hard_cases

from toolsample_cli.toolcalls.call import calls_json
from toolsample_cli.toolcalls.protocols import PROTOCOLS

CASES = hard_cases.cases()
KINDS = {
    "tags inside the thought": "the tag mentioned while thinking",
    "tags inside strings": "a closing tag inside a string",
    "one a line": "one call a line, two lines",
    "several tags": "several tag pairs",
    "list payload": "a list payload",
    "nested function": "a nested function",
    "parameters": "parameters instead of arguments",
    "arguments": "arguments instead of parameters",
    "arguments as text": "arguments as text",
    "empty text": "arguments as an empty text",
    "fences": "a fenced block instead of tags",
    "single quotes": "single quotes",
    "apostrophes": "apostrophes in single quotes",
    "True": "Python's True",
    "None": "Python's None in single quotes",
    "raw newline": "a raw newline in a string",
    "bad escape": "a bad escape in a path",
    "trailing comma": "a trailing comma",
    "truncated": "cut inside the arguments",
    "doubled": "an object written twice on one line",
    "NaN": "NaN",
    "big integer": "a 23-digit integer",
    "duplicate key": "a key twice",
    "unicode escapes": "unicode escapes",
    "wrong escapes": "a NUL and hex digits",
    "never evaluated": "code instead of a value",
    "leading zero": "a postcode: only the schema knows that it is text",
    "date": "a date without quotes",
    "true as text": "true as text",
    "colon in a name": "a colon in the name",
    "not an object": "arguments as a number",
    "double encoding": "arguments encoded twice, in Python's quotes",
    "unescaped quotes": "unescaped quotes inside a string",
    "no call where one was due": "an apology where a call was due",
    "irrelevance": "declining",
    "spaces in a name": "a name with a space",
    "null argument": "a null argument",
}


@pytest.mark.parametrize("case", CASES, ids=[f"{case['protocol']}: {case['what']}" for case in CASES])
def test_case(case: dict) -> None:
    """Status, meaning and every reward."""
    scored = hard_cases.score(case)
    assert (scored.parse_status, calls_json(scored.calls)) == (case["status"], calls_json(case["means"]))
    assert case["pays"] == hard_cases.pays(case, "strict")
    assert case.get("pays_lenient", case["pays"]) == hard_cases.pays(case, "lenient")


@pytest.mark.parametrize("case", [case for case in CASES if case["protocol"] == "rlla"], ids=lambda case: case["what"])
def test_strict_payment_is_toolrls(case: dict) -> None:
    """By the strict reading, ToolRL's tags earn what the slow twin of ToolRL pays."""
    calls, text = case["gold"].calls, case["text"].removeprefix("\n")
    truth = PROTOCOLS["rlla"].render(calls, None if calls else "no", "t")
    assert hard_cases.score(case).reward == toolrl_twin.total(text, truth)


def test_the_corpus_covers_what_goes_wrong() -> None:
    """At least 150 cases, every protocol, every kind of public report."""
    assert len(CASES) >= 150
    assert {case["protocol"] for case in CASES} == set(PROTOCOLS)
    known = [case["what"] for case in CASES]
    missing = [kind for kind, what in KINDS.items() if not any(name.startswith(what) for name in known)]
    assert not missing
    assert len({(case["protocol"], case["what"]) for case in CASES}) == len(CASES)


def test_lenient_reading_never_pays_less_than_the_form_alone() -> None:
    """What was meant right earns the whole correctness by the lenient reading, whatever its form."""
    for case in CASES:
        if "tuple" in case["what"]:  # a Python tuple is no list, as for the official checker of BFCL
            continue
        if case["gold"].calls and calls_json(case["means"]) == calls_json(case["gold"].calls):
            scored = hard_cases.score(case, reading="lenient")
            assert scored.reward == 3.0 + scored.format, case["what"]


def test_the_file_is_one_readable_text() -> None:
    """Plain text, no line that was not written for reading, gold and tools as JSON."""
    lines = hard_cases.FILE.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) < 420
    assert all(json.loads(case["means"]) is not None for case in map(dict, _raw()) if case["means"][:1] == "[")


def _raw() -> list[dict]:
    return hard_cases.tomllib.loads(hard_cases.FILE.read_text(encoding="utf-8"))["case"]
