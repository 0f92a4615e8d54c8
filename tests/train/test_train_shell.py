"""`toolsample train` as a user starts it: bad input in one line, kept step checkpoints, and torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.training_runs import Stop, metric, same, train, weights
from support.training_world import load, world, write

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.errors import ConfigError
from toolsample_cli.shards import schema
from toolsample_cli.shards.folder_sums import write_sums
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Model, rollouts and batch, made once; nothing writes into them."""
    return world(tmp_path_factory.mktemp("base"))


def changed(base, place: Path, change, config: dict | None = None) -> Path:
    """The rollouts with their sixth row changed."""
    rows = open_folder(base[1], schema.ROLLOUTS).load().to_dicts()
    change(rows[5])
    return write(place, schema.ROLLOUTS, rows, config=config)


def foreign_batch(base, place: Path) -> Path:
    """A batch of rollouts that are not there."""
    rows = open_folder(base[2], schema.BATCH).load().with_columns(rollout_id=pl.lit("no/") + pl.col("rollout_id"))
    return write(place, schema.BATCH, rows.to_dicts())


def test_bad_input_costs_one_line_and_overwrites_nothing(base, tmp_path, capsys):
    """Each with another checkpoint standing at the output, which must stay as it is."""
    model, rollouts, batch = base
    out = tmp_path / "ck"
    train(base, out)
    before = {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}
    half = tmp_path / "half"
    train(base, half)
    (half / "trainer" / "state.json").unlink()
    torn = tmp_path / "torn"
    train(base, torn)
    file = torn / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    small = tmp_path / "small"
    train(base, small)
    config = json.loads((small / "config.json").read_text())
    quantised = {**config, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (small / "config.json").write_text(json.dumps(quantised))
    write_sums(small)
    long = changed(base, tmp_path / "long", lambda row: row["logprobs"].append(-1.0))
    other = changed(base, tmp_path / "other", lambda row: None, {"tokenizer": "0123456789abcdef"})
    unknown = foreign_batch(base, tmp_path / "foreign")
    for inputs, start, words in [
        ((long, batch), model, ["part-00000.parquet row 6 (task t00", "logprobs for"]),
        ((rollouts, unknown), model, ["24 of 24 rollouts of the batch are not there"]),
        ((other, batch), model, ["made with tokenizer 0123456789abcdef"]),
        ((rollouts, batch), half, ["state.json: missing, this checkpoint was never finished"]),
        ((rollouts, batch), torn, ["torn/model.safetensors", "its header says"]),
        ((rollouts, batch), small, ["its weights are quantised"]),
    ]:
        for more in ([], ["--overwrite"]):
            command = ["train", *map(str, inputs), "--model", str(start), "-o", str(out), *more]
            capsys.readouterr()
            assert toolsample(command) in (2, 3), command
            said = capsys.readouterr().err
            error = [line for line in said.splitlines() if line.startswith("toolsample: error: ")]
            if more:  # without it, what stands at the output is refused first
                assert len(error) == 1 and all(word in said for word in words), said
            assert "Traceback" not in said
            assert {file: file.read_bytes() for file in before} == before
    assert not list(tmp_path.glob(".*"))


def test_the_newest_saved_steps_stay_as_models(base, tmp_path):
    out = tmp_path / "ck"
    train(base, out, steps=4, save_every=1, keep=2)
    assert sorted(place.name for place in tmp_path.glob("*.step-*")) == ["ck.step-2", "ck.step-3"]
    train(base, tmp_path / "whole", steps=4)
    assert same(out, tmp_path / "whole")
    assert not same(tmp_path / "ck.step-2", tmp_path / "ck.step-3")
    load(tmp_path / "ck.step-3")
    train(base, tmp_path / "next", model=tmp_path / "ck.step-2", steps=2)
    assert len(metric(tmp_path / "next", "lr")) == 2  # a round of its own, not the rest of that one
    out.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"ck\.step-2: there is a step checkpoint of another round"):
        train(base, out, steps=2, save_every=1, keep=1)
    train(base, out, Options(overwrite=True), steps=2, save_every=1, keep=1)
    assert [place.name for place in tmp_path.glob("*.step-*")] == ["ck.step-1"]
    assert not list(tmp_path.glob(".*"))


def test_keeping_needs_saving_and_a_younger_setting_changes_nothing(base, tmp_path):
    with pytest.raises(ConfigError, match="none are saved"):
        train(base, tmp_path / "ck", keep=1)
    train(base, tmp_path / "ck", steps=1)
    file = tmp_path / "ck" / "trainer" / "state.json"
    state = json.loads(file.read_text())
    del state["config"]["keep"], state["config"]["is_mode"]
    file.write_text(json.dumps(state))
    write_sums(tmp_path / "ck")
    assert "nothing to do" in train(base, tmp_path / "ck", steps=1).extra
    with pytest.raises(ConfigError, match="steps was 1, now 2"):
        train(base, tmp_path / "ck", steps=2)


def test_a_step_lost_between_saving_and_keeping_is_kept_by_the_rerun(base, tmp_path):
    seen = []

    def tick(rows: int) -> None:
        seen.append(rows)
        if len(seen) == 3:
            raise Stop

    out = tmp_path / "ck"
    with pytest.raises(Stop):
        train(base, out, Options(tick=tick), steps=4, save_every=1)
    assert not list(tmp_path.glob("ck.step-*"))
    train(base, out, steps=4, save_every=1, keep=2)  # what is kept may change in the middle of a round
    assert sorted(place.name for place in tmp_path.glob("*.step-*")) == ["ck.step-2", "ck.step-3"]


def torchrun(base, out: Path, model: Path, *more: str) -> subprocess.CompletedProcess:
    """Two gloo processes on this machine, from the command line of the documentation."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "toolsample_cli", "train"]
    command = [sys.executable, *start, str(base[1]), str(base[2]), "--model", str(model), "-o", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)


@pytest.mark.slow
def test_torchrun_from_the_shell(base, tmp_path):
    """Two ranks equal one, an interrupted round of one goes on with two, and an error is said."""
    settings = {"steps": 4, "save_every": 1, "lr": 1e-3, "token_budget": 60}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    train(base, tmp_path / "one", **settings)
    done = torchrun(base, tmp_path / "two", base[0], *flags)
    assert done.returncode == 0, done.stderr
    near(tmp_path / "one", tmp_path / "two")
    seen = []

    def tick(rows: int) -> None:
        seen.append(rows)
        if len(seen) == 3:
            raise Stop

    with pytest.raises(Stop):
        train(base, tmp_path / "part", Options(tick=tick), **settings)
    done = torchrun(base, tmp_path / "part", base[0], *flags)
    assert done.returncode == 0, done.stderr
    near(tmp_path / "one", tmp_path / "part")
    failed = torchrun(base, tmp_path / "x", tmp_path / "nowhere")
    assert failed.returncode != 0 and "nowhere: no such model folder" in failed.stderr
    assert not (tmp_path / "x").exists()


def near(one: Path, two: Path) -> None:
    """Equal within rounding."""
    a, b = weights(one), weights(two)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=2e-5)
