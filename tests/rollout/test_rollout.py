"""Rollouts come in order, resume by (task, sample), top up, and survive being killed."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from support.rollout_world import CONFIG, content, loaded, write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.cli.app import run as command_line
from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.rollout.spool import Spool
from toolsample_cli.rollout.stage import run
from toolsample_cli.rollout.types import Completion, Engine, open_engine, rollout_seed
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Options

WORDS = ("weather", "alarm", "table", "stock", "mail")
REPLAY = RolloutConfig(n=2, backend="replay", tasks_per_shard=8)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a model and 30 tasks in three input shards."""
    path = tmp_path_factory.mktemp("world")
    tiny_model(path)
    rows = [task_row(i, f"{WORDS[i % 5]} " * (1 + i % 11)) for i in range(30)]
    write_tasks(path / "tasks", rows)
    return path


@pytest.fixture(scope="module")
def engine(world):
    return open_engine("transformers", str(world / "tiny"), CONFIG)


@pytest.fixture
def go(world, engine, tmp_path):
    """Run the stage on the shared engine; returns its account."""

    def call(out: str = "out", config: RolloutConfig = CONFIG, **options):
        given = engine if config.backend == "transformers" else None
        return run(world / "tasks", tmp_path / out, str(world / "tiny"), config, Options(**options), engine=given)

    return call


def test_rows_are_complete_and_in_order(go, tmp_path, engine):
    """n rows a task, all of a task in one shard, sorted, with what training needs."""
    account = go()
    folder = open_folder(tmp_path / "out", schema.ROLLOUTS)
    assert [shard.rows for shard in folder.shards] == [24, 24, 24, 18]
    frame = folder.load()
    assert frame.select("task_id", "sample").rows() == [(f"t{i:05d}", s) for i in range(30) for s in range(3)]
    assert account.rows_out == 90 and account.exit_code == 0 and not account.dropped
    row = frame.row(40, named=True)
    assert row["rollout_id"] == f"{row['task_id']}/0/{row['sample']}"
    assert row["seed"] == rollout_seed(0, row["task_id"], 0, row["sample"])
    assert len(row["logprobs"]) == len(row["completion_ids"]) and row["error"] is None
    assert engine.chat.text(row["completion_ids"]) == row["text"]
    assert set(frame["finish_reason"]) == {"stop", "length"}
    assert folder.config["logprobs"] == "processed" and folder.config["model_digest"] == engine.digest
    assert folder.config["temperature"] == 1.0 and folder.config["tokenizer"] and folder.config["template"]
    ends = frame["finish_reason"].value_counts().rows()
    assert folder.counts == {"rollouts": 90, **{f"finish {reason}": count for reason, count in ends}}


def test_prompt_ids_are_the_templates(go, world, tmp_path, engine):
    """What is stored is what was sent."""
    go()
    tasks = {row["task_id"]: row for row in open_folder(world / "tasks", schema.TASKS).load().iter_rows(named=True)}
    for row in loaded(tmp_path / "out").iter_rows(named=True):
        assert row["prompt_ids"] == engine.chat.prompt_ids(tasks[row["task_id"]])


def test_a_second_run_does_nothing(go, tmp_path):
    """Nor does it touch a byte."""
    go()
    before = content(tmp_path / "out")
    stamps = {f: f.stat().st_mtime_ns for f in (tmp_path / "out").iterdir()}
    account = go()
    assert content(tmp_path / "out") == before and account.extra["tokens"] == 0
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "out").iterdir()} == stamps


def test_a_larger_n_tops_up_and_a_smaller_one_is_refused(go, tmp_path):
    """Rows that stand there stay as they are."""
    go()
    before = loaded(tmp_path / "out")
    account = go(config=RolloutConfig(**{**CONFIG.__dict__, "n": 5}))
    after = loaded(tmp_path / "out")
    assert account.rows_out == after.height == 150
    assert after.filter(pl.col("sample") < 3).equals(before)
    assert after.select("task_id", "sample").rows() == [(f"t{i:05d}", s) for i in range(30) for s in range(5)]
    with pytest.raises(ConfigError, match="holds 5 samples per task, -n is 3"):
        go()


def test_another_setting_is_refused_and_overwrite_makes_anew(go, tmp_path):
    """The message names what differs."""
    go()
    warm = RolloutConfig(**{**CONFIG.__dict__, "temperature": 0.5})
    with pytest.raises(ConfigError, match=r"temperature was 1\.0, now 0\.5"):
        go(config=warm)
    before = loaded(tmp_path / "out")
    go(config=warm, overwrite=True)
    assert not loaded(tmp_path / "out")["text"].equals(before["text"])


def test_slices_make_the_same_shards(go, tmp_path):
    """Three array jobs write what one run writes."""
    go("whole")
    for index in (2, 0, 1):
        go("parts", slice=Slice(index, 3))
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / file.name).read_bytes() == file.read_bytes()
    assert open_folder(tmp_path / "parts", schema.ROLLOUTS).rows == 90


def test_limit_ids_and_dry_run(go, tmp_path, world):
    """The selection stands in the lineage; a dry run writes nothing."""
    assert go("dry", dry_run=True).extra["would_write"] == 90
    assert not (tmp_path / "dry").exists()
    go("limited", limit=4)
    assert loaded(tmp_path / "limited")["task_id"].unique().sort().to_list() == [f"t{i:05d}" for i in range(4)]
    (tmp_path / "ids.txt").write_text("t00020\nt00003\n")
    go("chosen", ids=tmp_path / "ids.txt")
    assert loaded(tmp_path / "chosen")["task_id"].unique().sort().to_list() == ["t00003", "t00020"]


def test_a_finished_folder_needs_no_model(world, tmp_path, monkeypatch):
    """A rerun says so; another setting, a larger n and changed weights are still seen."""
    model = shutil.copytree(world / "tiny", tmp_path / "model")
    config = RolloutConfig(**{**CONFIG.__dict__, "n": 1, "max_new_tokens": 2})

    def go(config=config, **options):
        return run(world / "tasks", tmp_path / "out", str(model), config, Options(limit=2, **options))

    assert go(dry_run=True).extra["already_there"] == 0
    go()
    assert go(dry_run=True).extra["already_there"] == 2

    def refuse(*_):
        raise AssertionError("loaded")

    monkeypatch.setattr("toolsample_cli.rollout.stage.open_engine", refuse)
    again = go()
    assert again.rows_out == 2 and "nothing to do" in again.extra
    for other in ({"n": 2}, {"temperature": 0.5}):
        with pytest.raises(AssertionError, match="loaded"):
            go(RolloutConfig(**{**config.__dict__, **other}))
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    with pytest.raises(AssertionError, match="loaded"):
        go()


def test_slices_without_a_shard_say_so(world, tmp_path):
    account = run(world / "tasks", tmp_path / "out", None, REPLAY, Options(slice=Slice(5, 9)))
    assert "smaller --tasks-per-shard" in account.extra["nothing in this slice"]


def test_long_prompts_become_rows_with_a_reason(go, tmp_path, engine):
    """Never a truncation, never a failure of the run; they are counted."""
    account = go(config=RolloutConfig(**{**CONFIG.__dict__, "max_prompt_tokens": 140}))
    frame = loaded(tmp_path / "out")
    long = frame.filter(pl.col("error").is_not_null())
    assert 0 < long.height < frame.height and account.dropped == {"prompt_too_long": long.height}
    assert account.exit_code == 0
    row = long.row(0, named=True)
    assert row["error"] == f"prompt_too_long: {len(row['prompt_ids'])} tokens, the limit is 140"
    assert (
        row["completion_ids"] == [] and row["logprobs"] is None and row["finish_reason"] is None and row["text"] == ""
    )


def test_a_template_that_refuses_one_task_costs_only_that_task(world, engine, tmp_path):
    """Bad data is a row; the exit code says so."""
    bad = json.dumps([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])
    tasks = write_tasks(tmp_path / "tasks", [task_row(0), task_row(1, messages_json=bad)])
    account = run(tasks, tmp_path / "out", str(world / "tiny"), CONFIG, Options(), engine=engine)
    frame = loaded(tmp_path / "out")
    assert frame["error"].is_null().to_list() == [True] * 3 + [False] * 3
    assert account.exit_code == 1 and account.dropped == {"prompt": 3}


class Flaky(Engine):
    """An engine whose completions fail as told; everything else is the engine it wraps."""

    name, policy = "flaky", "flaky"

    def __init__(self, engine, fails):
        self.engine, self.chat, self.fails, self.asked = engine, engine.chat, fails, []

    def describe(self):
        return {"logprobs": "processed"}

    def generate(self, requests, sampling):
        for request in requests:
            self.asked.append((request.key, request.sample))
            if self.fails(request):
                yield Completion(request.key, request.sample, error="server: 500")
            else:
                yield Completion(request.key, request.sample, [5, 2], [-1.0, -0.5], "stop")


def test_errored_rows_are_made_again_and_good_ones_kept(world, engine, tmp_path):
    """Errored is not done; the exit code says that something is missing."""

    def call(fails):
        flaky = Flaky(engine, fails)
        account = run(world / "tasks", tmp_path / "out", "m", CONFIG, Options(), engine=flaky)
        return account, flaky.asked

    first, asked = call(lambda r: r.sample == 1 and r.key < "t00010")
    assert len(asked) == 90 and first.exit_code == 1 and first.dropped == {"server": 10}
    second, asked = call(lambda r: r.key == "t00004")
    assert sorted(asked) == [(f"t{i:05d}", 1) for i in range(10)] and second.dropped == {"server": 1}
    third, asked = call(lambda r: False)
    assert asked == [("t00004", 1)] and third.exit_code == 0 and not third.dropped
    assert loaded(tmp_path / "out")["error"].is_null().all()


def test_an_engine_that_breaks_loses_nothing_finished(world, engine, tmp_path):
    """What it gave before it died is in the spool, also within a shard."""

    def dies(request):
        if request.key == "t00011" and request.sample == 1:
            raise StageFailure("the engine died")
        return False

    with pytest.raises(StageFailure, match="the engine died"):
        run(world / "tasks", tmp_path / "out", "m", CONFIG, Options(), engine=Flaky(engine, dies))
    with pytest.raises(DataError, match="has not finished"):
        open_folder(tmp_path / "out", schema.ROLLOUTS)
    healthy = Flaky(engine, lambda r: False)
    run(world / "tasks", tmp_path / "out", "m", CONFIG, Options(), engine=healthy)
    assert healthy.asked[0] == ("t00011", 1) and len(healthy.asked) == 90 - 11 * 3 - 1
    assert not list(tmp_path.glob("out.tmp/*"))


def test_a_spool_of_other_settings_is_not_used(world, engine, tmp_path):
    """Nor one that overwrite was to forget."""

    def run_until(key, config=CONFIG, **options):
        def dies(request):
            if request.key == key:
                raise StageFailure("died")
            return False

        flaky = Flaky(engine, dies)
        with contextlib.suppress(StageFailure):
            run(world / "tasks", tmp_path / "out", "m", config, Options(**options), engine=flaky)
        return flaky.asked

    run_until("t00005")
    warm = RolloutConfig(**{**CONFIG.__dict__, "temperature": 0.5})
    assert run_until("t00005", warm)[0] == ("t00000", 0)
    assert run_until("t00006", warm)[0] == ("t00005", 0)
    assert run_until("t00006", warm, overwrite=True)[0] == ("t00000", 0)


def test_spool_survives_any_cut(tmp_path):
    """Whole lines come back bit by bit, a torn one is dropped, and writing goes on behind it."""
    done = [Completion(f"t{i}", i, [1, 2, i], [-0.1 * i, -1e-7], "stop") for i in range(5)]
    with Spool(tmp_path / "s", "me") as spool:
        spool.add(done)
    whole = (tmp_path / "s").read_bytes()
    for cut in range(0, len(whole), 7):
        (tmp_path / "s").write_bytes(whole[:cut])
        with Spool(tmp_path / "s", "me") as spool:
            found = list(spool.found.values())
            assert found == done[: len(found)]
            spool.add(done[len(found) :])
        assert (tmp_path / "s").read_bytes() == whole
    with Spool(tmp_path / "s", "someone else") as spool:
        assert not spool.found


def test_a_logprob_that_no_server_gave_survives_the_spool(tmp_path):
    """NaN, which JSON has not."""
    with Spool(tmp_path / "s", "me") as spool:
        spool.add([Completion("a", 0, [1, 2], [-0.5, float("nan")], "stop")])
    with Spool(tmp_path / "s", "me") as spool:
        first, second = spool.found["a", 0].logprobs
    assert first == -0.5 and second != second


def test_a_damaged_line_of_a_spool_is_made_again(tmp_path):
    """One flipped bit anywhere: that completion is gone, or all where the header is hit; no other value comes back."""
    done = [Completion(f"t{i}", i, [1, 2, i], [-0.1 * i, -1e-7], "stop") for i in range(3)]
    with Spool(tmp_path / "s", "me") as spool:
        spool.add([*done, Completion("odd", 0, [1 << 40], None, "stop")])
    whole = (tmp_path / "s").read_bytes()
    for place in range(0, len(whole), 5):
        (tmp_path / "s").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with Spool(tmp_path / "s", "me") as spool:
            found = list(spool.found.values())
        assert all(completion in done for completion in found)
        # a line, or two where the break between them is hit
        assert len(found) >= 1 if place > whole.index(b"\n") else not found


def test_replay_of_golds_without_a_model(world, tmp_path):
    """Texts are the gold answers; with a tokenizer there are ids too."""
    run(world / "tasks", tmp_path / "bare", None, REPLAY, Options())
    bare = loaded(tmp_path / "bare")
    assert bare.height == 60 and bare["text"].unique().to_list() == [task_row(0)["gold_text"]]
    assert bare["prompt_ids"].list.len().sum() == 0 and bare["logprobs"].is_null().all()
    run(world / "tasks", tmp_path / "ids", str(world / "tiny"), REPLAY, Options())
    assert loaded(tmp_path / "ids")["completion_ids"].list.len().min() > 5


def test_settings_that_make_no_sense_are_refused(world, tmp_path):
    """Before anything is loaded or written."""
    with pytest.raises(ConfigError, match="needs --model"):
        run(world / "tasks", tmp_path / "out", None, CONFIG, Options())
    with pytest.raises(ConfigError, match="texts are for"):
        run(world / "tasks", tmp_path / "out", "m", RolloutConfig(texts="x.jsonl"), Options())
    write_tasks(tmp_path / "twice", [task_row(0), task_row(0)])
    with pytest.raises(DataError, match="task t00000 occurs twice"):
        run(tmp_path / "twice", tmp_path / "out", None, REPLAY, Options())
    assert not (tmp_path / "out").exists()


def command(world: Path, out: Path, *more: str) -> list[str]:
    knobs = ["-n", "3", "--max-new-tokens", "32", "--tasks-per-shard", "8", "--batch-tokens", "2048"]
    return ["rollout", str(world / "tasks"), "-o", str(out), "--model", str(world / "tiny"), *knobs, *more]


def test_command_line_end_to_end(world, tmp_path, go, capsys):
    """The command writes what the stage writes; a model folder without tokenizer is one line and code 3."""
    go("stage")
    assert command_line([*command(world, tmp_path / "cli"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows_out"] == 90 and "rollout: in 30, out 90" in said.err
    for file in (tmp_path / "stage").iterdir():
        assert (tmp_path / "cli" / file.name).read_bytes() == file.read_bytes()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    assert command_line([*command(world, tmp_path / "none"), "--model", str(tmp_path / "bare")]) == 3
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 2 and "without tokenizer" in said.err
    assert not (tmp_path / "none").exists()


SLOWED = """
import sys, time
from toolsample_cli.rollout import spool
add = spool.Spool.add
def slow(self, completions):
    add(self, completions)
    print("spooled", flush=True)
    time.sleep(0.12)
spool.Spool.add = slow
from toolsample_cli.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def interrupted(world: Path, out: Path, sign: int, after: float) -> int:
    """Start the command with a pause after every batch and signal it so many seconds after the first; its exit code."""
    arguments = [sys.executable, "-c", SLOWED, *command(world, out)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        time.sleep(after)
        process.send_signal(sign)
        return process.wait(timeout=60)


def test_killed_and_rerun_gives_the_same_bytes(world, tmp_path, go):
    """SIGKILL, then SIGTERM, then a whole run: as if nothing had happened."""
    go("unbroken")
    out = tmp_path / "broken"
    assert interrupted(world, out, signal.SIGKILL, 0.3) == -signal.SIGKILL
    assert interrupted(world, out, signal.SIGTERM, 0.3) == 130
    assert not (tmp_path / "broken.manifest.json").exists()
    go("broken")
    unbroken, broken = content(tmp_path / "unbroken"), content(out)
    assert broken.pop("broken.manifest.json") == unbroken.pop("unbroken.manifest.json") and broken == unbroken


@pytest.mark.slow
def test_killed_at_ten_random_moments(world, tmp_path, go):
    """The same at ten moments drawn anew each time the test runs."""
    go("unbroken")
    unbroken = content(tmp_path / "unbroken")
    unbroken.pop("unbroken.manifest.json")
    for number in range(10):
        out = tmp_path / f"broken{number}"
        assert interrupted(world, out, signal.SIGKILL, random.uniform(0, 1.5)) in (-signal.SIGKILL, 0)
        go(out.name)
        assert {k: v for k, v in content(out).items() if "manifest" not in k} == unbroken
