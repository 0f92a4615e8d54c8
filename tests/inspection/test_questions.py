"""Questions in the terminal: the answer equals one computed row by row, and an expression reaches nothing else."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli.cli.app import run as command
from toolsample_cli.config import CurriculumConfig, FilterConfig, ImportConfig, ScoreConfig
from toolsample_cli.curriculum import stage as curriculum
from toolsample_cli.filter import stage as filtering
from toolsample_cli.importing import stage as importing
from toolsample_cli.inspection.saved_questions import SAVED
from toolsample_cli.score import stage as score
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options

RAW = Path(__file__).resolve().parents[2] / "fixtures" / "raw"
WRONG = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two rounds over all tasks: task 0 is solved from the second round on, task 1 only in the first."""
    folder = tmp_path_factory.mktemp("run")
    importing.run([str(RAW / "messages.jsonl")], folder / "corpus", ImportConfig(), Options())
    config = CurriculumConfig(tasks_per_round=64)
    curriculum.run(curriculum.Paths(folder / "corpus"), folder / "round-0", config, Options())
    for number in (1, 2):
        here, last = folder / f"round-{number}", folder / f"round-{number - 1}"
        tasks = open_folder(last / "tasks", schema.TASKS)
        rows = tasks.load().sort("task_id").to_dicts()
        right = {0: number == 2, 1: number == 1}
        write_rollouts(here / "rollouts", rows, tasks.digest, number, right)
        score.run(last / "tasks", here / "rollouts", out=here / "scores", config=ScoreConfig(), options=Options())
        history = last / "groups" if number > 1 else None
        filtering.run(here / "scores", history, here / "groups", FilterConfig(), Options())
        shutil.copytree(last / "tasks", here / "tasks")
        shutil.copy(last / "tasks.manifest.json", here / "tasks.manifest.json")
    return folder


def write_rollouts(path: Path, tasks: list[dict], digest: str, round: int, right: dict[int, bool]) -> None:
    rows = []
    for number, task in enumerate(tasks):
        for sample in range(4):
            text = task["gold_text"] if right.get(number, sample == 0) else WRONG
            text = "I cannot" if number == 2 and sample == 3 else text
            ids = list(range(sample + 1))
            rows.append(
                {
                    "rollout_id": f"{task['task_id']}/{round}/{sample}", "task_id": task["task_id"], "round": round,
                    "sample": sample, "policy": "script", "backend": "replay", "seed": sample, "prompt_ids": [1, 2],
                    "completion_ids": ids, "logprobs": [-0.5] * len(ids), "ids_from_text": True,
                    "finish_reason": "length" if sample == 3 else "stop", "text": text, "error": None,
                }
            )  # fmt: skip
    with Output(path, schema.ROLLOUTS, {"n": 4}, {"tasks": digest}) as output:
        half = len(rows) // 8 * 4
        for shard, part in enumerate((rows[:half], rows[half:])):
            output.write(shard, schema.frame(schema.ROLLOUTS, part))
        output.finish()


def ask(capsys, *arguments: object) -> list[dict]:
    assert command(["inspect", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_order_and_limit_equal_a_plain_loop(run, capsys):
    rows = [row for n in (1, 2) for row in open_folder(run / f"round-{n}" / "scores", schema.SCORES).load().to_dicts()]
    found = ask(capsys, run, "--where", "reward < 3 and sample > 0", "--sort", "reward", "--columns", "rollout_id")
    wanted = sorted((r for r in rows if r["reward"] < 3 and r["sample"] > 0), key=lambda row: row["reward"])
    assert [row["rollout_id"] for row in found] == [row["rollout_id"] for row in wanted] and len(wanted) > 8
    down = ask(capsys, run, "--where", "reward < 3 and sample > 0", "--sort", "-reward", "--limit", 3)
    assert [row["rollout_id"] for row in down] == [r["rollout_id"] for r in sorted(wanted, key=lambda r: -r["reward"])][
        :3
    ]


def test_other_kinds_are_joined_by_name(run, capsys):
    """Text of rollouts, keep of groups, request and gold of tasks, beside each score of a round."""
    names = "rollout_id,text,keep,gold_json,request,n_exact"
    found = ask(capsys, run / "round-2", "--columns", names)
    texts = {
        r["rollout_id"]: r["text"] for r in open_folder(run / "round-2/rollouts", schema.ROLLOUTS).load().to_dicts()
    }
    golds = {r["task_id"]: r for r in open_folder(run / "round-1/tasks", schema.TASKS).load().to_dicts()}
    groups = {r["task_id"]: r for r in open_folder(run / "round-2/groups", schema.GROUPS).load().to_dicts()}
    assert len(found) == len(texts)
    for row in found:
        task = row["rollout_id"].rsplit("/", 2)[0]
        assert row["text"] == texts[row["rollout_id"]] and row["gold_json"] == golds[task]["gold_json"]
        assert row["keep"] == groups[task]["keep"] and row["n_exact"] == groups[task]["n_exact"]
        turns = json.loads(golds[task]["messages_json"])
        assert row["request"] == [turn["content"] for turn in turns if turn["role"] == "user"][-1]
    one = ask(
        capsys, run / "round-2" / "scores", "--where", "text like '%cannot%'", "--columns", "sample,finish_reason"
    )
    assert one == [{"sample": 3, "finish_reason": "length"}]


def test_counts_and_means_by_a_column(run, capsys):
    found = ask(capsys, run, "--by", "round", "--sort", "round")
    data = open_folder(run / "round-2" / "scores", schema.SCORES).load()
    assert [row["round"] for row in found] == [1, 2] and found[1]["rows"] == data.height
    assert found[1]["reward"] == pytest.approx(data["reward"].mean())
    assert found[1]["exact"] == pytest.approx(data["exact"].cast(pl.Float64).mean())


def test_saved_questions(run, capsys):
    ids = sorted(open_folder(run / "corpus", schema.TASKS).load()["task_id"])
    assert [row["task_id"] for row in ask(capsys, run, "--ask", "newly-solved")] == [ids[0]]
    assert [row["task_id"] for row in ask(capsys, run / "round-2", "--ask", "newly-broken")] == [ids[1]]
    assert ids[1] in [row["task_id"] for row in ask(capsys, run / "round-2" / "scores", "--ask", "never-solved")]
    assert len(ask(capsys, run, "--ask", "truncated")) == 2 * len(ids)
    assert ask(capsys, run, "--ask", "highest-variance")[0]["reward_var"] > 0
    for name in SAVED:
        assert isinstance(ask(capsys, run / "round-2", "--ask", name), list)
    assert command(["inspect", "--ask", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in SAVED)


def test_suspect_gold_is_what_samples_agree_on(run, tmp_path, capsys):
    """Most samples give one valid answer that is not the gold; here none is valid, so none is suspected."""
    assert ask(capsys, run / "round-1", "--ask", "suspect-gold") == []
    scores = open_folder(run / "round-1" / "scores", schema.SCORES).load()
    first = scores["task_id"][4]
    call = pl.when(pl.col("task_id") == first).then(pl.lit('[{"name":"a","arguments":{}}]')).otherwise("calls_json")
    theirs = pl.col("task_id") == first
    changed = scores.with_columns(
        calls_json=call,
        schema_valid=pl.when(theirs).then(True).otherwise("schema_valid"),
        exact=pl.when(theirs).then(False).otherwise("exact"),
        parse_status=pl.when(theirs).then(pl.lit("ok")).otherwise("parse_status"),
    )
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "round-1" / "scores")
    with Output(tmp_path / "run" / "round-1" / "scores", schema.SCORES, {}, overwrite=True) as output:
        output.write(0, schema.frame(schema.SCORES, changed.to_dicts()))
        output.finish()
    found = ask(capsys, tmp_path / "run" / "round-1", "--ask", "suspect-gold")
    assert [row["task_id"] for row in found] == [first] and found[0]["answer_share"] == 1.0


def test_ids_feed_other_commands(run, tmp_path, capsys):
    assert command(["inspect", str(run / "round-2"), "--ask", "newly-broken", "--ids"]) == 0
    (tmp_path / "ids").write_text(capsys.readouterr().out)
    arguments = [str(run / "round-1" / "tasks"), str(run / "round-2" / "rollouts"), "-o", str(tmp_path / "scores")]
    assert command(["score", *arguments, "--ids", str(tmp_path / "ids")]) == 0
    assert open_folder(tmp_path / "scores", schema.SCORES).load()["task_id"].n_unique() == 1


def test_ids_may_come_through_a_pipe(run, tmp_path):
    """`--ids <(toolsample inspect ... --ids)`: a pipe gives its lines once, a stage asks for them more than once."""
    ids = f"{sys.executable} -m toolsample_cli inspect {run}/round-2 --ask newly-broken --ids"
    score_it = (
        f"{sys.executable} -m toolsample_cli score {run}/round-1/tasks {run}/round-2/rollouts -o {tmp_path}/scores"
    )
    subprocess.run(["bash", "-c", f"{score_it} --ids <({ids})"], check=True, capture_output=True)
    assert open_folder(tmp_path / "scores", schema.SCORES).load()["task_id"].n_unique() == 1


def test_csv_and_table(run, capsys, monkeypatch):
    assert command(["inspect", str(run), "--columns", "rollout_id,reward,completion_ids", "--csv", "--limit", "2"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 and rows[0]["completion_ids"].split() == ["0"]
    monkeypatch.setenv("COLUMNS", "90")
    assert command(["inspect", str(run), "--ask", "name-right-value-wrong"]) == 0
    assert command(["inspect", str(run), "--columns", "rollout_id,text,reward", "--limit", "5"]) == 0
    shown = capsys.readouterr()
    assert max(map(len, shown.out.splitlines())) <= 90 and "5 shown" in shown.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewrd > 1", "no column 'rewrd'"),
        ("count(*) > 1", "count is not a function of one row"),
        ("reward > AVG (reward)", "avg is not a function of one row"),
        ("rank() over (order by reward) = 1", "rank is not a function of one row"),
        ("row_number() > 1", "row_number is not"),
        ("exists (select 1)", "exists is not"),
        ("reward in (select 1)", "select is not"),
        ("unnest(completion_ids) > 1", "unnest is not"),
        ("read_csv('/etc/passwd') = 1", "read_csv is not"),
        ("reward > 1; drop table x", "; is not allowed"),
        ("reward > 1 /* ' */ and count(*) > 1 /* ' */", "/* is not allowed"),
        ("reward > 1 -- '\nand count(*) > 1 -- '", "-- is not allowed"),
        ("`a'` > 1 and count(*) > 1 or category = '", "` is not allowed"),
        ("category = $$'$$ and count(*) > 1 or category = '", "$ is not allowed"),
        ("reward > 1 union all", "union is not"),
        ("lpad(category, 2000000000, 'x') = ''", "lpad is not"),
        ("category = 'a' || 'count(*)' || '", "--where"),
        ("reward", "neither true nor false"),
        ("category + 1 > reward", "category"),
        ("(" * 900 + "reward > 1" + ")" * 900, "--where"),
        ("reward > 1 or " * 200 + "reward > 1", "longer than"),
    ],
)
def test_what_an_expression_may_not(run, capsys, text, message):
    assert command(["inspect", str(run), "--where", text]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == "" and "Traceback" not in shown.err


def test_words_in_quotes_are_no_functions(run, capsys):
    """Only what polars would call is looked at."""
    text = "calls_json not like '%count(x)%' and category <> 'select' and \"sample\" in (1, 2) and not (reward > 9)"
    found = ask(capsys, run / "round-2", "--where", text, "--columns", "sample")
    assert {row["sample"] for row in found} == {1, 2}
    assert len(ask(capsys, run / "round-2", "--where", "array_length(completion_ids) = 4 and length(text) > 3")) > 0


def test_wrong_questions(run, tmp_path, capsys):
    for arguments, code, message in (
        ([run, "--columns", "rewad"], 2, "did you mean 'reward'"),
        ([run, "--by", "nothing"], 2, "no column 'nothing'"),
        ([run, "--ask", "never-solvd"], 2, "did you mean 'never-solved'"),
        ([tmp_path, "--where", "reward > 1"], 2, "no shards in it"),
        ([run, "-i", "1", "--where", "reward > 1"], 2, "exclude each other"),
        ([run / "corpus", "--ask", "truncated"], 2, "no rollouts in it"),
        ([], 2, "inspect what?"),
    ):
        assert command(["inspect", *map(str, arguments)]) == code
        assert message in capsys.readouterr().err
