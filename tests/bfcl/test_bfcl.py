"""eval-bfcl: questions, answers, verdicts of the official checker, numbers.

    python -m pytest tests/test_bfcl.py

The official checker's environment is made on first use; without a package index the tests that need it are skipped.
"""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path

import polars as pl
import pytest
from support.bfcl_world import BOOK, BOOKED, question, write_world
from support.tiny_model import tiny_model

from toolsample_cli.bfcl import categories, environment, prompts
from toolsample_cli.bfcl.aggregate import CategoryTally as Tally
from toolsample_cli.bfcl.aggregate import formats, overall, tallies, wilson
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.judging import judge, judge_all, unread_calls
from toolsample_cli.bfcl.questions import read_questions
from toolsample_cli.bfcl.stage import QuestionSource, run
from toolsample_cli.config import EvalConfig
from toolsample_cli.errors import ConfigError, DataError, MissingDependency
from toolsample_cli.shards.journal import Journal
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS


@pytest.fixture(scope="session")
def v4() -> environment.Environment:
    """The environment of the v4 checker."""
    try:
        return environment.provide("v4")
    except MissingDependency as missing:
        pytest.skip(str(missing))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """The small world's questions."""
    return write_world(tmp_path / "world")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_wilson_interval_of_known_cases():
    """Against values worked by hand from the formula: 0 of 10 gives z^2 / (n + z^2)."""
    z2 = 1.959963984540054**2
    low, high = wilson(0, 10)
    assert low == 0.0
    assert math.isclose(high, z2 / (10 + z2))
    low, high = wilson(50, 100)
    assert math.isclose(low + high, 1.0)
    assert 0.40 < low < 0.41


def _all(version: str, accuracy: float = 0.5) -> dict[str, Tally]:
    return {name: Tally(int(100 * accuracy), 100) for name in categories.SCORED[version]}


def test_v4_overall_is_the_weighted_sum_of_its_parts():
    """10, 10, 10, 30 and 40 percent; the live part weighs categories by size; live_relevance enters nowhere."""
    counts = _all("v4") | {
        "simple_python": Tally(90, 100),
        "live_simple": Tally(300, 300),
        "live_relevance": Tally(0, 100),
        "memory_kv": Tally(100, 100),
    }
    parts = overall(counts, "v4")
    non_live = ((0.9 + 0.5 + 0.5) / 3 + 0.5 * 3) / 4
    live = (300 + 50 * 3) / 600
    agentic = (0.5 + (1.0 + 0.5 + 0.5) / 3) / 2
    assert math.isclose(parts["non_live"], non_live)
    assert math.isclose(parts["live"], live)
    assert math.isclose(parts["overall"], 0.1 * non_live + 0.1 * live + 0.1 * 0.5 + 0.3 * 0.5 + 0.4 * agentic)


def test_late_v3_overall_is_the_mean_of_three_parts():
    """Never calling a tool earns 19.7 percent, because live irrelevance is 39 percent of the live rows."""
    sizes = {"live_simple": 258, "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24}
    counts = {name: Tally(0, sizes.get(name, 200)) for name in categories.SCORED["v3"]}
    counts |= {
        "irrelevance": Tally(240, 240),
        "live_irrelevance": Tally(882, 882),
        "live_relevance": Tally(0, 18),
    }
    parts = overall(counts, "v3")
    assert math.isclose(parts["non_live"], 0.2)
    assert math.isclose(parts["live"], 882 / 2251)
    assert round(parts["overall"] * 100, 1) == 19.7


@pytest.mark.parametrize("version", ["v3", "v4"])
def test_no_overall_while_a_category_is_missing_or_has_errors(version: str):
    """An incomplete run gives parts only."""
    assert overall(_all(version), version)["overall"] == 0.5
    for name in categories.SCORED[version]:
        if name == "live_relevance" and version == "v4":
            continue
        without = {key: value for key, value in _all(version).items() if key != name}
        assert overall(without, version)["overall"] is None
        assert overall(_all(version) | {name: Tally(50, 99, 1)}, version)["overall"] is None


def test_failed_inference_is_in_neither_right_nor_judged():
    """It is counted apart."""
    counts = tallies([("irrelevance", True), ("irrelevance", None), ("irrelevance", False)])
    assert counts == {"irrelevance": Tally(1, 2, 1)}
    assert counts["irrelevance"].accuracy == 1 / 2
    assert counts["irrelevance"].officially("irrelevance") == 2 / 3  # the official convention: a right refusal
    assert Tally(1, 2, 1).officially("multiple") == 1 / 3


def test_the_spread_over_forms_of_prompt_is_in_points():
    """Largest minus smallest share, and the sample standard deviation, as the official evaluator rounds them."""
    rows = [("format_sensitivity_0:a:x_0", True), ("format_sensitivity_1:b:x_0", False)]
    rows += [
        ("format_sensitivity_2:a:x_1", True),
        ("format_sensitivity_3:b:x_1", True),
        ("format_sensitivity_4:b:x_2", None),
    ]
    assert formats(rows) == {"max_delta": 50.0, "std": 35.36, "forms": 2}
    assert formats([]) == {}


# ---- categories and questions ----------------------------------------------------------------------------------------


def test_categories_and_groups_are_the_official_ones():
    """Counts as published; v4 names are understood for v3."""
    assert len(categories.select("all", "v3")) == 17
    assert len(categories.select("all", "v4")) == 22
    assert categories.select("simple_java,live", "v3") == ("java", *categories.LIVE)
    assert categories.select("non_live,live", "v4") == categories.groups("v4")["single_turn"]
    with pytest.raises(ConfigError, match="multi_turn_bas'"):
        categories.select("multi_turn_bas", "v4")


def test_questions_come_with_their_answers_and_in_the_checkers_words(world: Path):
    """JSON Schema's type names become the official checker's; the prompt keeps the user's."""
    questions = {q.id: q for q in read_questions(world)}
    both = questions["parallel_multiple_0"]
    assert both.category == "parallel_multiple"
    assert both.entry["function"][0]["parameters"]["type"] == "object"
    assert both.truth[0] == BOOKED
    assert questions["irrelevance_0"].kind == "irrelevance"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{broken", "row 1.*not valid JSON"),
        (json.dumps({"question": []}), "row 1.*an id"),
        (json.dumps(question("simple_0", "x", [BOOK])), "no ground truth"),
        (json.dumps({**question("simple_0", "x", [BOOK]), "question": "text"}), "list of turns"),
        (json.dumps(question("multi_turn_base_0", "x", [BOOK])), "simulated tools"),
        (json.dumps(question("nothing", "x", [BOOK])), "category"),
    ],
)
def test_bad_questions_are_named_with_file_and_row(tmp_path: Path, row: str, says: str):
    """One clear line each."""
    file = tmp_path / "mine.json"
    file.write_text(row + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"mine.json.*{says}"):
        read_questions(file)


def test_an_array_without_items_is_refused_because_the_official_checker_would_crash(tmp_path: Path):
    """The message names the parameter."""
    tool = {"name": "f", "parameters": {"type": "dict", "properties": {"xs": {"type": "array"}}, "required": []}}
    row = {**question("simple_0", "x", [tool]), "ground_truth": [{"f": {"xs": [[1]]}}]}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(DataError, match="xs of f is an array without `items`"):
        read_questions(file)


def test_prompts_carry_the_tools_as_import_would_store_them(world: Path):
    """Dots stay in names; types are JSON Schema's."""
    question = read_questions(world)[-1]
    row = prompts.task_row(prompts.Prompt(question.id, question.turns[0], question.functions), "hermes")
    tools = json.loads(row["tools_json"])
    assert tools[0]["name"] == "rooms.book"
    assert tools[0]["parameters"]["type"] == "object"
    assert tools[0]["parameters"]["properties"]["hours"]["type"] == "number"


# ---- the journal -----------------------------------------------------------------------------------------------------


def test_the_journal_survives_a_torn_line_and_refuses_other_settings(tmp_path: Path):
    """Errors are asked again; whole lines are kept."""
    path = tmp_path / "out" / "answers.jsonl"
    with Journal(path, {"model": "a"}) as journal:
        journal.add({"id": "x", "prompt": "p", "text": "1", "finish_reason": "stop"})
        journal.add({"id": "y", "prompt": "p", "error": "no room"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "z", "te')
    with Journal(path, {"model": "a"}) as journal:
        assert [journal.answered(key) for key in "xyz"] == [True, False, False]
        journal.add({"id": "y", "prompt": "p", "text": "2", "finish_reason": "stop"})
    assert Journal(path, {"model": "a"}).answered("y")
    with pytest.raises(ConfigError, match="model was 'a', now 'b'"):
        Journal(path, {"model": "b"})
    assert not Journal(path, {"model": "b"}, overwrite=True).records


# ---- verdicts of the official checker --------------------------------------------------------------------------------


def _hermes(*calls: Call) -> str:
    return PROTOCOLS["hermes"].render(list(calls))


RIGHT_BOOK = Call("rooms.book", {"room": "oak", "seats": 6, "hours": 1.5, "extras": ["beamer"]})
RIGHT_MAIL = Call("send_mail", {"to": "Ana"})
HERMES = {
    "simple_python_0": [
        (_hermes(RIGHT_BOOK), True, None),
        (_hermes(Call("rooms.book", {"room": "Oak", "seats": 6})), True, None),
        (_hermes(Call("rooms_book", {"room": "Oak", "seats": 6})), False, "simple_function_checker:wrong_func_name"),
        (_hermes(Call("rooms.book", {"room": "Oak", "seats": "6"})), False, "type_error:simple"),
        (_hermes(Call("rooms.book", {"room": "Oak", "seats": 7})), False, "value_error:others"),
        (_hermes(Call("rooms.book", {"seats": 6})), False, "simple_function_checker:missing_required"),
        (_hermes(RIGHT_BOOK, RIGHT_BOOK), False, "simple_function_checker:wrong_count"),
        ("<tool_call>\n{broken\n</tool_call>", False, "simple_function_checker:wrong_count"),
        ("", False, "simple_function_checker:wrong_count"),
    ],
    "parallel_multiple_0": [
        (_hermes(RIGHT_BOOK, RIGHT_MAIL), True, None),
        (_hermes(RIGHT_MAIL, RIGHT_BOOK), True, None),
        (_hermes(RIGHT_MAIL), False, "parallel_function_checker_no_order:wrong_count"),
        (_hermes(RIGHT_MAIL, RIGHT_MAIL), False, "parallel_function_checker_no_order:cannot_find_match"),
    ],
    "irrelevance_0": [
        ("Lima, but I have no tool for that.", True, None),
        (_hermes(RIGHT_MAIL), False, "irrelevance_error:decoder_success"),
    ],
}
PROMPTED = {
    "simple_python_0": [
        ('[rooms.book(room="Oak", seats=6)]', True, None),
        ("<think>six</think>\n[rooms.book(room='Oak', seats=2*3)]", True, None),
        ("I would book Oak.", False, "ast_decoder:decoder_failed"),
        ("[rooms.book(room='Oak', seats=__import__('os').system('touch owned') + 6)]", False, "refused:code"),
        ("[rooms.book(room='Oak', seats=9**9**9)]", False, "refused:code"),
        ("x" * 10_000_000, False, "refused:too_long"),
    ],
    "irrelevance_0": [
        ("No tool fits.", True, None),
        ("[send_mail(to='Ana')]", False, "irrelevance_error:decoder_success"),
        ('__import__("os").system("touch owned")', False, "irrelevance_error:decoder_success"),
        ("[send_mail(to=9**9**9)]", False, "refused:code"),
        ("x" * 10_000_000, False, "refused:too_long"),
    ],
}


@pytest.mark.parametrize(
    ("protocol", "cases"), [("hermes", HERMES), ("prompting", PROMPTED)], ids=["hermes", "prompting"]
)
def test_verdicts_of_the_official_checker(v4, world: Path, tmp_path: Path, monkeypatch, protocol: str, cases: dict):
    """Right, wrong, malformed, empty and hostile answers; nothing is executed and nothing hangs."""
    monkeypatch.chdir(tmp_path)
    questions = {q.id: q for q in read_questions(world)}
    started = time.monotonic()
    with Checker(v4) as scorer:
        for entry_id, answers in cases.items():
            for text, valid, error_type in answers:
                record = {"prompt": "p", "text": text}
                row, _ = judge(scorer, questions[entry_id], record, protocol)
                assert (row["valid"], row["error_type"]) == (valid, error_type), text[:200]
        assert scorer.generation == 1
    assert time.monotonic() - started < 20
    assert not list(tmp_path.rglob("owned"))


def test_a_failed_inference_is_no_correct_refusal(v4, world: Path):
    """The official evaluator would count the error text as a refusal."""
    (question,) = [q for q in read_questions(world) if q.kind == "irrelevance"]
    with Checker(v4) as scorer:
        ((row, _),) = judge_all(scorer, [question], {question.id: {"error": "engine: timeout"}}, "hermes")
    assert row["valid"] is None
    assert row["error_type"] == "inference: engine: timeout"


def test_calls_that_the_official_reader_does_not_see_are_counted(v4, world: Path):
    """A call without its closing tag is a right refusal officially; the summary says how many there are."""
    (question,) = [q for q in read_questions(world) if q.kind == "irrelevance"]
    record = {"prompt": "p", "text": '<tool_call>\n{"name": "send_mail", "arguments": {"to": "Ana"}}'}
    with Checker(v4) as scorer:
        judged = judge_all(scorer, [question], {question.id: record}, "hermes")
    assert judged[0][0]["valid"] is True
    assert unread_calls(judged, {question.id: record}, "hermes") == 1
    plain = {"prompt": "p", "text": "Lima."}
    assert unread_calls(judged, {question.id: plain}, "hermes") == 0


def test_a_request_over_its_time_is_wrong_and_the_next_one_is_judged(v4, world: Path):
    """The process is replaced; nothing is lost but the answer at fault."""
    questions = read_questions(world)
    simple = next(q for q in questions if q.category == "simple_python")
    good = {"prompt": "p", "text": _hermes(RIGHT_BOOK)}
    with Checker(v4) as scorer:
        judge(scorer, simple, good, "hermes")
        scorer._pipes.process.send_signal(signal.SIGSTOP)  # a hung scorer: on a fast machine no limit is short enough
        scorer.seconds = 0.5
        late, _ = judge(scorer, simple, good, "hermes")
        scorer.seconds = 20.0
        fine, _ = judge(scorer, simple, good, "hermes")
        assert scorer.generation == 2
    assert (late["valid"], late["error_type"]) == (False, "limit:time")
    assert fine["valid"] is True


def test_official_questions_are_there_in_full(v4):
    """Counts of the pinned release."""
    with Checker(v4) as scorer:
        assert len(scorer.entries("simple_python")) == 400
        assert len(scorer.entries("irrelevance")) == 240
        hinted = scorer.entries("simple_java")[0]["function"][0]["description"]
    assert hinted.endswith("Note that the provided function is in Java 8 SDK syntax.")


def test_two_processes_making_the_environment_do_not_clash(monkeypatch, tmp_path: Path):
    """One builds, the other waits and finds it whole; a killed build is cleared away."""
    monkeypatch.setenv("TOOLSAMPLE_CACHE", str(tmp_path / "cache"))
    built = []

    def build(command, pins):
        built.append(command)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)

    monkeypatch.setattr(environment, "_run", build)
    place = environment.folder_of("v4")
    place.mkdir(parents=True)  # a folder without the mark of a whole one
    (place / "rubbish").touch()
    first = environment.provide("v4")
    count = len(built)
    assert environment.provide("v4") == first
    assert len(built) == count
    assert environment.ready("v4")
    assert not (place / "rubbish").exists()


def test_missing_packages_end_in_the_command_to_try(monkeypatch, tmp_path: Path):
    """Exit code 4, and nothing half-made is taken for whole."""
    monkeypatch.setenv("TOOLSAMPLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(environment, "RELEASES", {"v4": "0.0.0"})
    with pytest.raises(MissingDependency, match=r"bfcl-eval==0\.0\.0") as caught:
        environment.provide("v4")
    assert caught.value.exit_code == 4
    assert "pip download --no-deps bfcl-eval==0.0.0" in caught.value.hint
    assert not environment.ready("v4")


# ---- from a checkpoint to a summary ----------------------------------------------------------------------------------


def test_a_checkpoint_is_asked_judged_and_summed_up(v4, world: Path, tmp_path: Path):
    """A rerun asks nothing again and ends in the same bytes; another model is refused."""
    model = str(tiny_model(tmp_path))
    config = EvalConfig(max_new_tokens=24)
    out = tmp_path / "out"
    account = run(model, out=out, sources=QuestionSource(world), config=config, options=Options())
    assert account.rows_in == 3
    frame = pl.read_parquet(out / "entries" / "part-00000.parquet")
    assert frame["entry_id"].to_list() == ["irrelevance_0", "parallel_multiple_0", "simple_python_0"]
    assert "rooms.book" in frame["prompt"][2]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["partial"] is True
    assert summary["all_entries"]["n"] == 3
    assert "official" not in summary
    before = (out / "entries" / "part-00000.parquet").read_bytes()
    again = run(model, out=out, sources=QuestionSource(world), config=config, options=Options())
    assert (out / "entries" / "part-00000.parquet").read_bytes() == before
    assert again.report == account.report
    with pytest.raises(ConfigError, match="max_new_tokens was 24, now 25"):
        run(model, out=out, sources=QuestionSource(world), config=EvalConfig(max_new_tokens=25), options=Options())


def test_a_killed_run_ends_like_an_unbroken_one(v4, world: Path, tmp_path: Path):
    """Answers that stand in the journal are kept, the others are asked anew with the same neighbours."""
    model = str(tiny_model(tmp_path))
    config = EvalConfig(max_new_tokens=24)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(model, out=whole, sources=QuestionSource(world), config=config, options=Options())
    lines = (whole / "answers.jsonl").read_bytes().splitlines(keepends=True)
    broken.mkdir()
    (broken / "answers.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])
    run(model, out=broken, sources=QuestionSource(world), config=config, options=Options())
    for name in ("entries/part-00000.parquet", "summary.json"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes()


def test_a_limit_counts_for_each_category_and_marks_the_result(v4, tmp_path: Path):
    """Official questions, the first two of two categories."""
    config = EvalConfig(categories="simple_python,irrelevance", max_new_tokens=4)
    out = tmp_path / "out"
    model = str(tiny_model(tmp_path, max_position_embeddings=4096))
    account = run(model, out=out, sources=QuestionSource(), config=config, options=Options(limit=2))
    assert account.rows_in == 4
    assert "partial: not comparable" in account.report
    assert pl.read_parquet(out / "entries" / "part-00000.parquet")["entry_id"].to_list() == [
        "simple_python_0", "simple_python_1", "irrelevance_0", "irrelevance_1",
    ]  # fmt: skip


def test_a_prompt_that_does_not_fit_is_an_error_row(v4, world: Path, tmp_path: Path):
    """Neither right nor wrong: the table says that an answer failed."""
    model = str(tiny_model(tmp_path, max_position_embeddings=32))
    account = run(model, out=tmp_path / "out", sources=QuestionSource(world), config=EvalConfig(), options=Options())
    frame = pl.read_parquet(tmp_path / "out" / "entries" / "part-00000.parquet")
    assert frame["valid"].null_count() == 3
    assert frame["error_type"].str.starts_with("inference: too_long").all()
    assert "3 answers failed" in account.report
