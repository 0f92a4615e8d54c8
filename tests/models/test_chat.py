"""Prompts come from the model's own template, ids and text agree, and a model without tokenizer is named."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
from support.tiny_model import task_row, tiny_tokenizer

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.models.chat import SELF_EXAMPLES, Chat, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def chat(folder):
    return Chat.load(folder)


def test_prompt_ids_equal_the_template(chat):
    """The oracle is the tokenizer's own tokenising path."""
    row = task_row(0)
    tools = [{"type": "function", "function": tool} for tool in json.loads(row["tools_json"])]
    expected = chat.tokenizer.apply_chat_template(
        json.loads(row["messages_json"]), tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert chat.prompt_ids(row) == expected
    assert "get_weather" in chat.prompt_text(row)


def test_the_template_of_the_page_renders_tools_and_calls(folder):
    """What docs/engines.md offers to models whose own template leaves the tools out."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    own = Chat.load(folder)
    own.tokenizer.chat_template = re.search(r"```jinja\n(.*?)```", page, re.DOTALL)[1]
    text = own.prompt_text(task_row(0))
    assert own.template_shows_tools and own.tokenizer.decode([own.end_of_turn]) == "<|im_end|>"
    assert "get_weather(city: string) the weather\n" in text and text.rstrip().endswith("<|im_start|>assistant")
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 'x "y"'}}}
    turns = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    told = own.render([*turns, {"role": "tool", "content": "r"}])
    block = re.search(r"<tool_call>\n(.*)\n</tool_call>", told)[1]
    assert json.loads(block) == {"name": "f", "arguments": {"a": 'x "y"'}} and "<tool_response>\nr\n" in told


def test_rlla_messages_are_rendered_without_tools(chat):
    """That protocol carries its tools in the system prompt."""
    messages = [{"role": "system", "content": "tools: 1. f"}, {"role": "user", "content": "go"}]
    row = task_row(0, protocol="rlla", messages_json=json.dumps(messages))
    text = chat.prompt_text(row)
    assert "<tools>" not in text and "get_weather" not in text
    assert text.startswith("<|im_start|>system\ntools: 1. f<|im_end|>\n<|im_start|>user\ngo")


@pytest.mark.parametrize("arguments", [{"city": "Köln"}, '{"city": "Köln"}'], ids=["mapping", "json text"])
def test_arguments_reach_the_template_as_mappings(chat, arguments):
    """Never encoded twice, whatever the data set stored."""
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    demo = {"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "tool_calls": [call]}]}
    text = chat.prompt_text(task_row(0, demos_json=json.dumps([demo])))
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>' in text
    assert text.index("one") < text.index("find the weather")


def test_demonstrations_follow_the_history(chat):
    """They stand before the last user message, after the system turn."""
    turns = [("system", "S"), ("user", "old"), ("assistant", "answer"), ("user", "new")]
    demo = {"messages": [{"role": "user", "content": "demo"}, {"role": "assistant", "content": "shown"}]}
    row = task_row(
        0,
        messages_json=json.dumps([{"role": role, "content": content} for role, content in turns]),
        demos_json=json.dumps([demo]),
    )
    text = chat.prompt_text(row)
    order = [text.index(word) for word in ("S\n", "old", "answer", "demo", "shown", "new")]
    assert order == sorted(order)


def test_completion_round_trip(chat):
    """Text to ids ends a turn; ids to text drops just that end."""
    text = task_row(0)["gold_text"]
    ids = chat.completion_ids(text)
    assert ids[-1] == chat.end_of_turn and ids[-1] in chat.end_ids
    assert chat.text(ids) == text
    assert chat.text(ids[:-1]) == text, "a truncated completion loses nothing"
    assert chat.texts([ids, []]) == [text, ""]
    assert chat.encode_many([text, "a"]) == [chat.encode(text), chat.encode("a")]


def test_lone_surrogates_do_not_stop_a_prompt(chat):
    """Model text of other programs may hold them; UTF-8 cannot."""
    row = task_row(0, messages_json='[{"role": "user", "content": "a\\ud800b"}]')
    assert "a?b" in chat.text(chat.prompt_ids(row))


def test_self_examples_go_into_the_system_turn(folder):
    """The addition follows the data's own system text."""
    chat = Chat.load(folder, self_examples=True)
    assert SELF_EXAMPLES in chat.prompt_text(task_row(0))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}]
    assert f"Be brief.\n\n{SELF_EXAMPLES}" in chat.prompt_text(task_row(0, messages_json=json.dumps(messages)))


def test_bad_rows_are_data_errors(chat):
    """Named by task, and by what is wrong."""
    with pytest.raises(DataError, match=r"task t00000: .*not valid JSON"):
        chat.prompt_ids(task_row(0, messages_json="[{"))
    call = {"type": "function", "function": {"name": "f", "arguments": "[1]"}}
    demo = json.dumps([{"messages": [{"role": "assistant", "tool_calls": [call]}]}])
    with pytest.raises(DataError, match="arguments of f are not an object"):
        chat.prompt_ids(task_row(0, demos_json=demo))
    with pytest.raises(ConfigError, match="unknown protocol 'hermess'"):
        chat.prompt_ids(task_row(0, protocol="hermess"))


def test_a_template_that_hides_the_tools_is_refused(folder, tmp_path):
    """A model that never sees its tools would only look stupid."""
    shutil.copytree(folder, tmp_path / "blind")
    (tmp_path / "blind" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    blind = Chat.load(tmp_path / "blind")
    with pytest.raises(ConfigError, match="leaves the tools out"):
        blind.prompt_ids(task_row(0))
    assert blind.prompt_text(task_row(0, protocol="rlla")) == "find the weather in Paris"


def test_models_without_tokenizer_or_template_are_named(folder, tmp_path):
    """One clear error instead of an empty tokenizer."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    with pytest.raises(DataError, match="without tokenizer"):
        load_tokenizer(tmp_path / "bare")
    with pytest.raises(DataError, match="no such model folder"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(DataError, match="no tokenizer could be loaded"):
        load_tokenizer("nobody/no-such-model")
    shutil.copytree(folder, tmp_path / "mute")
    (tmp_path / "mute" / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        Chat.load(tmp_path / "mute")


def test_fingerprints_tell_tokenizer_and_template_apart(folder, tmp_path):
    """Equal content, equal hash; another template changes only its own."""
    shutil.copytree(folder, tmp_path / "other")
    template = (tmp_path / "other" / "chat_template.jinja").read_text()
    (tmp_path / "other" / "chat_template.jinja").write_text(template + "{# changed #}")
    one, two = Chat.load(folder).fingerprint, Chat.load(tmp_path / "other").fingerprint
    assert one == Chat.load(folder).fingerprint
    assert one["tokenizer"] == two["tokenizer"] and one["template"] != two["template"]


def test_a_template_that_loops_ends_in_one_line(chat, monkeypatch):
    """In the time it has, wherever in it the loop is."""
    monkeypatch.setattr("toolsample_cli.models.chat.TEMPLATE_SECONDS", 0.3)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(chat.tokenizer, "chat_template", loop)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"chat template does not end within 0.3 s"):
        chat.prompt_text(task_row(0))
    assert time.monotonic() - began < 5
