"""A call in another syntax is no abstention; prose, code and data are."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from toolsample_cli.config import ImportConfig, ScoreConfig
from toolsample_cli.importing.stage import run
from toolsample_cli.score.scorer import Gold, Rules, Scored, Scorer
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.protocols.foreign import calls_elsewhere
from toolsample_cli.toolcalls.tools import Toolbox, toolbox

BOX = Toolbox.of(
    [
        {"name": name, "parameters": {"type": "object", "properties": {key: {"type": "string"}}}}
        for name, key in (("f", "a"), ("Get Weather", "city"))
    ]
)
CALL = '{"name": "f", "arguments": {"a": 1}}'
CALLS = {
    "DeepSeek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a":1}\n```',
    "DeepSeek 3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜>',
    "DeepSeek 3.2": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a">1',
    "Llama 4": '<|python_start|>{"name": "f", "parameters": {"a": 1}}<|python_end|>',
    "Llama 4, Python": "<|python_start|>[f(a=1)]<|python_end|>",
    "fenced JSON": f"Sure:\n```json\n{CALL}\n```",
    "Qwen3-Coder": "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
    "Mistral": f"[TOOL_CALLS] [{CALL}]",
    "Mistral 11": '[TOOL_CALLS]f[ARGS]{"a": 1}',
    "Python list": "[f(a=1)]",
    "Python call": "f(a=1)",
    "Python, by place": "f(1)",
    "Python, no arguments": "f()",
    "Python behind words": "Let me do it.\n[f(a=1)]",
    "ToolACE": '[Get Weather(city="Ghent")]',
    "Hermes": f"<tool_call>\n{CALL}\n</tool_call>",
    "GLM 4.5": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "GLM 4": 'f\n{"a": 1}',
    "ReAct": 'Thought: I should call f.\nAction: f\nAction Input: {"a": 1}',
    "ReAct, one line": "Action: f(a=1)",
    "Claude": '<function_calls>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n</function_calls>',
    "MiniMax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>',
    "Glaive": "<functioncall> {\"name\": \"f\", \"arguments\": '{\"a\": 1}'}",
    "gpt-oss": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>',
    "Kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a":1}',
    "Phi 4": f"<|tool_call|>[{CALL}]<|/tool_call|>",
    "Phi 4 mini": f"functools[{CALL}]",
    "LFM2": "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    "Nemotron": f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "InternLM": f"<|action_start|><|plugin|>{CALL}<|action_end|>",
    "Cohere": '<|START_ACTION|>[{"tool_call_id":"0","tool_name":"f","parameters":{"a":1}}]<|END_ACTION|>',
    "Cohere, older": 'Action: ```json\n[{"tool_name": "f", "parameters": {"a": 1}}]\n```',
    "Gemma": "```tool_code\nprint(f(a=1))\n```",
    "FunctionGemma": "<start_function_call>call:f{a:1}<end_function_call>",
    "Qwen-Agent": '✿FUNCTION✿: f\n✿ARGS✿: {"a": 1}',
    "Functionary": '>>>f\n{"a": 1}',
    "OpenAI": '{"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}]}',
    "OpenAI, older": '{"function_call":{"name":"f","arguments":"{\\"a\\":1}"}}',
    "JSON": CALL,
    "JSON behind words": f"I will call it now: {CALL}",
    "LangChain": '{"action": "f", "action_input": {"a": 1}}',
    "single quotes": "{'name': 'f', 'arguments': {'a': 1}}",
    "name as key": '{"f": {"a": 1}}',
    "Cline": "<f>\n<a>1</a>\n</f>",
    "labels": '**Function:** `f`\n**Parameters:** {"a": 1}',
    "YAML": "tool: f\nparameters:\n  a: 1",
    "another tool": '<tool_calls>\n{"name":"other","arguments":{}}\n</tool_calls>',
}  # fmt: skip
SPEECH = {
    "joke": "Why did the chicken cross the road? To get to the other side (a=1).",
    "prose": "I could use the f tool, but f(a=1) is not what you need here.",
    "mention": "The tool `f` takes one argument `a`; you would write `f(a=1)`.",
    "quoted mark": "In Hermes, calls stand between `<tool_call>` and `</tool_call>` tags.",
    "quoted mark 2": "Mistral marks calls with `[TOOL_CALLS]` before a JSON list.",
    "mark without a call": "The text [TOOL_CALLS] may stand in an answer.",
    "data": 'Here is your data:\n```json\n{"name": "Bob", "arguments": ["x"], "age": 3}\n```',
    "data 2": '{"name": "experiment", "parameters": {"lr": 0.1}}',
    "data of the tool's name": '{"name": "f", "description": "the letter"}',
    "data and words": 'Result: {"f": {"a": 1}} and more',
    "names": '["f", "g"]',
    "code": "```python\ndef f(a):\n    return a + 1\n\nprint(g(a=1))\n```",
    "assignment": "```python\nx = f(a=1)\nprint(x)\n```",
    "list of tools": "I can offer:\n- f: does things\n- Get Weather: the weather\nWhich do you want?",
    "question": "Which city do you mean? Get Weather (the weather tool) needs one.",
    "mathematics": "f(x) = x^2 + 1\nso f(2) = 5",
    "variable": "f(x)",
    "HTML": "<p>Hello</p>\n<function>",
    "table": "| name | arguments |\n|---|---|\n| f | a |",
    "YAML": "name: f\ndescription: a tool",
    "label": "Function: compute the mean\nInput: numbers",
    "action": "Action: run faster\nInput: water",
    "say": "Tool: f is what I would use.",
}


def abstention(text: str, protocol: str) -> Scored:
    return Scorer(Gold((), "response"), protocol, Rules.of(ScoreConfig(rewards="irrelevance")), BOX).score(text)


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "auto"])
def test_no_call_in_any_syntax_is_an_abstention(protocol: str) -> None:
    """Under every protocol, alone and behind a thought or words: never exact, never rewarded, never `no_call`."""
    head = "<think> t </think>\n" if protocol in ("rlla", "tool_n1") else ""
    wrong = []
    for name, text in CALLS.items():
        own_tag = protocol == "rlla" and "<tool_call>" in text  # form is all that ToolRL pays by (Q4)
        for form in (text, f"Well.\n\n{text}", f"{text}\n"):
            whole = f"{head}<response> {form} </response>" if protocol == "rlla" else head + form
            scored = abstention(whole, protocol)
            paid = 0.0 if own_tag else scored.reward + scored.extra["rewards"]["irrelevance"]
            if scored.exact or paid or scored.parse_status == "no_call":
                wrong.append((name, form, scored))
    assert not wrong


@pytest.mark.parametrize("name", SPEECH)
def test_prose_code_and_data_are_answers(name: str) -> None:
    """What names a tool without calling it keeps its full reward."""
    assert not calls_elsewhere(SPEECH[name], BOX.names, BOX.parameter)
    scored = abstention(f"<think> t </think>\n<response> {SPEECH[name]} </response>", "rlla")
    if name != "quoted mark":  # ToolRL's own tag, which its reader takes for a call
        assert scored.exact and scored.reward == 1.0 and scored.parse_status == "no_call"


@pytest.mark.parametrize("name", ["rlla_4k/test.parquet", "rlla_4k/rlla_sft.json",
    "llamafactory_demo/glaive_toolcall_en_demo.json", "llamafactory_demo/reason_tool_use_demo_50.jsonl"])  # fmt: skip
def test_no_public_answer_is_taken_for_a_call(name: str, shared_data: Path, tmp_path: Path) -> None:
    """Golds that only speak, and what users say, against the tools of their own task: no false alarm."""
    run([str(shared_data / name)], tmp_path / "t", ImportConfig(), Options())
    seen = 0
    for task in open_folder(tmp_path / "t", schema.TASKS).load().to_dicts():
        box = toolbox(task["tools_json"])
        texts = [
            turn["content"]
            for turn in json.loads(task["messages_json"])
            if turn["role"] == "user" and "<tool_call>" not in turn["content"]
        ]
        if task["gold_kind"] == "response":
            texts.append(
                task["gold_text"].rpartition("</think>")[2].replace("<response>", "").replace("</response>", "")
            )
        for text in filter(None, texts):
            seen += 1
            assert not calls_elsewhere(text.strip(), box.names, box.parameter), text
    assert seen > 50


@pytest.mark.parametrize("piece", [" ", "\n", "f(", "\n[f(", "\nf(a=1", "{", '\n{"name":"f",', "<f>", "`<tool_call> ",
    "Action: f\n", "f\n{", "<a_", "['", '\nf("', "\nf(a={'a':", "\nf(1,", "\n[ f (", "[TOOL_CALLS]"])  # fmt: skip
def test_looking_takes_bounded_time(piece: str) -> None:
    """A million characters of anything."""
    start = time.process_time()
    calls_elsewhere(piece * 300_000, BOX.names, BOX.parameter)
    assert time.process_time() - start < 0.25
