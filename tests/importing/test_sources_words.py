"""Splits and tools where sources keep them in unusual places: both were lost without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolsample_cli.config import ImportConfig
from toolsample_cli.importing.splits import split_of_row
from toolsample_cli.importing.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_tools

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
FLAT = {"a": {"type": "string"}, "b": {"type": "integer"}}


@pytest.mark.parametrize(
    "about",
    [
        {"split": "test"},
        {"extra_info": {"split": "test", "index": 3}},
        {"extra_info": json.dumps({"split": "test"})},
        {"metadata": {"split": "Test"}},
        {"meta": ' {"split": "testing"}'},
        {"extra_info": {"split": "default"}, "meta": {"split": "test"}},
    ],
)
def test_a_test_row_stays_one_wherever_its_source_says_so(tmp_path: Path, about: dict):
    row = {"query": "q", "tools": [], "answers": [], **about}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    run([str(tmp_path / "x.jsonl")], tmp_path / "t", ImportConfig(), Options())
    assert open_folder(tmp_path / "t", schema.TASKS).load()["split"].to_list() == ["test"]


@pytest.mark.parametrize(
    "about", [{}, {"extra_info": "{"}, {"extra_info": "[" * 10_000}, {"meta": '"test"'}, {"meta": "test"}, {"split": 1}]
)
def test_what_names_no_split_gives_none(about: dict):
    assert split_of_row(about) == ""


@pytest.mark.parametrize(
    "tools",
    [
        [{"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}}],
        {"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}},
        {"f": {"description": "d", "parameters": SCHEMA}},
        {"f": {"name": "f", "description": "d", "input_schema": SCHEMA}},
        json.dumps({"f": {"description": "d", "inputSchema": SCHEMA}}),
        [{"name": "f", "description": "d", "parameters": FLAT, "required": "a"}],
    ],
)
def test_tools_by_name_of_bedrock_and_with_one_required(tools: object):
    assert read_tools(tools) == [{"name": "f", "description": "d", "parameters": SCHEMA}]


@pytest.mark.parametrize("tools", [{"f": 5}, {"f": {}}, {"f": []}, [{"toolSpec": {}}], [{"toolSpec": 3}]])
def test_what_is_no_tool_is_refused(tools: object):
    with pytest.raises(Unreadable):
        read_tools(tools)


@pytest.mark.parametrize("kind", ["string", {"type": "string"}, {"type": "object", "properties": {}}])
def test_a_parameter_called_json_is_one(kind: object):
    (tool,) = read_tools([{"name": "f", "parameters": {"json": kind}}])
    assert list(tool["parameters"]["properties"]) == ["json"]
