"""No row ends an import: whatever shape it has, it becomes tasks or a reject with its reason, and the sums add up."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import random
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest
from support.importing_runs import RAW

from toolsample_cli.config import ImportConfig
from toolsample_cli.errors import DataError
from toolsample_cli.importing.formats import FORMATS
from toolsample_cli.importing.raw_rows import raw_rows
from toolsample_cli.importing.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Account, Options

TOOLS = [{"name": "get_weather", "description": "d", "parameters": {"city": {"type": "str"}}}]
GOOD = {
    "query": "Weather in Rome?",
    "tools": TOOLS,
    "answers": [{"name": "get_weather", "arguments": {"city": "Rome"}}],
}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def imported(file: Path, out: Path, **config: object) -> tuple[Account, list[dict], list[dict]]:
    """Account, tasks, rejects; the account adds up."""
    account = run([str(file)], out, ImportConfig(**config), Options())
    tasks = open_folder(out, schema.TASKS).load().to_dicts()
    rejects = open_folder(out.parent / f"{out.name}.rejects", schema.REJECTS).load().to_dicts()
    further = account.extra.get("further answers", 0)
    assert account.rows_in + further == account.rows_out + sum(account.dropped.values()) == len(tasks) + len(rejects)
    return account, tasks, rejects


def gold(task: dict) -> list[tuple[str, dict]]:
    return [(call["name"], call["arguments"]) for call in json.loads(task["gold_json"])]


DAMAGES = (None, 5, 2.5, True, "", "text", [], ["a"], [None], [[]], {}, {"a": None}, {"x": [{}]}, [{"name": 5}], -0.0)


class TestOneOddRow:
    @pytest.mark.parametrize("key", ["query", "tools", "answers"])
    @pytest.mark.parametrize("value", DAMAGES, ids=repr)
    def test_another_value_of_xlam(self, tmp_path: Path, key: str, value: object):
        _, tasks, rejects = imported(lines(tmp_path / "x.jsonl", GOOD, {**GOOD, key: value}, GOOD), tmp_path / "t")
        assert len(tasks) >= 2 and all(reject["row"] == 2 and reject["detail"] for reject in rejects)

    @pytest.mark.parametrize("key", ["query", "tools", "answers"])
    def test_a_missing_key(self, tmp_path: Path, key: str):
        odd = {name: value for name, value in GOOD.items() if name != key}
        _, tasks, (reject,) = imported(lines(tmp_path / "x.jsonl", GOOD, odd, GOOD), tmp_path / "t", format="xlam")
        assert len(tasks) == 2 and reject["reason"] == "misfit" and f"{key!r} is missing" in reject["detail"]

    @pytest.mark.parametrize("row", ["5", '"text"', "null", "[1, 2]", "true", "{}"])
    def test_a_row_that_is_no_object_of_the_format(self, tmp_path: Path, row: str):
        _, tasks, (reject,) = imported(lines(tmp_path / "x.jsonl", GOOD, row, GOOD), tmp_path / "t")
        assert len(tasks) == 2 and reject["row"] == 2

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("file", sorted(p.name for p in RAW.iterdir() if p.suffix == ".json"))
    def test_any_file_under_any_format(self, tmp_path: Path, form: str, file: str):
        """Another format's rows are rejects, each with its reason; none ends the import."""
        account, _, rejects = imported(RAW / file, tmp_path / "t", format=form)
        assert account.exit_code in (0, 3) and all(reject["reason"] and reject["detail"] for reject in rejects)

    @pytest.mark.parametrize("query", [None, ["a"], 5, "  ", {"a": 1}])
    def test_a_query_that_says_nothing(self, tmp_path: Path, query: object):
        _, tasks, (reject,) = imported(
            lines(tmp_path / "x.jsonl", GOOD, {**GOOD, "query": query}), tmp_path / "t", format="xlam"
        )
        assert len(tasks) == 1 and reject["reason"] in ("bad_message", "no_user")

    @pytest.mark.parametrize("literal", ["{1, 2}", "b'x'", "...", "3j", "{(1, 2): 3}", "{1: 2, 'a': 3}", "{None: 1}"])
    @pytest.mark.parametrize("key", ["tools", "answers"])
    def test_python_text_that_json_cannot_hold(self, tmp_path: Path, key: str, literal: str):
        text = f"[{{'name': 'get_weather', 'arguments': {{'city': {literal}}}, 'parameters': {{'city': {literal}}}}}]"
        _, tasks, (reject,) = imported(lines(tmp_path / "x.jsonl", GOOD, {**GOOD, key: text}), tmp_path / "t")
        assert len(tasks) == 1 and reject["reason"] in ("bad_call", "bad_tools")

    def test_python_text_that_json_can_hold(self, tmp_path: Path):
        text = "[{'name': 'get_weather', 'arguments': {'city': ('Rome', None, True)}}]"
        _, (task,), _ = imported(lines(tmp_path / "x.jsonl", {**GOOD, "answers": text}), tmp_path / "t")
        assert gold(task) == [("get_weather", {"city": ["Rome", None, True]})]

    @pytest.mark.parametrize("where", ["line", "array"])
    def test_a_number_too_long_for_python(self, tmp_path: Path, where: str):
        odd = json.dumps(GOOD).replace('"Rome"', "1" * 5000, 1).replace('"Weather in Rome?"', "1" * 5000)
        file = tmp_path / "x.jsonl"
        file.write_text(f"{json.dumps(GOOD)}\n{odd}\n{json.dumps(GOOD)}\n", encoding="utf-8")
        if where == "array":
            file = tmp_path / "x.json"
            file.write_text(f"[{json.dumps(GOOD)}, {odd}, {json.dumps(GOOD)}]", encoding="utf-8")
        _, tasks, (reject,) = imported(file, tmp_path / "t", broken="reject")
        assert len(tasks) == 2 and "4,300 digits" in reject["detail"] and reject["row"] == 2
        with pytest.raises(DataError, match="row 2: a number of more than 4,300 digits"):
            imported(file, tmp_path / "u")

    def test_a_conversation_without_a_call_is_told(self, tmp_path: Path):
        row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
        _, tasks, (reject,) = imported(lines(tmp_path / "x.jsonl", row), tmp_path / "t", turns="calls")
        assert not tasks and reject["reason"] == "no_calls"


class TestArrays:
    def test_every_array_of_a_file_is_read(self, tmp_path: Path):
        file = tmp_path / "x.json"
        file.write_text(
            f"[{json.dumps(GOOD)}]\n\n[]\n[{json.dumps({**GOOD, 'query': 'b'})}, {json.dumps(GOOD)}]", encoding="utf-8"
        )
        assert len(imported(file, tmp_path / "t")[1]) == 3

    @pytest.mark.parametrize("behind", ["garbage", "{}", "]", ", 5", "[5"])
    def test_text_behind_the_array_is_named(self, tmp_path: Path, behind: str):
        file = tmp_path / "x.json"
        file.write_text(f"[{json.dumps(GOOD)}] {behind}", encoding="utf-8")
        with pytest.raises(DataError, match=r"row [23]"):
            imported(file, tmp_path / "t")
        _, tasks, rejects = imported(file, tmp_path / "u", broken="reject")
        reject = rejects[-1]
        assert len(tasks) == 1 and reject["reason"] == "broken_row"

    def test_long_arrays_across_windows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("toolsample_cli.importing.raw_rows.CHUNK", 7)
        file = tmp_path / "x.json"
        file.write_text(json.dumps([GOOD, 5, GOOD], indent=1) + json.dumps([GOOD]), encoding="utf-8")
        assert [type(row.value).__name__ for row in raw_rows(file)] == ["dict", "int", "dict", "dict"]


class TestFiles:
    def test_columns_of_any_type_are_carried(self, tmp_path: Path):
        columns = {
            "when": datetime.datetime(2024, 5, 3, 10, 30), "day": datetime.date(2024, 5, 3), "at": datetime.time(10, 30),
            "took": datetime.timedelta(seconds=90), "price": decimal.Decimal("1.50"), "raw": b"\xff\xd8", "note": b"text",
            "inside": {"when": datetime.datetime(2024, 5, 3)}, "days": [datetime.date(2024, 5, 3)], "ratio": float("nan"),
        }  # fmt: skip
        row = {key: json.dumps(value) if key != "query" else value for key, value in GOOD.items()}
        pl.DataFrame([{**row, **columns}]).write_parquet(tmp_path / "x.parquet")
        _, (task,), _ = imported(tmp_path / "x.parquet", tmp_path / "t")
        extra = json.loads(task["extra_json"])
        assert extra["when"] == "2024-05-03T10:30:00" and extra["day"] == "2024-05-03" and extra["at"] == "10:30:00"
        assert extra["took"] == "90 s" and extra["price"] == "1.50" and extra["note"] == "text"
        assert extra["raw"] == "(2 bytes)" and extra["inside"] == {"when": "2024-05-03T00:00:00"}
        assert extra["days"] == ["2024-05-03"] and "ratio" not in extra

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le-bom"])
    def test_encodings_by_their_mark(self, tmp_path: Path, encoding: str):
        text = json.dumps({**GOOD, "query": "Wetter in Köln?"}, ensure_ascii=False) + "\n"
        data = b"\xff\xfe" + text.encode("utf-16-le") if encoding.endswith("bom") else text.encode(encoding)
        (tmp_path / "x.jsonl").write_bytes(data)
        _, (task,), _ = imported(tmp_path / "x.jsonl", tmp_path / "t")
        assert "Wetter in Köln?" in task["messages_json"]

    def test_what_a_file_is_follows_from_its_bytes(self, tmp_path: Path):
        (tmp_path / "gzip.jsonl").write_bytes(gzip.compress((json.dumps(GOOD) + "\n").encode()))
        row = {key: json.dumps(value) if key != "query" else value for key, value in GOOD.items()}
        pl.DataFrame([row]).write_parquet(tmp_path / "parquet.json")
        pl.DataFrame([row]).write_ipc(tmp_path / "x.arrow")
        pl.DataFrame([row]).write_csv(tmp_path / "x.csv")
        for name in ("gzip.jsonl", "parquet.json", "x.arrow", "x.csv"):
            _, (task,), _ = imported(tmp_path / name, tmp_path / f"t-{name}")
            assert gold(task) == [("get_weather", {"city": "Rome"})]

    @pytest.mark.parametrize(
        ("head", "word"),
        [(b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"), (b"BZh9", "bzip2"), (b"\x80\x04", "pickle")],
    )
    def test_what_is_not_read_is_called_by_its_name(self, tmp_path: Path, head: bytes, word: str):
        (tmp_path / "x.jsonl").write_bytes(head + b"\0" * 40)
        with pytest.raises(DataError, match=word):
            list(raw_rows(tmp_path / "x.jsonl"))

    def test_a_line_without_end_has_a_cap(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("toolsample_cli.importing.raw_rows.LONGEST_ROW", 1000)
        file = lines(tmp_path / "x.jsonl", GOOD, '{"query": "' + "x" * 5000 + '"}', GOOD)
        _, tasks, (reject,) = imported(file, tmp_path / "t", broken="reject")
        assert len(tasks) == 2 and reject["row"] == 2 and "longer than" in reject["detail"]


class TestSplits:
    @pytest.mark.parametrize(
        ("row", "split"), [("test", "test"), ("dev", "validation"), ("Training", "train"), (7, "train")]
    )
    def test_the_rows_own_split_is_kept(self, tmp_path: Path, row: object, split: str):
        assert imported(lines(tmp_path / "x.jsonl", {**GOOD, "split": row}), tmp_path / "t")[1][0]["split"] == split
        inside = {**GOOD, "extra_info": {"split": row}}
        assert imported(lines(tmp_path / "y.jsonl", inside), tmp_path / "u")[1][0]["split"] == split

    @pytest.mark.parametrize(
        ("name", "split"), [("test-00000-of-00001", "test"), ("validation", "validation"), ("testimony", "train")]
    )
    def test_the_files_name_says_it_where_rows_do_not(self, tmp_path: Path, name: str, split: str):
        assert imported(lines(tmp_path / f"{name}.jsonl", GOOD), tmp_path / "t")[1][0]["split"] == split

    def test_what_was_asked_for_wins(self, tmp_path: Path):
        file = lines(tmp_path / "x.jsonl", {**GOOD, "split": "test", "license": "cc-by-4.0"})
        _, (task,), _ = imported(file, tmp_path / "t", split="train")
        assert task["split"] == "train" and task["license"] == "cc-by-4.0"


class TestTurns:
    CALLS: ClassVar = [{"name": "f", "arguments": {"a": "x"}}, {"name": "f", "arguments": {"a": "y"}}]
    TOOLS: ClassVar = [
        {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    ]

    @pytest.mark.parametrize("mute", [{"weight": 0}, {"train": False}, {"training": False}])
    @pytest.mark.parametrize("split", [False, True])
    def test_a_muted_answer_is_context_only(self, tmp_path: Path, mute: dict, split: bool):
        calls = [{"role": "function_call", "content": json.dumps(call)} for call in self.CALLS]
        last = calls if split else [{"role": "assistant", "tool_calls": self.CALLS}]
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "bad", **mute}]
        row = {"messages": [*messages, {"role": "user", "content": "go"}, *last], "tools": self.TOOLS}
        _, (task,), _ = imported(lines(tmp_path / "x.jsonl", row), tmp_path / "t")
        assert gold(task) == [("f", {"a": "x"}), ("f", {"a": "y"})] and "bad" in task["messages_json"]
        assert "muted" not in task["messages_json"]

    @pytest.mark.parametrize(
        "value", ["</tool_call>", "<tool_call>", "</tool_call>\n<tool_call>{}", 'a "</tool_call>" b']
    )
    @pytest.mark.parametrize("count", [1, 2])
    def test_a_tag_in_a_string_ends_nothing(self, tmp_path: Path, value: str, count: int):
        block = "<tool_call>\n" + json.dumps({"name": "f", "arguments": {"a": value}}) + "\n</tool_call>"
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\n".join([block] * count)}]
        _, (task,), _ = imported(
            lines(tmp_path / "x.jsonl", {"messages": messages, "tools": self.TOOLS}), tmp_path / "t"
        )
        assert gold(task) == [("f", {"a": value})] * count

    @pytest.mark.parametrize(
        "own",
        ["Today is 3 May 2024. The customer's id is K-17.", "Answer in English.", "Version 2.5 of the shop is used."],
    )
    def test_a_system_turns_own_sentences_stay(self, tmp_path: Path, own: str):
        known = (
            "You are a function calling AI model. You are provided with function signatures within <tools></tools> XML tags. "
            "You may call one or more functions to assist with the user query. Don't make assumptions about what values to "
            f"plug into functions. Here are the available tools: <tools> {json.dumps(self.TOOLS)} </tools> Use the following "
            'pydantic model json schema for each tool call you will make: {"title": "FunctionCall", "type": "object"} For '
            "each function call return a json object with function name and arguments within <tool_call></tool_call> XML "
            'tags as follows:\n<tool_call>\n{"arguments": <args-dict>, "name": <function-name>}\n</tool_call>\n'
        )
        call = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
        for number, system in enumerate((known + own, known)):
            turns = [
                {"from": "system", "value": system},
                {"from": "human", "value": "q"},
                {"from": "gpt", "value": call},
            ]
            file = lines(tmp_path / f"{number}.jsonl", {"conversations": turns})
            _, (task,), _ = imported(file, tmp_path / f"t{number}")
            messages = json.loads(task["messages_json"])
            assert [m["content"] for m in messages] == ([own, "q"] if number == 0 else ["q"])
            assert json.loads(task["tools_json"])[0]["name"] == "f"

    def test_glaive_says_something_before_it_calls(self, tmp_path: Path):
        row = {
            "system": "SYSTEM: functions - " + json.dumps(self.TOOLS[0]),
            "chat": 'USER: q\n\n\nASSISTANT: One moment. <functioncall> {"name": "f", "arguments": \'{"a": "x"}\'} '
            "<|endoftext|>\n\n\nFUNCTION RESPONSE: {}\n\n\nASSISTANT: Done. <|endoftext|>",
        }
        _, (first, second), _ = imported(lines(tmp_path / "x.jsonl", row), tmp_path / "t")
        assert (
            gold(first) == [("f", {"a": "x"})] and json.loads(first["extra_json"])["said_before_calls"] == "One moment."
        )
        assert "<functioncall>" not in second["messages_json"]

    @pytest.mark.parametrize(
        ("text", "call"),
        [
            ('[Convert Currency(from="EUR", to="USD")]', ("Convert Currency", {"from": "EUR", "to": "USD"})),
            ('[Get Price (v2)(a="x")]', ("Get Price (v2)", {"a": "x"})),
            ("[get(max-results=3, class=true)]", ("get", {"max-results": 3, "class": True})),
            ("[f(a=[1, {'b': (2, None)}], in='x=1, y')]", ("f", {"a": [1, {"b": [2, None]}], "in": "x=1, y"})),
            ("[f()]", ("f", {})),
            ("[f(lambda=-1.5)]", ("f", {"lambda": -1.5})),
        ],
    )
    def test_toolace_names_and_keywords(self, tmp_path: Path, text: str, call: tuple):
        system = 'functions: [{"name": "f", "parameters": {}}] [func1(params_name1=params_value1)]'
        turns = [{"from": "user", "value": "q"}, {"from": "assistant", "value": text}]
        _, (task,), _ = imported(
            lines(tmp_path / "x.jsonl", {"system": system, "conversations": turns}), tmp_path / "t"
        )
        assert gold(task) == [call]

    @pytest.mark.parametrize(
        "text", ["[f(__import__('os').system('x'))]", "[f(a=open('x'))]", "[f(a=1, a=2)]", "[f(1)]", "[f(a=b)]"]
    )
    def test_toolace_runs_nothing(self, tmp_path: Path, text: str):
        system = 'functions: [{"name": "f", "parameters": {}}] [func1(params_name1=params_value1)]'
        turns = [{"from": "user", "value": "q"}, {"from": "assistant", "value": text}]
        _, tasks, (reject,) = imported(
            lines(tmp_path / "x.jsonl", {"system": system, "conversations": turns}), tmp_path / "t"
        )
        assert not tasks and reject["reason"] == "bad_call"

    @pytest.mark.parametrize(
        ("schema_", "kept"),
        [
            ({"type": "integer"}, False), ({"type": ["integer", "null"]}, True), ({}, True), ({"enum": [1, 2]}, False),
            ({"enum": [1, None]}, True), ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, True),
            ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, False), ({"type": "integer", "nullable": True}, True),
            ({"const": 1}, False),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("required", [False, True])
    def test_null_padding_goes_where_null_is_not_allowed(
        self, tmp_path: Path, schema_: dict, kept: bool, required: bool
    ):
        parameters = {"type": "object", "properties": {"a": {"type": "string"}, "year": schema_}, "required": ["a"]}
        if required:
            parameters["required"] = ["a", "year"]
        tool = {"name": "f", "description": "d", "parameters": parameters}
        call = {"name": "f", "arguments": {"a": "x", "year": None, "other": None}}
        row = {
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}],
            "tools": [tool],
        }
        _, (task,), _ = imported(lines(tmp_path / "x.jsonl", row), tmp_path / "t")
        assert gold(task) == [("f", {"a": "x", "year": None} if kept or required else {"a": "x"})]


def damaged(row: object, draw: random.Random) -> object:
    """The row with one place dropped, nulled, retyped, nested or repeated."""
    places: list[tuple] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            places.extend((value, key) for key in value)
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            places.extend((value, index) for index in range(len(value)))
            for item in value:
                walk(item)

    row = json.loads(json.dumps(row))
    walk(row)
    if not places or draw.random() < 0.02:
        return draw.choice(DAMAGES)
    holder, key = draw.choice(places)
    how = draw.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = draw.choice(DAMAGES)
    elif how == 2:
        holder[key] = [holder[key], holder[key]]
    elif how == 3:
        holder[key] = {"inner": holder[key]}
    elif how == 4:
        holder[key] = json.dumps(holder[key])
    elif isinstance(holder[key], str):
        cut = draw.randrange(len(holder[key]) + 1)
        holder[key] = (
            holder[key][:cut]
            + draw.choice(["", "\ud800", "\x00", '"', "}", "</tool_call>", "<think>"])
            + holder[key][cut:]
        )
    return row


def damage_all(tmp_path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    for file in sorted(RAW.rglob("*")):
        if not file.is_file() or "possible_answer" in str(file) or file.suffix == ".parquet":
            continue
        rows = [raw.value for raw in raw_rows(file) if raw.fault is None]
        form = next(f for f in FORMATS.values() if f.looks_like(rows[0]))
        odd = tmp_path / f"{file.stem}.jsonl"
        lines(odd, *(damaged(draw.choice(rows), draw) for _ in range(count)))
        imported(odd, tmp_path / f"tasks-{file.stem}", format=form.name, broken="reject")


def test_damaged_rows_of_all_formats_add_up(tmp_path: Path):
    damage_all(tmp_path, 150, 0)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_rows_add_up(tmp_path: Path):
    damage_all(tmp_path, 9000, 1)
