"""Corpora put together: tools from a file, any columns by a map, task shards again, repeats and test items found."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.importing_runs import RAW

from toolsample_cli.config import ImportConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.importing.contamination import Benchmark
from toolsample_cli.importing.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Account, Options

FIELDS = ("sea/harbour", "land")
CATALOGUE = [
    {"api_name": f"tool_{i}", "api_description": f"does {i}", "field": FIELDS[i % 2], "required": ["a"],
     "parameters": {"a": {"type": "str", "description": "x"}, "b": {"type": "int", "description": "y"}}}
    for i in range(12)
]  # fmt: skip


def lines(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def imported(raw: Path | list[Path], out: Path, **config: object) -> tuple[Account, list[dict]]:
    files = [str(one) for one in (raw if isinstance(raw, list) else [raw])]
    account = run(files, out, ImportConfig(**config), Options())
    further = account.extra.get("further answers", 0)
    assert account.rows_in + further == account.rows_out + sum(account.dropped.values())
    return account, open_folder(out, schema.TASKS).load().to_dicts()


class TestToolsInAFile:
    def row(self, number: int, *apis: str, value: object = "x") -> dict:
        calling = [{"api": api, "parameters": {"a": value}, "responses": ["API_call_0"]} for api in apis]
        return {"id": f"train-{number}", "query": f"do {number}", "calling": calling}

    def test_distractors_are_of_the_same_field_and_repeat(self, tmp_path: Path):
        tools = lines(tmp_path / "tool.jsonl", CATALOGUE)
        file = lines(tmp_path / "seal.jsonl", [self.row(i, f"tool_{i}") for i in range(6)])
        for name in ("t", "u"):
            account, tasks = imported(file, tmp_path / name, tools=str(tools), distractors=3)
            assert account.extra["format"] == "seal-tools" and len(tasks) == 6
            offered = [[tool["name"] for tool in json.loads(task["tools_json"])] for task in tasks]
            for i, names in enumerate(offered):
                assert len(set(names)) == 4 and f"tool_{i}" in names
                assert {int(name[5:]) % 2 for name in names} == {i % 2}
        assert offered == [[tool["name"] for tool in json.loads(task["tools_json"])] for task in tasks]
        assert json.loads(tasks[0]["tools_json"])[0]["parameters"]["required"] == ["a"]

    def test_too_small_a_field_is_filled_up_from_the_rest(self, tmp_path: Path):
        tools = lines(tmp_path / "tool.jsonl", CATALOGUE[:4])
        file = lines(tmp_path / "seal.jsonl", [self.row(0, "tool_0")])
        _, (task,) = imported(file, tmp_path / "t", tools=str(tools), distractors=9)
        assert len(json.loads(task["tools_json"])) == 4

    def test_what_cannot_be_a_task_says_why(self, tmp_path: Path):
        tools = lines(tmp_path / "tool.jsonl", CATALOGUE)
        rows = [
            self.row(0, "tool_0", value="API_call_1"),
            self.row(1, "tool_1", value=["API_call_0"]),
            self.row(2, "no_such"),
        ]
        account, tasks = imported(
            lines(tmp_path / "seal.jsonl", [*rows, self.row(3, "tool_3")]), tmp_path / "t", tools=str(tools)
        )
        assert len(tasks) == 1 and account.dropped == {"nested_calls": 2, "unknown_tool": 1}
        account, _ = imported(lines(tmp_path / "s.jsonl", [self.row(3, "tool_3")]), tmp_path / "u")
        assert account.dropped == {"no_tools": 1} and account.exit_code == 3

    def test_a_file_that_is_no_catalogue_is_refused(self, tmp_path: Path):
        file = lines(tmp_path / "seal.jsonl", [self.row(0, "tool_0")])
        with pytest.raises(DataError, match="row 1: a tool has no name"):
            imported(file, tmp_path / "t", tools=str(lines(tmp_path / "x.jsonl", [{"a": 1}])))

    def test_seal_tools_is_accounted_for(self, tmp_path: Path, shared_data: Path):
        folder = shared_data / "seal_tools"
        config = {"tools": str(folder / "tool.jsonl"), "distractors": 4}
        account, tasks = imported(folder / "test_in_domain.jsonl", tmp_path / "t", **config)
        assert account.rows_in == 700 and account.dropped == {"nested_calls": 30} and len(tasks) == 670
        assert {task["split"] for task in tasks} == {"test"}
        assert all(len(json.loads(task["tools_json"])) >= 5 for task in tasks)


class TestMaps:
    ROW = {"meta": {"tools": [{"name": "f", "parameters": {"a": {"type": "str"}}}]}, "q": "do it", "id": 7,
           "gold": {"calls": [{"name": "f", "arguments": {"a": "x"}}]}, "words": "done"}  # fmt: skip

    @pytest.mark.parametrize("text", [False, True])
    def test_any_columns_by_paths(self, tmp_path: Path, text: bool):
        row = {key: json.dumps(value) if text and isinstance(value, dict) else value for key, value in self.ROW.items()}
        column = "query=q,tools=meta.tools,answers=gold.calls"
        _, (task,) = imported(lines(tmp_path / "x.jsonl", [row]), tmp_path / "t", column=column)
        assert json.loads(task["gold_json"]) == [{"name": "f", "arguments": {"a": "x"}}]
        assert json.loads(task["messages_json"])[0]["content"] == "do it" and json.loads(task["extra_json"])["id"] == 7

    def test_a_file_of_the_map_and_a_response_in_words(self, tmp_path: Path):
        (tmp_path / "map.json").write_text(json.dumps({"query": "q", "tools": "meta.tools", "response": "words"}))
        _, (task,) = imported(lines(tmp_path / "x.jsonl", [self.ROW]), tmp_path / "t", map=str(tmp_path / "map.json"))
        assert task["gold_kind"] == "response" and task["gold_text"] == "done"

    def test_list_items_by_number(self, tmp_path: Path):
        row = {"rows": [{"q": "a"}, {"q": "b"}], "c": [[], self.ROW["gold"]["calls"]], "t": self.ROW["meta"]["tools"]}
        _, (task,) = imported(
            lines(tmp_path / "x.jsonl", [row]), tmp_path / "t", column="query=rows.-1.q,tools=t,answers=c.1"
        )
        assert "b" in task["messages_json"]

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            ("question=q", "no target 'question'"),
            ("query", "expected target=path"),
            ("query=q", "a map names messages"),
        ],
    )
    def test_a_wrong_map_is_named(self, tmp_path: Path, column: str, words: str):
        with pytest.raises(ConfigError, match=words):
            imported(lines(tmp_path / "x.jsonl", [self.ROW]), tmp_path / "t", column=column)

    def test_a_path_that_leads_nowhere_is_a_reject(self, tmp_path: Path):
        config = {"column": "query=nope.q,tools=meta.tools,answers=gold.calls"}
        account, tasks = imported(lines(tmp_path / "x.jsonl", [self.ROW]), tmp_path / "t", **config)
        assert not tasks and account.dropped == {"bad_message": 1}

    def test_llamafactorys_description_is_the_map_it_is(self, tmp_path: Path):
        turns = [{"who": "asker", "text": "do it"}, {"who": "caller", "text": '{"name": "f", "arguments": {"a": "x"}}'}]
        lines(
            tmp_path / "mine.jsonl",
            [{"dialogue": turns, "fns": json.dumps(self.ROW["meta"]["tools"]), "sys": "Be brief."}],
        )
        tags = {"role_tag": "who", "content_tag": "text", "user_tag": "asker", "function_tag": "caller"}
        columns = {"messages": "dialogue", "tools": "fns", "system": "sys"}
        entry = {"file_name": "mine.jsonl", "formatting": "sharegpt", "columns": columns, "tags": tags}
        info = {"mine": entry, "hub": {"hf_hub_url": "x/y"}, "gone": {**entry, "file_name": "gone.jsonl"}}
        (tmp_path / "dataset_info.json").write_text(json.dumps(info))
        _, (task,) = imported(tmp_path / "dataset_info.json", tmp_path / "t")
        assert json.loads(task["gold_json"])[0]["name"] == "f"
        assert [m["role"] for m in json.loads(task["messages_json"])] == ["system", "user"]


class TestFolders:
    def test_other_files_are_named_and_do_not_stop_the_rest(self, tmp_path: Path):
        folder = tmp_path / "set"
        folder.mkdir()
        lines(folder / "a.jsonl", json.loads((RAW / "xlam.json").read_text()))
        (folder / "README.md").write_text("words")
        (folder / "dataset_infos.json").write_text("{}")
        lines(folder / "other.jsonl", [{"x": 1}])
        account, tasks = imported(folder, tmp_path / "t")
        assert tasks and all(
            name in account.extra["passed over"] for name in ("README.md", "dataset_infos.json", "other.jsonl")
        )

    def test_a_folder_of_unknown_files_says_so(self, tmp_path: Path):
        (tmp_path / "set").mkdir()
        lines(tmp_path / "set" / "other.jsonl", [{"x": 1}])
        with pytest.raises(DataError, match="unknown format"):
            imported(tmp_path / "set", tmp_path / "t")


class TestTaskShards:
    def test_corpora_are_merged_and_keep_their_ids(self, tmp_path: Path):
        _, first = imported(RAW / "xlam.json", tmp_path / "a", license="cc-by-4.0")
        _, second = imported(RAW / "rlla.json", tmp_path / "b")
        _, merged = imported([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
        assert [task["task_id"] for task in merged] == [task["task_id"] for task in [*first, *second]]
        assert [{**task} for task in merged] == [*first, *second]

    def test_a_repeat_over_corpora_gets_its_number(self, tmp_path: Path):
        _, first = imported(RAW / "xlam.json", tmp_path / "a")
        _, merged = imported([tmp_path / "a", tmp_path / "a"], tmp_path / "c")
        assert [task["task_id"] for task in merged[len(first) :]] == [f"{task['task_id']}-2" for task in first]

    def test_a_damaged_gold_is_found_again(self, tmp_path: Path):
        imported(RAW / "xlam.json", tmp_path / "a")
        rows = open_folder(tmp_path / "a", schema.TASKS).load().to_dicts()
        rows[0]["gold_text"] = "nonsense"
        account, _ = imported(lines(tmp_path / "x.jsonl", rows), tmp_path / "c")
        assert sum(account.dropped.values()) == 1


def requests(count: int, seed: int) -> list[str]:
    """Requests that share their frame and differ in names and numbers, as templates of benchmarks do."""
    draw = random.Random(seed)
    places, things = (
        ["Split", "Rab", "Cres", "Vis", "Krk", "Pag", "Hvar"],
        ["ferry", "table", "room", "boat", "car", "bus"],
    )
    frames = [
        "I need a {} from {} to {} on May {} for {} people, please find the cheapest one",
        "what is the price of the {} between {} and {} if we leave on the {} with {} bags",
        "book the {} that leaves {} and arrives in {} before {} o'clock and has at least {} seats",
    ]
    return [
        draw.choice(frames).format(draw.choice(things), *draw.sample(places, 2), draw.randrange(28), draw.randrange(90))
        for _ in range(count)
    ]


class TestContamination:
    def test_the_same_words_match_however_they_are_written(self):
        items = Benchmark(0.8)
        request = "Please book a Table for 4 at Joe's Bar, tomorrow!"
        items.add(request, [], "bfcl row 1")
        for other in (
            request.upper(),
            "  please   book a table for 4\nat joe's bar tomorrow",
            "Tomorrow, please book at Joe's Bar a table for 4",
        ):
            match = items.match(other, [])
            assert match is not None and match.how == "same_request" and match.where == "bfcl row 1"
        assert items.match("Please book a table for 5 at another bar on Friday night instead", []) is None

    def test_short_requests_match_only_whole(self):
        items = Benchmark(0.5)
        items.add("weather in Rome", [], "x")
        assert items.match("weather in Oslo", []) is None and items.match("Weather in ROME?", []) is not None

    def test_gold_calls_match_in_any_order_where_they_say_enough(self):
        items = Benchmark(0.9)
        calls = [{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "g", "arguments": {"c": [1]}}]
        items.add("first words of one kind", calls, "x")
        items.add("second words of one kind", calls[1:], "y")
        match = items.match("wholly other things are said here", calls[::-1])
        assert match is not None and match.how == "same_gold"
        assert items.match("wholly other things", calls[1:]) is None

    def test_a_long_list_is_searched_as_a_loop_would(self):
        """The index of rare words finds what comparing with every test item finds."""
        from collections import Counter

        from toolsample_cli.importing.contamination import words_of

        tests, ours = requests(150, 1), requests(300, 2)
        items = Benchmark(0.75)
        for number, text in enumerate(tests):
            items.add(text, [], str(number))
        for text in ours:
            mine = Counter(words_of(text))
            shares = []
            for other in tests:
                theirs = Counter(words_of(other))
                common = sum((mine & theirs).values())
                shares.append(common / (sum(mine.values()) + sum(theirs.values()) - common))
            assert (items.match(text, []) is not None) == (max(shares) >= 0.75)

    @pytest.mark.parametrize(("what", "left"), [("drop", 2), ("flag", 4)])
    def test_test_items_leave_the_corpus_or_are_flagged(self, tmp_path: Path, what: str, left: int):
        tool = [{"name": "f", "parameters": {"a": {"type": "str"}}}]
        rows = [
            {"query": text, "tools": tool, "answers": [{"name": "f", "arguments": {"a": "x"}}]}
            for text in requests(4, 3)
        ]
        imported(lines(tmp_path / "test.jsonl", rows[:2]), tmp_path / "bench", split="test")
        config = {"decontaminate": str(tmp_path / "bench"), "contaminated": what, "near": 1.0}
        account, tasks = imported(lines(tmp_path / "corpus.jsonl", rows), tmp_path / "t", **config)
        assert (
            len(tasks) == left and account.extra["contaminated"] == 2 and "row" in account.extra["first contaminated"]
        )
        flagged = [task for task in tasks if "contaminated" in task["gold_issues_json"]]
        assert len(flagged) == (2 if what == "flag" else 0)

    def test_repeats_and_doubtful_golds_are_left_out_when_asked(self, tmp_path: Path):
        tool = [{"name": "f", "parameters": {"a": {"type": "int"}}}]
        rows = [{"query": q, "tools": tool, "answers": [{"name": "f", "arguments": {"a": a}}]}
                for q, a in (("Do it.", 1), ("do it", 1), ("do it", 2), ("other", "three"))]  # fmt: skip
        file = lines(tmp_path / "x.jsonl", rows)
        account, tasks = imported(file, tmp_path / "t", dedup=True, flagged="drop")
        assert len(tasks) == 2 and account.dropped == {"duplicate": 1, "flagged": 1}
        assert len(imported(file, tmp_path / "u")[1]) == 4
