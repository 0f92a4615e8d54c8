"""BFCL's preset: its rules on hand-written entries, and (slow) parity with the official checker on every question."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import bfcl_gold
from support.python_calls import carries
from support.reward_mutations import KINDS, mutants

from toolsample_cli.bfcl.environment import Environment, provide
from toolsample_cli.errors import MissingDependency
from toolsample_cli.score import bfcl_source
from toolsample_cli.score.bfcl_match import accepts, options_of
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tools import Toolbox


def tool(**properties: Any) -> list[dict]:
    return [{"name": "f", "parameters": {"type": "dict", "properties": properties, "required": ["x"]}}]


def right(schema: dict, options: list, value: Any) -> bool:
    return accepts(tool(x=schema), [Call("f", {"x": value})], [{"f": {"x": options}}], "simple")


INT, TEXT, FLOAT, ANY = {"type": "integer"}, {"type": "string"}, {"type": "float"}, {"type": "any"}
FLOATS = {"type": "array", "items": {"type": "float"}}
TEXTS = {"type": "array", "items": {"type": "string"}}
DICT, DICTS = {"type": "dict"}, {"type": "array", "items": {"type": "dict"}}


@pytest.mark.parametrize(
    ("schema", "options", "value", "verdict"),
    [
        (INT, [5], 5, True), (INT, [5], "5", False), (INT, [5], 5.0, False), (INT, [5], True, False),
        (INT, [1], True, False), (FLOAT, [5.0], 5, True), (FLOAT, [0.5], 0.5, True), (FLOATS, [[1.0]], [1], False),
        (FLOATS, [[1.5, 2.0]], [1.5, 2.0], True), (TEXT, ["New York"], "new-york.", True),
        (TEXT, ["New York"], "New York!", False), (TEXT, ["it's"], 'IT"S', True), (TEXT, ["1.5"], "15", True),
        (TEXTS, [["a", "b"]], ["A", "b "], True), (TEXTS, [["a", "b"]], ["b", "a"], False),
        (TEXTS, [["a"]], ("a",), False), ({"type": "tuple", "items": INT}, [[1, 2]], (1, 2), True),
        (INT, ["user_count"], "user_count", True), (INT, ["user_count"], "User_count", False),
        (DICT, [{"k": [1, 2]}], {"k": 2}, True), (DICT, [{"k": [1]}], {"k": 1, "z": 0}, False),
        (DICT, [{"k": [1], "o": [""]}], {"k": 1}, True), (DICT, [{"k": ["A b"]}], {"k": "a-b"}, True),
        (DICTS, [[{"k": [1]}]], [{"k": 1}], True), (DICTS, [[{"k": [1]}]], [{"k": 1}, {"k": 1}], False),
        (DICTS, [[{"k": [1]}]], [1], False), (ANY, ["x"], "X", True), (ANY, [5], 5, True), (INT, [5, ""], None, False),
    ],
)  # fmt: skip
def test_values(schema: dict, options: list, value: Any, verdict: bool) -> None:
    """The rules of the official checker for one argument."""
    assert right(schema, options, value) is verdict


def test_arguments_and_counts() -> None:
    """Required and optional arguments, invented ones, counts, order."""
    tools = tool(x=INT, y=TEXT)
    answer = [{"f": {"x": [1], "y": ["a", ""]}}]
    assert accepts(tools, [Call("f", {"x": 1})], answer, "simple")
    assert not accepts(tools, [Call("f", {"y": "a"})], answer, "simple")
    assert not accepts(tools, [Call("f", {"x": 1, "z": 1})], answer, "simple")
    assert not accepts(tools, [Call("g", {"x": 1})], answer, "multiple")
    assert not accepts(tools, [], answer, "simple")
    two = [{"f": {"x": [1]}}, {"f": {"x": [2]}}]
    calls = [Call("f", {"x": 2}), Call("f", {"x": 1})]
    assert accepts(tools, calls, two, "parallel")
    assert not accepts(tools, [calls[0], calls[0]], two, "parallel")
    assert not accepts([], [Call("f", {"x": 1})], answer, "multiple")
    assert options_of(Call("f", {"a": {"b": 1}, "c": [{"d": 2}]})) == {"a": [{"b": [1]}], "c": [[{"d": [2]}]]}


CATEGORIES = {
    "simple_python": "simple", "multiple": "multiple", "parallel": "parallel", "parallel_multiple": "parallel",
    "live_simple": "simple", "live_multiple": "multiple", "live_parallel": "parallel",
    "live_parallel_multiple": "parallel",
}  # fmt: skip
NEVER = {"live_simple_106-63-0", "live_simple_112-68-0", "live_multiple_862-181-3", "live_multiple_964-207-0"}
"""Questions no answer can satisfy: a required argument without accepted values, or one that the schema lacks."""


@pytest.fixture(scope="module")
def official() -> Environment:
    try:
        return provide("v4")
    except MissingDependency as error:
        pytest.skip(f"no environment for bfcl-eval: {error}")


def questions(official: Environment, category: str) -> list[dict]:
    found = next(official.python.parent.parent.glob("lib/python*/site-packages/bfcl_eval/data"))
    entries = [json.loads(line) for line in (found / f"BFCL_v4_{category}.json").read_text().splitlines()]
    truths = [
        json.loads(line) for line in (found / "possible_answer" / f"BFCL_v4_{category}.json").read_text().splitlines()
    ]
    return [{**entry, "ground_truth": truth["ground_truth"]} for entry, truth in zip(entries, truths, strict=True)]


def verdict(entry: dict, calls: list, kind: str) -> bool:
    return accepts(entry["function"], [Call(name, arguments) for name, arguments in calls], entry["ground_truth"], kind)


def gold_calls(entry: dict, kind: str) -> list | None:
    """The first rendering of the ground truth that our preset accepts."""
    tries = bfcl_gold.renderings(entry["function"], entry["ground_truth"], "python")
    return next((calls for calls in tries if verdict(entry, calls, kind)), None)


def marked(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"__tuple__": [marked(item) for item in value]}
    if isinstance(value, dict):
        return {key: marked(item) for key, item in value.items()}
    return [marked(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_agrees_with_the_official_checker(official: Environment, tmp_path: Path) -> None:
    """Zero disagreements on every gold and on tens of thousands of mutated predictions of all kinds."""
    pick, rows, ours, kinds, never = random.Random(7), [], [], [], set()
    for category, kind in CATEGORIES.items():
        for index, entry in enumerate(questions(official, category)):
            gold = gold_calls(entry, kind)
            if gold is None:
                never.add(entry["id"])
                gold = next(bfcl_gold.renderings(entry["function"], entry["ground_truth"], "python"))
            for name, calls in mutants(gold, entry, pick):
                rows.append(
                    {
                        "category": category,
                        "index": index,
                        "calls": [[tool_name, marked(given)] for tool_name, given in calls],
                    }
                )
                ours.append(verdict(entry, calls, kind))
                kinds.append(name)
    (tmp_path / "predictions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    script = Path(__file__).resolve().parents[1] / "support" / "reward_bfcl_child.py"
    command = [official.python, script, tmp_path / "predictions.jsonl", tmp_path / "home"]
    (tmp_path / "home").mkdir()
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert child.returncode == 0, child.stderr
    theirs = [json.loads(line) for line in child.stdout.splitlines()]
    raised = Counter(kind for kind, their in zip(kinds, theirs, strict=True) if isinstance(their, str))
    wrong = [
        (kinds[i], rows[i], ours[i], theirs[i])
        for i in range(len(rows))
        if ours[i] is not (theirs[i] if isinstance(theirs[i], bool) else False)
    ]
    print(f"{len(rows)} predictions, {len(set(kinds))} kinds, {sum(ours)} accepted, official raised {dict(raised)}")
    assert not wrong, (len(wrong), wrong[:5])
    assert len(rows) >= 20_000 and set(kinds) == set(KINDS)
    assert never == NEVER


def test_the_official_runner_is_a_script() -> None:
    """The child is plain Python that needs nothing of ours."""
    spec = importlib.util.spec_from_file_location(
        "child", Path(__file__).resolve().parents[1] / "support" / "reward_bfcl_child.py"
    )
    child = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    assert child.revived(marked({"a": (1, [2, (3,)])})) == {"a": (1, [2, (3,)])}


@pytest.mark.parametrize(
    ("language", "kind", "text", "value"),
    [
        ("java", "integer", "5", 5),
        ("java", "long", "5L", 5),
        ("java", "float", "2.5f", 2.5),
        ("java", "boolean", "true", True),
        ("java", "Array", 'new String[]{"a", "b,c"}', ["a", "b,c"]),
        ("java", "Array", "new int[]{1, 2}", [1, 2]),
        ("java", "ArrayList", "new ArrayList<Integer>(Arrays.asList(1, 2))", [1, 2]),
        ("java", "ArrayList", 'new ArrayList<String>() {{ add("x"); add("y"); }}', ["x", "y"]),
        ("java", "ArrayList", "new ArrayList<>()", []),
        ("java", "String", "a b", "a b"),
        ("java", "HashMap", "new HashMap<>()", {}),
        ("java", "HashMap", 'new HashMap<String, Object>() {{ put("k", 1); put("l", "v"); }}', {"k": 1, "l": "v"}),
        ("javascript", "String", "'a'", "a"),
        ("javascript", "Bigint", "7n", 7),
        ("javascript", "array", "[1, 'b']", [1, "b"]),
        ("javascript", "dict", "{k: 1, l: ['a']}", {"k": 1, "l": ["a"]}),
        ("javascript", "array", "new Array(1, 2)", [1, 2]),
        ("javascript", "Boolean", "false", False),
        ("javascript", "integer", "x + 1", "x + 1"),
    ],
)
def test_source_text_stands_for_its_value(language: str, kind: str, text: str, value: object) -> None:
    """Java and JavaScript literals; what is no literal stays text."""
    types = bfcl_source.JAVA if language == "java" else bfcl_source.JAVASCRIPT
    found = bfcl_source.value_of(text, language, types[kind])
    assert found == value and type(found) is type(value)


UNANSWERABLE = {"simple_java_64"}
"""Its accepted value is a variable's name where a map is demanded, and no rendering of it is source text."""


@pytest.mark.slow
def test_golds_of_all_languages_in_every_protocol(official: Environment) -> None:
    """Every gold, written in each protocol that can carry it, is accepted; each exception is listed."""
    never, refused = set(), Counter()
    for category, kind in {**CATEGORIES, "simple_java": "simple", "simple_javascript": "simple"}.items():
        language = category.removeprefix("simple_") if category in ("simple_java", "simple_javascript") else "python"
        for entry in questions(official, category):
            tries = bfcl_gold.renderings(entry["function"], entry["ground_truth"], language)
            calls = next((found for found in tries if told(entry, found, kind, language)), None)
            if calls is None:
                never.add(entry["id"])
                continue
            given = [Call(name, arguments) for name, arguments in calls]
            box = Toolbox.of([{"name": f["name"], "parameters": f["parameters"]} for f in entry["function"]])
            for name, protocol in PROTOCOLS.items():
                if name == "pythonic" and not all(map(carries, given)):
                    continue
                types = box.parameter if language == "python" else (lambda *_: {"type": "string"})
                read = protocol.parse(protocol.render(given, None, "t"), "calls", types=types)
                found = [(call.name, call.arguments) for call in read.strict_calls or ()]
                if not told(entry, found, kind, language):
                    refused[name, category] += 1
    print(dict(refused), sorted(never))
    assert never == NEVER | UNANSWERABLE
    assert {name for name, _ in refused} <= {"qwen_xml"}


def told(entry: dict, calls: list, kind: str, language: str) -> bool:
    made = [Call(name, arguments) for name, arguments in calls]
    return accepts(entry["function"], made, entry["ground_truth"], kind, language)
