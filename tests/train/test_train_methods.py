"""What a round can be told to do besides plain GRPO: decoupled ratio, KL, sub-task shares, alarm, trackers, ranks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file
from support.tiny_model import task_row
from support.training_runs import metric, same, train, weights
from support.training_world import load, plain_logprobs, rollout_rows, stopped_at, world, write

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError, DataError, MissingDependency, StageFailure
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options
from toolsample_cli.train.collapse import collapse
from toolsample_cli.train.stage import run
from toolsample_cli.train.subtask_spans import KEY, NAME, VALUE, TokenSpans, text_spans


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Off-policy rollouts (noise of 0.4 on their logprobs)."""
    return world(tmp_path_factory.mktemp("base"), noise=0.4)


def test_recomputed_old_logprobs_start_at_ratio_one(base, tmp_path):
    """Stored logprobs are off; against the recomputed ones the first step's ratio is 1 to rounding."""
    stored = train(base, tmp_path / "stored")
    own = train(base, tmp_path / "own", old_policy="recompute")
    assert abs(metric(tmp_path / "stored", "ratio_first")[0] - 1) > 0.01
    assert metric(tmp_path / "stored", "log_ratio_first")[0] == pytest.approx(0.4 * math.sqrt(2 / math.pi), rel=0.1)
    assert "another policy drew them" in stored.extra["warnings"] and "warnings" not in own.extra
    assert metric(tmp_path / "own", "ratio_first")[0] == pytest.approx(1, abs=1e-5)
    assert metric(tmp_path / "own", "log_ratio_abs")[1] > 1e-4


def test_recompute_without_weights_equals_rollouts_with_right_logprobs(base, tmp_path):
    """is_cap 0 ignores the stored logprobs, so training is as if they had been exact; null ones will do as well."""
    rows = open_folder(base[1], schema.ROLLOUTS).load().to_dicts()
    model = load(base[0])
    for row in rows:
        row["logprobs"] = plain_logprobs(model, row["prompt_ids"], row["completion_ids"]).tolist()
    exact = write(tmp_path / "exact", schema.ROLLOUTS, rows)
    for row in rows:
        row["logprobs"] = None
    null = write(tmp_path / "null", schema.ROLLOUTS, rows)
    train((base[0], exact, base[2]), tmp_path / "a", steps=1)
    train(base, tmp_path / "b", steps=1, old_policy="recompute", is_cap=0.0)
    train((base[0], null, base[2]), tmp_path / "c", steps=1, old_policy="recompute")
    for other in ("b", "c"):
        close(tmp_path / "a", tmp_path / other)
    with pytest.raises(DataError, match="no logprobs"):
        train((base[0], null, base[2]), tmp_path / "d")


def test_a_decoupled_round_resumes_to_the_bit(base, tmp_path):
    """The anchor is the policy at the start of the round, also after an interruption in its middle."""
    settings = {"steps": 4, "old_policy": "recompute", "save_every": 1}
    train(base, tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        train(base, tmp_path / "part", stopped_at(3), **settings)
    train(base, tmp_path / "part", **settings)
    assert same(tmp_path / "part", tmp_path / "whole")


def test_kl_pulls_back_to_the_reference(base, tmp_path):
    """With the start as reference a large coefficient keeps the policy nearer to it; its own KL starts at 0."""
    reference = str(base[0])
    train(base, tmp_path / "free", kl=1e-6, reference=reference, epochs=3)
    train(base, tmp_path / "held", kl=2.0, reference=reference, epochs=3)
    assert metric(tmp_path / "free", "kl_reference")[0] == pytest.approx(0, abs=1e-6)
    assert metric(tmp_path / "held", "kl_reference")[-1] < 0.7 * metric(tmp_path / "free", "kl_reference")[-1]
    with pytest.raises(ConfigError, match="needs a reference"):
        train(base, tmp_path / "x", kl=0.1)


def test_entropy_bonus_raises_entropy(base, tmp_path):
    train(base, tmp_path / "plain", epochs=4)
    train(base, tmp_path / "bonus", epochs=4, entropy_bonus=0.5)
    assert metric(tmp_path / "bonus", "entropy")[-1] > metric(tmp_path / "plain", "entropy")[-1] + 0.02


def gradient(folder: Path) -> dict[str, np.ndarray]:
    """The gradient of the last step, up to a factor: AdamW's first moment after a single one."""
    moments = load_file(folder / "trainer" / "optimizer.safetensors")
    return {name: tensor for name, tensor in moments.items() if name.startswith("exp_avg.")}


def close(one: Path, two: Path, tolerance: float = 2e-6) -> None:
    """Gradients equal, relative to the largest. Weights say less: AdamW turns a gradient near 0 into its sign."""
    a, b = gradient(one), gradient(two)
    assert a.keys() == b.keys() and a
    scale = max(np.abs(tensor).max() for tensor in a.values())
    for name, tensor in a.items():
        assert np.abs(tensor - b[name]).max() <= tolerance * scale, name


def test_a_step_does_not_depend_on_the_micro_batches(base, tmp_path):
    """Budget and layout are about memory and speed only."""
    train(base, tmp_path / "a", steps=1)
    for name, settings in (("b", {"token_budget": 50}), ("c", {"layout": "padded"}), ("d", {"subtasks": False})):
        train(base, tmp_path / name, steps=1, **settings)
        close(tmp_path / "a", tmp_path / name)
        assert metric(tmp_path / name, "loss") == pytest.approx(metric(tmp_path / "a", "loss"), rel=1e-6, abs=1e-7)


HERMES = 'I will.\n<tool_call>\n{"name": "get", "arguments": {"city": "Paris", "days": [1, {"n": 2}]}}\n</tool_call>'
TWO = '[{"name": "a", "parameters": {"k": true}}, {"name": "b"}]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HERMES, [('"get"', NAME), ('"city"', KEY), ('"Paris"', VALUE), ('"days"', KEY), ('[1, {"n": 2}]', VALUE)]),
        (TWO, [('"a"', NAME), ('"k"', KEY), ("true", VALUE), ('"b"', NAME)]),
        ('{"name": "f", "arguments": {"x": "cut of', [('"f"', NAME), ('"x"', KEY), ("cut", VALUE), ("of", VALUE)]),
        ('{"arguments": {"name": "Bob"}, "name": "g"}', [('"name"', KEY), ('"Bob"', VALUE), ('"g"', NAME)]),
        ("no call at all: {1, 2} [x", []),
        ('{"arguments": {"x": 1}}', []),
    ],
)  # fmt: skip
def test_sub_tasks_are_found_in_text(text, expected):
    assert [(text[a:b], kind) for a, b, kind in text_spans(text)] == expected


def test_broken_and_deep_text_costs_linear_time():
    for text in ('{"name":' * 50_000, "[" * 100_000, '"' * 100_000, '{"a":{"b":' * 20_000 + "}" * 40_000):
        text_spans(text)


def test_tokens_are_marked_by_the_text_they_hold(base):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base[0])
    for text in (HERMES, HERMES.replace("Paris", "Zürich 東京")):
        ids = tokenizer.encode(text, add_special_tokens=False)
        marks = TokenSpans(tokenizer).of(ids)
        for kind, inner in ((NAME, "get"), (KEY, "city"), (VALUE, "[1,")):
            marked = tokenizer.decode([token for token, mark in zip(ids, marks, strict=True) if mark == kind])
            assert inner in marked
        value = tokenizer.decode([token for token, mark in zip(ids, marks, strict=True) if mark == VALUE])
        assert ("Paris" in text) == ("Paris" in value) and ("東京" in text) == ("東京" in value)
        assert not any(marks[: ids.index(tokenizer.convert_tokens_to_ids("<tool_call>")) + 1])


def test_records_hold_each_sub_tasks_share_of_the_loss(base, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base[0])
    ids = tokenizer.encode(HERMES, add_special_tokens=False)
    rows = rollout_rows(load(base[0]), groups=1, samples=4)
    for row in rows[:2]:
        row.update(completion_ids=ids, logprobs=[-3.0] * len(ids))
    rollouts = write(tmp_path / "r", schema.ROLLOUTS, rows)
    batch = open_folder(base[2], schema.BATCH).load().filter(pl.col("task_id") == "t000").to_dicts()
    train((base[0], rollouts, write(tmp_path / "b", schema.BATCH, batch)), tmp_path / "ck", steps=1)
    records = open_folder(tmp_path / "ck.records", schema.RECORDS).load().sort("rollout_id")
    for row in records.to_dicts()[:2]:
        assert row["loss_name"] != 0 and row["loss_key"] != 0 and row["loss_value"] != 0
    assert (records["loss_name"][2:] == 0).all()


def test_the_alarm_rings_on_collapse_only():
    rising = [i / 100 for i in range(100)]
    assert collapse(rising, [1.0] * 100) is None
    assert "exact share fell" in collapse([0.6] * 60 + [0.1] * 50, [])
    assert collapse([0.6] * 60 + [0.4] * 50, []) is None
    assert collapse([0.6] * 30 + [0.0] * 15, []) is None  # not enough steps to tell
    assert collapse([0.01] * 60 + [0.0] * 60, []) is None  # there was nothing to lose
    assert "format share fell to 40.0%" in collapse([], [0.95, 0.8, 0.4])
    assert collapse([], [0.85, 0.4]) is None


def test_collapse_is_reported_or_ends_the_round(base, tmp_path):
    rows = open_folder(base[2], schema.BATCH).load()
    bad = write(tmp_path / "bad", schema.BATCH, rows.with_columns(format=pl.lit(0.0)).to_dicts())
    train(base, tmp_path / "r0")
    account = train((base[0], base[1], bad), tmp_path / "r1", model=tmp_path / "r0")
    assert "collapse: format share fell" in account.extra["warnings"]
    with pytest.raises(StageFailure, match="collapsed at step 3"):
        train((base[0], base[1], bad), tmp_path / "r2", model=tmp_path / "r0", stop_on_collapse=True)


def test_trackers(base, tmp_path):
    with pytest.raises(ConfigError, match="not one of"):
        train(base, tmp_path / "a", track="tensorbord")
    if "wandb" not in sys.modules and not _installed("wandb"):
        with pytest.raises(MissingDependency, match="wandb"):
            train(base, tmp_path / "b", track="wandb")
    if _installed("tensorboard"):
        train(base, tmp_path / "c", track="tensorboard")
        assert list((tmp_path / "tensorboard").glob("events*"))


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_another_tokenizer_is_refused(base, tmp_path):
    rows = open_folder(base[1], schema.ROLLOUTS).load().to_dicts()
    rollouts = write(tmp_path / "r", schema.ROLLOUTS, rows, config={"tokenizer": "0123456789abcdef"})
    with pytest.raises(DataError, match="made with tokenizer 0123456789abcdef"):
        train((base[0], rollouts, base[2]), tmp_path / "ck")
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((base[0] / name).read_bytes())
    with pytest.raises(DataError, match="without tokenizer"):
        train(base, tmp_path / "ck", model=tmp_path / "bare")


RANK = """
import json, os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from toolsample_cli.config import TrainConfig
from toolsample_cli.stage import Options
from toolsample_cli.train.stage import run
rollouts, batch, model, out, settings, die_at = sys.argv[1:]
config, steps = TrainConfig(**json.loads(settings)), []
def tick(rows):
    steps.append(rows)
    if len(steps) == int(die_at):
        os._exit(9)
run(Path(rollouts), Path(batch), model=model, out=Path(out), config=config, options=Options(tick=tick))
"""


def two_ranks(base, out: Path, model: Path, settings: dict, port: int, die_at: int = 0) -> None:
    """The same round in two gloo processes, as torchrun starts them; `die_at` a step both vanish without a word."""
    inputs = [base[1], base[2], model, out, json.dumps(settings), die_at]
    command = [sys.executable, "-c", RANK, *map(str, inputs)]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == ([9, 9] if die_at else [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("extra", [{}, {"lora_rank": 4, "kl": 0.1}, {"old_policy": "recompute"}], ids=str)
def test_two_ranks_equal_one(base, tmp_path, extra):
    """FSDP2 over two processes: same parameters, metrics and records; each side goes on from the other's checkpoint."""
    if "lora_rank" in extra:
        pytest.importorskip("peft")
    settings = {"lr": 1e-3, "steps": 3, "token_budget": 60, **extra}
    port = 29500 + os.getpid() % 1000
    train(base, tmp_path / "one", **settings)
    two_ranks(base, tmp_path / "two", base[0], settings, port)
    _near(tmp_path / "one", tmp_path / "two")
    train(base, tmp_path / "two-one", model=tmp_path / "two", **settings)
    two_ranks(base, tmp_path / "one-two", tmp_path / "one", settings, port + 1)
    _near(tmp_path / "two-one", tmp_path / "one-two")
    saved = {**settings, "save_every": 1}
    two_ranks(base, tmp_path / "part", base[0], saved, port + 2, die_at=3)
    assert not (tmp_path / "part").exists() and (tmp_path / ".part.partial").is_dir()
    train(base, tmp_path / "part", **saved)  # one process takes over in the middle of the round
    _near(tmp_path / "one", tmp_path / "part")
    for kind, shard in (("steps", schema.STEPS), ("records", schema.RECORDS)):
        one, two = (open_folder(tmp_path / f"{name}.{kind}", shard).load() for name in ("one", "two"))
        numbers = [c for c, dtype in one.schema.items() if dtype.is_float()]
        if kind == "steps":  # how many slots a step forwards depends on how it is cut, and a rank may add a filler
            one, two = (f.filter(pl.col("metric") != "slots") for f in (one, two))
        assert one.drop(numbers).equals(two.drop(numbers))
        for column in numbers:
            a, b = (f[column].fill_null(-1).to_numpy() for f in (one, two))
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def _near(one: Path, two: Path) -> None:
    a, b = weights(one), weights(two)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=2e-5)


def test_sft_counts_and_limits(base, tmp_path):
    """ids and limit choose tasks; the account says how many."""
    tasks = write(tmp_path / "tasks", schema.TASKS, [task_row(i) for i in range(5)])
    (tmp_path / "ids").write_text("t00001\nt00003\n")
    config = TrainConfig(objective="sft", steps=2)
    options = Options(ids=tmp_path / "ids")
    account = run(tasks, None, model=str(base[0]), out=tmp_path / "ck", config=config, options=options)
    assert account.rows_in == account.rows_out == 2
    with pytest.raises(DataError, match="a folder of tasks shards, expected rollouts"):
        run(tasks, tasks, model=str(base[0]), out=tmp_path / "x", config=config, options=Options())
    with pytest.raises(ConfigError, match="--tasks is for these"):
        run(tasks, None, model=str(base[0]), out=tmp_path / "x", config=config, options=Options(), tasks=tasks)
