"""`toolsample train` end to end on a tiny model: learning, resuming to the bit, and one clear line for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file
from support.tiny_model import task_row
from support.training_runs import Stop, metric, same, train
from support.training_world import batch_rows, load, plain_logprobs, rollout_rows, world, write

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.train.data import sampling_facts
from toolsample_cli.train.stage import run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Model, rollouts and batch, made once; nothing writes into them."""
    return world(tmp_path_factory.mktemp("base"))


def test_a_round_writes_a_loadable_checkpoint_metrics_and_records(base, tmp_path):
    out = tmp_path / "ck"
    account = train(base, out)
    assert account.rows_in == account.rows_out == 24
    load(out)
    assert (out / "tokenizer.json").read_bytes() == (base[0] / "tokenizer.json").read_bytes()
    assert (out / "chat_template.jinja").exists()
    assert metric(out, "ratio_first")[0] == pytest.approx(1.0, abs=1e-4)
    assert sum(metric(out, "tokens")) == sum(map(len, open_folder(base[1], schema.ROLLOUTS).load()["completion_ids"]))
    records = open_folder(tmp_path / "ck.records", schema.RECORDS).load()
    assert records["rollout_id"].n_unique() == 24
    assert records.group_by("step").agg(pl.col("loss").sum()).sort("step")["loss"].to_list() == pytest.approx(
        metric(out, "loss"), rel=1e-6
    )
    assert not list(tmp_path.glob(".*"))


def test_what_was_rewarded_becomes_likelier(base, tmp_path):
    """After a few rounds on one batch, logprobs rise with the advantage."""
    out = tmp_path / "ck"
    train(base, out, epochs=4, lr=3e-3)
    rollouts = open_folder(base[1], schema.ROLLOUTS).load()
    advantage = open_folder(tmp_path / "ck.records", schema.RECORDS).load().unique("rollout_id")
    joined = rollouts.join(advantage.select("rollout_id", "advantage"), on="rollout_id")
    model = load(out)
    gain = [
        float((plain_logprobs(model, row["prompt_ids"], row["completion_ids"]) - np.array(row["logprobs"])).mean())
        for row in joined.iter_rows(named=True)
    ]
    assert np.corrcoef(gain, joined["advantage"].to_numpy())[0, 1] > 0.7


def test_identical_runs_give_identical_bytes(base, tmp_path):
    for name in ("a", "b"):
        train(base, tmp_path / name)
    for file in ("model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    for kind in ("steps", "records"):
        one, other = (tmp_path / f"{name}.{kind}" / "part-00000.parquet" for name in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()


def test_optimizer_and_schedule_go_on_over_rounds(base, tmp_path):
    """Two rounds of three steps: the rate falls by gamma a round, moments are carried, the step count goes on."""
    decay = {"lr_schedule": "exponential", "lr_decay_unit": "round"}
    train(base, tmp_path / "r0", **decay)
    train(base, tmp_path / "r1", model=tmp_path / "r0", **decay)
    rates = metric(tmp_path / "r0", "lr") + metric(tmp_path / "r1", "lr")
    assert rates == pytest.approx([1e-3 * 0.7 ** (i / 3) for i in range(6)])
    state = json.loads((tmp_path / "r1/trainer/state.json").read_text())
    assert (state["rounds"], state["step"], state["done"]) == (2, 6, 0)
    moments = load_file(tmp_path / "r1/trainer/optimizer.safetensors")
    assert {float(v) for k, v in moments.items() if k.startswith("step.")} == {6.0}


def test_rerun_of_a_finished_round_does_nothing_and_changes_are_refused(base, tmp_path):
    out = tmp_path / "ck"
    train(base, out)
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert "nothing to do" in train(base, out).extra
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"lr was 0\.001, now 0\.002"):
        train(base, out, lr=2e-3)
    train(base, out, Options(overwrite=True), lr=2e-3)
    assert metric(out, "lr")[0] == pytest.approx(2e-3)


def test_an_interrupted_round_goes_on_to_the_bit(base, tmp_path):
    """Stopped after each of its steps in turn."""
    train(base, tmp_path / "whole", steps=4)
    for stop in (1, 2, 3):
        seen = 0

        def tick(rows: int, stop: int = stop) -> None:
            nonlocal seen
            seen += 1
            if seen == stop + 1:
                raise Stop

        out = tmp_path / f"part{stop}"
        with pytest.raises(Stop):
            train(base, out, Options(tick=tick), steps=4, save_every=1)
        assert not out.exists()
        train(base, out, steps=4, save_every=1)
        assert same(out, tmp_path / "whole")
        assert metric(out, "loss") == metric(tmp_path / "whole", "loss")
        assert (
            open_folder(tmp_path / f"part{stop}.records", schema.RECORDS)
            .load()
            .equals(open_folder(tmp_path / "whole.records", schema.RECORDS).load())
        )


KILLED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from toolsample_cli.config import TrainConfig
from toolsample_cli.train import trainer
from toolsample_cli.stage import Options
from toolsample_cli.train.stage import run
rollouts, batch, model, out, stop = sys.argv[1:]
inner = trainer.micro_step
count = 0
def slow(*arguments):
    global count
    count += 1
    if count == int(stop):  # in the middle of a step, after some of its micro-batches
        print("waiting", flush=True)
        import time
        time.sleep(60)
    inner(*arguments)
trainer.micro_step = slow
config = TrainConfig(lr=1e-3, steps=4, save_every=1, token_budget=60)
run(Path(rollouts), Path(batch), model=model, out=Path(out), config=config, options=Options())
"""


def test_kill_9_in_mid_step_resumes_to_the_bit(base, tmp_path):
    path, rollouts, batch = base
    settings = {"steps": 4, "save_every": 1, "token_budget": 60}
    train(base, tmp_path / "whole", **settings)
    out = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, *map(str, (rollouts, batch, path, out)), "8"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not out.exists() and (tmp_path / ".killed.partial").is_dir()
    train(base, out, **settings)
    assert same(out, tmp_path / "whole")
    for file in ("trainer/optimizer.safetensors", "trainer/state.json"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_dead_groups_cost_nothing_and_three_dead_rounds_stop_training(base, tmp_path):
    """Equal rewards in every group: the model stays as it was, and the loop does not pretend to learn for ever."""
    rows = open_folder(base[2], schema.BATCH).load().with_columns(reward=pl.lit(1.0), base_reward=pl.lit(1.0))
    batch = write(tmp_path / "dead", schema.BATCH, rows.to_dicts())
    model = base[0]
    for number in range(2):
        out = tmp_path / f"r{number}"
        train((base[0], base[1], batch), out, model=model)
        model = out
        assert same(out, base[0])
    with pytest.raises(StageFailure, match="3 consecutive rounds"):
        train((base[0], base[1], batch), tmp_path / "r2", model=model)


def test_sft_learns_gold_answers(base, tmp_path):
    tasks = write(tmp_path / "tasks", schema.TASKS, [task_row(i, f"find the weather in {i}") for i in range(6)])
    config = TrainConfig(objective="sft", lr=5e-3, steps=3, epochs=4)
    run(tasks, None, model=str(base[0]), out=tmp_path / "sft", config=config, options=Options())
    losses = metric(tmp_path / "sft", "loss")
    assert losses[-1] < 0.6 * losses[0]


def test_sft_renders_gold_calls_when_there_is_no_text(base, tmp_path):
    """Both ways to the same answer give the same checkpoint."""
    for name, text in (("text", task_row(0)["gold_text"]), ("calls", None)):
        tasks = write(tmp_path / name, schema.TASKS, [task_row(0, gold_text=text)])
        config = TrainConfig(objective="sft", steps=1)
        run(tasks, None, model=str(base[0]), out=tmp_path / f"{name}-ck", config=config, options=Options())
    assert same(tmp_path / "text-ck", tmp_path / "calls-ck")


def test_benchmark_test_data_is_refused(base, tmp_path):
    tasks = write(tmp_path / "tasks", schema.TASKS, [task_row(0), task_row(1, split="test")])
    config = TrainConfig(objective="sft", steps=1)
    with pytest.raises(DataError, match=r"row 2 \(task t00001\): benchmark test data is not trained on"):
        run(tasks, None, model=str(base[0]), out=tmp_path / "ck", config=config, options=Options())
    with pytest.raises(DataError, match="benchmark"):
        run(
            base[1],
            base[2],
            model=str(base[0]),
            out=tmp_path / "ck",
            config=TrainConfig(),
            options=Options(),
            tasks=tasks,
        )
    allowed = TrainConfig(objective="sft", steps=1, allow_test_data=True)
    run(tasks, None, model=str(base[0]), out=tmp_path / "ck", config=allowed, options=Options())


def spoil(base, tmp_path, change, **settings):
    """Train on rollouts with one of them changed."""
    rows = open_folder(base[1], schema.ROLLOUTS).load().to_dicts()
    change(rows[5])
    rollouts = write(tmp_path / "spoilt", schema.ROLLOUTS, rows)
    return train((base[0], rollouts, base[2]), tmp_path / "ck", **settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["logprobs"].append(-1.0), "logprobs for"),
        (lambda r: r.update(logprobs=None), "no logprobs"),
        (lambda r: r["completion_ids"].__setitem__(0, 9999), "token 9999 is outside the model's vocabulary"),
        (lambda r: r["prompt_ids"].append(1), "its prompt differs"),
        (lambda r: r.update(error="engine died"), "errored: engine died"),
    ],
)
def test_a_broken_rollout_is_named_with_file_row_and_task(base, tmp_path, change, message):
    with pytest.raises(DataError, match=message) as caught:
        spoil(base, tmp_path, change)
    assert "part-00000.parquet row 6 (task t00" in str(caught.value)
    assert not (tmp_path / "ck").exists() and not (tmp_path / "ck.steps").exists()


def test_unusable_logprobs_are_dropped_and_counted(base, tmp_path):
    def change(row):
        row["logprobs"][0] = -9999.0

    account = spoil(base, tmp_path, change, steps=1)
    assert account.dropped == {"dropped_tokens": 1}
    assert metric(tmp_path / "ck", "dropped_tokens") == [1.0]
    records = open_folder(tmp_path / "ck.records", schema.RECORDS).load()
    assert records["dropped_tokens"].sum() == 1


def test_a_batch_of_unknown_rollouts_is_refused(base, tmp_path):
    rows = open_folder(base[2], schema.BATCH).load().with_columns(rollout_id=pl.col("rollout_id") + "x").to_dicts()
    batch = write(tmp_path / "other", schema.BATCH, rows)
    with pytest.raises(DataError, match=r"24 of 24 rollouts of the batch are not there"):
        train((base[0], base[1], batch), tmp_path / "ck")


@pytest.mark.parametrize(
    ("sampling", "error"),
    [
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": 0.7, "logprobs": "raw_logprobs"}, "before the temperature"),
    ],
)
def test_logprobs_of_another_distribution_are_refused(base, tmp_path, sampling, error):
    rows = open_folder(base[1], schema.ROLLOUTS).load().to_dicts()
    rollouts = write(tmp_path / "cold", schema.ROLLOUTS, rows, config=sampling)
    with pytest.raises(ConfigError, match=error):
        train((base[0], rollouts, base[2]), tmp_path / "ck")


def test_truncated_sampling_is_warned_about_and_temperature_is_applied(base, tmp_path):
    model = load(base[0])
    rows = rollout_rows(model, groups=2, samples=3)
    for row in rows:
        row["logprobs"] = plain_logprobs(model, row["prompt_ids"], row["completion_ids"], 0.7).tolist()
    rollouts = write(tmp_path / "r", schema.ROLLOUTS, rows, config={"temperature": 0.7, "top_p": 0.9})
    batch = write(tmp_path / "b", schema.BATCH, batch_rows(rows))
    account = train((base[0], rollouts, batch), tmp_path / "ck", steps=1)
    assert "top_p 0.9" in account.extra["warnings"]
    assert metric(tmp_path / "ck", "ratio_first")[0] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("mode", "said"),
    [("processed", "start below 1"), ("temperature only", "another policy"), ("unknown", "did not tell")],
)
def test_what_a_server_said_of_its_logprobs_is_passed_on(base, tmp_path, mode, said):
    rows = open_folder(base[1], schema.ROLLOUTS).load().to_dicts()
    rollouts = write(tmp_path / "cut", schema.ROLLOUTS, rows, config={"top_p": 0.9, "logprobs": mode})
    assert said in sampling_facts(open_folder(rollouts, schema.ROLLOUTS))[1][-1]


def test_a_checkpoint_saved_half_is_refused(base, tmp_path):
    train(base, tmp_path / "r0")
    (tmp_path / "r0/trainer/state.json").unlink()
    with pytest.raises(DataError, match="never finished"):
        train(base, tmp_path / "r1", model=tmp_path / "r0")
    with pytest.raises(DataError, match="no such model folder"):
        train(base, tmp_path / "r1", model=tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(ConfigError, match="not a checkpoint"):
        train(base, tmp_path / "mine", Options(overwrite=True))
    assert (tmp_path / "mine/notes.txt").exists()


def test_bfloat16_weights_keep_a_float32_master(base, tmp_path):
    """What is served is bfloat16; what is trained on does not lose small steps."""
    train(base, tmp_path / "r0", dtype="bfloat16", lr=1e-5)
    assert {str(v) for v in _dtypes(tmp_path / "r0/model.safetensors")} == {"BF16"}
    assert {str(v) for v in _dtypes(tmp_path / "r0/trainer/master.safetensors")} == {"F32"}
    train(base, tmp_path / "r1", model=tmp_path / "r0", dtype="bfloat16", lr=1e-5)
    moved = np.abs(
        load_file(tmp_path / "r1/trainer/master.safetensors")["model.embed_tokens.weight"]
        - load_file(tmp_path / "r0/trainer/master.safetensors")["model.embed_tokens.weight"]
    ).max()
    assert 1e-6 < moved < 1e-3


def _dtypes(file: Path) -> list[str]:
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return [entry["dtype"] for name, entry in header.items() if name != "__metadata__"]


def test_dry_run_and_limit_of_whole_groups(base, tmp_path):
    account = train(base, tmp_path / "ck", Options(dry_run=True))
    assert account.rows_in == 24 and not (tmp_path / "ck").exists()
    account = train(base, tmp_path / "ck", Options(limit=5))
    assert account.rows_in == 8
