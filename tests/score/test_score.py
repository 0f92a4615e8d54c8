"""The score stage: rows in, rows out, resuming, slices, and what it says about bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli.config import ScoreConfig
from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.score.scorer import Cells, Gold, Rules, Scorer
from toolsample_cli.score.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.slice import Slice
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.call import Call, calls_json
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tools import toolbox

TOOLS = [
    {"name": "book", "description": "", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
]


def task(task_id: str, protocol: str = "rlla", gold: tuple = (Call("book", {"n": 1}),), **changed: object) -> dict:
    return {
        "task_id": task_id, "source": "hand", "split": "train", "category": "simple", "protocol": protocol,
        "messages_json": '[{"role":"user","content":"book one"}]', "tools_json": json.dumps(TOOLS),
        "gold_json": calls_json(gold), "gold_kind": "calls" if gold else "response", "gold_text": None,
        "gold_issues_json": "[]", "demos_json": "[]", "demo_task_ids": [], "parent_task_id": None, "license": "",
        "extra_json": "{}", **changed,
    }  # fmt: skip


def rollout(task_id: str, sample: int, text: str, **changed: object) -> dict:
    return {
        "rollout_id": f"{task_id}/0/{sample}", "task_id": task_id, "round": 0, "sample": sample, "policy": "p",
        "backend": "replay", "seed": 0, "prompt_ids": [1], "completion_ids": [2], "logprobs": None,
        "finish_reason": "stop", "ids_from_text": True, "text": text, "error": None, **changed,
    }  # fmt: skip


def write(folder: Path, kind: schema.Kind, *shards: list[dict]) -> Path:
    with Output(folder, kind, {}) as output:
        for number, rows in enumerate(shards):
            output.write(number, schema.frame(kind, rows))
        output.finish()
    return folder


def small(tmp_path: Path, shards: int = 3, each: int = 4) -> tuple[Path, Path]:
    """Tasks and rollouts: `shards` shards of `each` tasks with two samples, right and wrong in turns."""
    tasks, rollouts = [], []
    for k in range(shards):
        part = []
        for i in range(each):
            protocol = ("rlla", "hermes")[i % 2]
            tasks.append(task(f"t{k}-{i}", protocol))
            for sample in range(2):
                calls = [Call("book", {"n": 1 if sample == 0 else i + 2})]
                part.append(rollout(f"t{k}-{i}", sample, PROTOCOLS[protocol].render(calls, None, "thought")))
        rollouts.append(part)
    return write(tmp_path / "tasks", schema.TASKS, tasks), write(tmp_path / "rollouts", schema.ROLLOUTS, *rollouts)


def scored(tmp_path: Path, tasks: list[dict], rollouts: list[dict], config: ScoreConfig | None = None) -> list[dict]:
    made = write(tmp_path / "t", schema.TASKS, tasks), write(tmp_path / "r", schema.ROLLOUTS, rollouts)
    run(*made, out=tmp_path / "s", config=config or ScoreConfig(), options=Options())
    return open_folder(tmp_path / "s", schema.SCORES).load().to_dicts()


def test_every_rollout_gets_a_row_in_its_place(tmp_path: Path) -> None:
    """Order and shard numbers are those of the rollouts; columns of the task are copied."""
    tasks, rollouts = small(tmp_path)
    account = run(tasks, rollouts, out=tmp_path / "scores", config=ScoreConfig(), options=Options())
    got, source = open_folder(tmp_path / "scores", schema.SCORES), open_folder(rollouts, schema.ROLLOUTS)
    assert [(s.number, s.rows) for s in got.shards] == [(s.number, s.rows) for s in source.shards]
    frame = got.load()
    assert frame["rollout_id"].to_list() == source.load()["rollout_id"].to_list()
    assert frame.filter(pl.col("sample") == 0)["reward"].to_list() == [4.0] * 12
    assert frame.filter(pl.col("sample") == 1)["reward"].to_list() == [1 + 6 * 2 / 3 - 3] * 12
    assert frame["slot_id"].to_list() == frame["task_id"].to_list()
    assert (account.rows_in, account.rows_out, account.extra["exact"]) == (24, 24, "50.0%")
    assert got.counts == {"status ok": 24}


def test_errored_and_cut_rollouts_keep_their_row(tmp_path: Path) -> None:
    """An error has no reward; a completion cut at the length limit is called truncated."""
    cut = '<think> t </think>\n<tool_call>\n{"name": "book", "para'
    rows = scored(
        tmp_path,
        [task("t", parent_task_id="root", demos_json='[{"messages": []}, {"messages": []}]')],
        [rollout("t", 0, "", error="engine died", finish_reason=None), rollout("t", 1, cut, finish_reason="length")],
    )
    assert [row["parse_status"] for row in rows] == ["error", "truncated"]
    assert [row["reward"] for row in rows] == [None, -3.0]
    assert (rows[0]["slot_id"], rows[0]["shots"], rows[0]["reward_max"]) == ("root", 2, 4.0)
    assert (rows[0]["format"], rows[0]["exact"], rows[0]["value_max"], rows[0]["calls_json"]) == (None, None, 1.0, "[]")


MARKS = [
    "",
    "[TOOL_CALLS]",
    "a [f(x=1)] b",
    '{"name": "book"}',
    "```json",
    " \n\u2028é",
    "</s>",
    "<tool_call>",
    "<function=f>",
]


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "auto"])
def test_answers_that_are_judged_once_earn_what_each_earns_alone(protocol: str) -> None:
    """Rows are remembered by the answer behind a thought without tags; no thought and no other text changes one."""
    calls = [Call("book", {"n": 1}), Call("book", {"n": 2})]
    scorer = Scorer(Gold(tuple(calls), "calls"), protocol, Rules.of(ScoreConfig()), toolbox(json.dumps(TOOLS)))
    tails = [PROTOCOLS[name].render(calls[:count], None, None) for name in PROTOCOLS for count in (1, 2)]
    tails += [tail[tail.find("</think>") :] for tail in tails if "</think>" in tail] + ["", "\n", "</think>", "no"]
    for tail in tails:
        for mark in MARKS:
            for text in (
                tail,
                f"</think>{tail}",
                f"<think>{mark}</think>{tail}",
                f"<think>{mark}</think>\n{tail[:-9]}",
            ):
                for reason in ("stop", "length"):
                    alone = scorer.score(text, reason).columns
                    assert scorer.row(text, reason) == tuple(alone[name] for name in Cells._fields), text


def test_schema_validity_is_a_column_not_a_veto(tmp_path: Path) -> None:
    """A gold that breaks its own schema still earns the maximum."""
    gold = (Call("book", {"n": "one"}),)
    rows = scored(tmp_path, [task("t", gold=gold)], [rollout("t", 0, PROTOCOLS["rlla"].render(gold, None, "x"))])
    assert (rows[0]["reward"], rows[0]["exact"], rows[0]["schema_valid"]) == (4.0, True, False)


def test_killed_and_rerun_equals_an_unbroken_run(tmp_path: Path) -> None:
    """SIGKILL in the middle, then a rerun: byte for byte the same shards and manifest."""
    tasks, rollouts = small(tmp_path, shards=6)
    run(tasks, rollouts, out=tmp_path / "whole", config=ScoreConfig(), options=Options())
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom toolsample_cli.config import ScoreConfig\n"
        "from toolsample_cli.stage import Options\nfrom toolsample_cli.score.stage import run\n"
        "t, r, o = map(Path, sys.argv[1:])\n"
        "run(t, r, out=o, config=ScoreConfig(), options=Options(tick=lambda n: time.sleep(0.3)))"
    )
    child = subprocess.Popen([sys.executable, "-c", program, tasks, rollouts, tmp_path / "broken"])
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "broken").glob("*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert 2 <= len(list((tmp_path / "broken").glob("*.parquet"))) < 6
    with pytest.raises(DataError, match="not finished"):
        open_folder(tmp_path / "broken", schema.SCORES)
    run(tasks, rollouts, out=tmp_path / "broken", config=ScoreConfig(), options=Options())
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def contents(folder: Path) -> dict[str, bytes]:
    files = [*folder.iterdir(), folder.parent / f"{folder.name}.manifest.json"]
    return {file.name.removeprefix(folder.name): file.read_bytes() for file in files}


def test_slices_together_equal_the_whole(tmp_path: Path) -> None:
    """`--slice 0/2` and `--slice 1/2` write what one run writes."""
    tasks, rollouts = small(tmp_path)
    run(tasks, rollouts, out=tmp_path / "whole", config=ScoreConfig(), options=Options())
    for index in range(2):
        run(tasks, rollouts, out=tmp_path / "parts", config=ScoreConfig(), options=Options(slice=Slice(index, 2)))
    whole, parts = (open_folder(tmp_path / name, schema.SCORES) for name in ("whole", "parts"))
    assert parts.digest == whole.digest
    assert parts.counts == whole.counts


def test_limit_ids_and_dry_run(tmp_path: Path) -> None:
    """Only what was asked for, and nothing on disk when only asked what would happen."""
    tasks, rollouts = small(tmp_path)
    account = run(tasks, rollouts, out=tmp_path / "dry", config=ScoreConfig(), options=Options(dry_run=True))
    assert account.rows_in == 24 and not (tmp_path / "dry").exists()
    assert run(tasks, rollouts, out=tmp_path / "l", config=ScoreConfig(), options=Options(limit=10)).rows_out == 10
    (tmp_path / "ids").write_text("t1-2\nt2-0\n")
    options = Options(ids=tmp_path / "ids")
    assert run(tasks, rollouts, out=tmp_path / "i", config=ScoreConfig(), options=options).rows_out == 4
    with pytest.raises(ConfigError, match="limit"):
        run(tasks, rollouts, out=tmp_path / "l", config=ScoreConfig(), options=Options(limit=11))


def test_a_rollout_without_its_task_is_named(tmp_path: Path) -> None:
    """File, row, task and what to do; nothing is written."""
    with pytest.raises(DataError, match=r"part-00000.parquet row 2 \(task lost\): no such task") as caught:
        scored(tmp_path, [task("t")], [rollout("t", 0, "x"), rollout("lost", 0, "x")])
    assert "made from" in caught.value.hint
    assert not list((tmp_path / "s").glob("*.parquet"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"protocol": "morse"}, "unknown protocol 'morse'"),
        ({"gold_json": '[{"nome": "book"}]'}, "gold_json is not a list"),
        ({"tools_json": "[3]"}, "tools_json"),
        ({"demos_json": "many"}, "demos_json"),
    ],
)
def test_a_task_that_breaks_the_contract_is_named(tmp_path: Path, changed: dict, message: str) -> None:
    """Bad tasks are an error of the data, said once with the row."""
    with pytest.raises(DataError, match=r"row 1 \(task t\)") as caught:
        scored(tmp_path, [task("t", **changed)], [rollout("t", 0, "x")])
    assert message in str(caught.value)


def test_torn_foreign_and_missing_inputs(tmp_path: Path) -> None:
    """A 0-byte shard, another kind and no folder at all are refused by name."""
    tasks, rollouts = small(tmp_path)
    with pytest.raises(DataError, match=r"holds tasks|folder of tasks"):
        run(tasks, tasks, out=tmp_path / "s", config=ScoreConfig(), options=Options())
    with pytest.raises(DataError, match="no such file or folder"):
        run(tasks, tmp_path / "none", out=tmp_path / "s", config=ScoreConfig(), options=Options())
    (rollouts / "part-00001.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"part-00001\.parquet"):
        run(tasks, rollouts, out=tmp_path / "s", config=ScoreConfig(), options=Options())
    assert not (tmp_path / "s").exists()


def test_further_rewards_and_own_components(tmp_path: Path) -> None:
    """They go into extra_json, know the tokens and BFCL's accepted values, and their code is part of the record."""
    mine = tmp_path / "mine.py"
    mine.write_text("def short(answer):\n    return 1 if answer.tokens < 3 else 0\n")
    allowed = json.dumps({"possible_answer": [{"book": {"n": [1, 2]}}]})
    tasks = write(tmp_path / "t", schema.TASKS, [task("t", extra_json=allowed)])
    text = PROTOCOLS["rlla"].render([Call("book", {"n": 2})], None, "x")
    rows = [rollout("t", 0, text, completion_ids=[1] * 5), rollout("t", 1, text, completion_ids=[1, 2])]
    rollouts = write(tmp_path / "r", schema.ROLLOUTS, rows)
    config = ScoreConfig(rewards="bfcl,overlong", component=f"{mine}:short", overlong_max=5, overlong_buffer=4)
    run(tasks, rollouts, out=tmp_path / "s", config=config, options=Options())
    extra = [json.loads(row) for row in open_folder(tmp_path / "s", schema.SCORES).load()["extra_json"]]
    assert [row["rewards"] for row in extra] == [{"bfcl": 1.0, "overlong": -1.0}, {"bfcl": 1.0, "overlong": -0.25}]
    assert [row["components"]["short"] for row in extra] == [0.0, 1.0]
    mine.write_text("def short(answer):\n    return 1 / (answer.tokens - 2)\n")
    with pytest.raises(ConfigError, match="component_digests"):
        run(tasks, rollouts, out=tmp_path / "s", config=config, options=Options())
    with pytest.raises(StageFailure, match=r"row 2 \(task t\): component .*short failed: ZeroDivisionError"):
        run(tasks, rollouts, out=tmp_path / "s", config=config, options=Options(overwrite=True))


def test_forced_protocol_and_unknown_protocol(tmp_path: Path) -> None:
    """`--protocol` wins over the task's own; a wrong one is a usage error with the nearest name."""
    text = PROTOCOLS["hermes"].render([Call("book", {"n": 1})])
    rows = scored(tmp_path, [task("t", "rlla")], [rollout("t", 0, text)], ScoreConfig(protocol="hermes"))
    assert rows[0]["reward"] == 4.0
    with pytest.raises(ConfigError, match="hermse") as caught:
        scored(tmp_path / "2", [task("t")], [rollout("t", 0, text)], ScoreConfig(protocol="hermse"))
    assert "'hermes'" in caught.value.hint
