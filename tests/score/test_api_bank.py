"""API-Bank as ToolRL reports it, thoughts that began in the prompt, and golds that one protocol alone lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolsample_cli.config import ImportConfig, ScoreConfig
from toolsample_cli.importing.stage import run as take_in
from toolsample_cli.score.scorer import Gold, score_text
from toolsample_cli.score.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.tools import Toolbox


def rollout(task_id: str, text: str) -> dict:
    return {
        "rollout_id": f"{task_id}/0/0", "task_id": task_id, "round": 0, "sample": 0, "policy": "p", "backend": "replay",
        "seed": 0, "prompt_ids": [1], "completion_ids": [2], "logprobs": None, "finish_reason": "stop",
        "ids_from_text": True, "text": text, "error": None,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [0, 40])
def test_levels_are_those_of_a_hand_count(wrong: int, shared_data: Path, tmp_path: Path) -> None:
    """Golds are right at every level; the first 40 of each are changed in four ways, one of them harmless."""
    files = sorted(str(file) for file in (shared_data / "api_bank_toolrl").glob("level-*.json"))
    take_in(files, tmp_path / "tasks", ImportConfig(), Options())
    tasks = open_folder(tmp_path / "tasks", schema.TASKS).load().to_dicts()
    seen: dict[str, int] = {}
    rows = []
    for task in tasks:
        at = seen[task["source"]] = seen.get(task["source"], -1) + 1
        text = task["gold_text"]
        if at < wrong:
            text = [
                text.replace('"name": "', '"name": "x'),  # another tool
                text.replace('"parameters": {', '"parameters": {"extra": 1, ', 1),  # one parameter more
                text.replace("<tool_call>\n", '<tool_call>\n{"name": "x", "parameters": {}}\n', 1),  # a call more: soft
                "<think> t </think>\n<response> no </response>",
            ][at % 4]
        rows.append(rollout(task["task_id"], text))
    with Output(tmp_path / "rollouts", schema.ROLLOUTS, {}) as output:
        output.write(0, schema.frame(schema.ROLLOUTS, rows))
        output.finish()
    facts = run(tmp_path / "tasks", tmp_path / "rollouts", out=tmp_path / "scores",
        config=ScoreConfig(rewards="api_bank"), options=Options()).extra  # fmt: skip
    sizes = {"1": 399, "2": 67, "3": 131}
    lost = wrong * 3 // 4
    for level, size in sizes.items():
        assert facts[f"API-Bank level {level}"] == f"{100 * (size - lost) / size:.2f} ({size - lost} of {size})"
    assert facts["API-Bank overall"] == f"{100 * (597 - 3 * lost) / 597:.2f} ({597 - 3 * lost} of 597)"


MARKS = "[ARGS][TOOL_CALLS]"
F = Toolbox.of([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}])
ONE = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("thought", "calls"), [("maybe", 1), (f"maybe {ONE} is right", 1), (f"{ONE} or", 1), ("{x}", 1)]
)
def test_thoughts_that_began_in_the_prompt(thought: str, calls: int) -> None:
    """With the option every thought is one, whatever it begins with; without it, those that begin with words."""
    gold, text = Gold((Call("f"),), "calls"), f"{thought}\n</think>\n\n{ONE}"
    known = score_text(text, gold, "hermes", ScoreConfig(thought_in_prompt=True), F)
    assert (len(known.calls), known.reward, known.exact) == (1, 4.0, True)
    assert score_text(text, gold, "hermes", ScoreConfig(), F).exact is (thought[0] == "m")
    endless = score_text(f"{thought}\n{ONE}", gold, "hermes", ScoreConfig(thought_in_prompt=True), F)
    assert endless.parse_status == "truncated" and not endless.calls


@pytest.mark.parametrize(("protocol", "text", "arguments"), [
    ("mistral", '[TOOL_CALLS]f{"a": [1]}', {"a": [1]}),
    ("mistral", '[TOOL_CALLS]f{"a": [1]}[TOOL_CALLS]g{}', None),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": ["[ARGS][TOOL_CALLS]"]}}]', {"a": [MARKS]}),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]x1[ARGS]{"a": ["[ARGS]"]}', {"a": ["[ARGS]"]}),
    ("llama3", '{"name": "f", "parameters": {"a": ["<function=x>"]}}', {"a": ["<function=x>"]}),
    ("pythonic", "[f(a=(1, (2, 3)))]", {"a": [1, [2, 3]]}),
    ("pythonic", "[f(a=[{'k': (1,)}])]", {"a": [{"k": [1]}]}),
])  # fmt: skip
def test_right_answers_that_were_lost(protocol: str, text: str, arguments: dict | None) -> None:
    """Marks inside strings, missing marks and tuples: the gold's maximum."""
    gold = Gold((Call("f", arguments),) if arguments else (Call("f", {"a": [1]}), Call("g")), "calls")
    scored = score_text(text, gold, protocol, ScoreConfig(), F)
    assert scored.reward == 4.0 and scored.exact and scored.schema_valid is (arguments is not None)


DEFINED = {"$defs": {"S": {"type": "string"}, "T": {"$ref": "#/$defs/S"}, "N": {"anyOf": [{"$ref": "#/$defs/S"}]}}}


@pytest.mark.parametrize(
    "typed",
    [
        {"$ref": "#/$defs/S"},
        {"$ref": "#/$defs/T"},
        {"$ref": "#/$defs/N"},
        {"const": "12345"},
        {"enum": ["12345"]},
        {"allOf": [{"type": "string"}]},
        {"allOf": [{"$ref": "#/$defs/S"}, {"minLength": 1}]},
    ],
)
def test_text_that_looks_like_a_number(typed: dict) -> None:
    """qwen_xml takes digits as text where the schema says text, however it says so."""
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"code": typed}, **DEFINED}}
    text = "<tool_call>\n<function=f>\n<parameter=code>\n12345\n</parameter>\n</function>\n</tool_call>"
    scored = score_text(text, Gold((Call("f", {"code": "12345"}),), "calls"), "qwen_xml", ScoreConfig(), [tool])
    assert scored.reward == 4.0 and scored.schema_valid, json.dumps(typed)
