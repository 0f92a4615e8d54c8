"""Rounds that train an adapter, on a base in full and in 4 bits."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from safetensors.torch import save_file
from support.training_runs import metric, same, train, weights
from support.training_world import load, plain_logprobs, stopped_at, world

from toolsample_cli.config import TrainConfig
from toolsample_cli.errors import ConfigError, MissingDependency
from toolsample_cli.shards.folder_sums import write_sums
from toolsample_cli.stage import Options
from toolsample_cli.train import adapter, four_bit
from toolsample_cli.train.distributed import World
from toolsample_cli.train.setup import load_policy


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Off-policy rollouts (noise of 0.4 on their logprobs)."""
    return world(tmp_path_factory.mktemp("base"), noise=0.4)


ADAPTER = {"lora_rank": 4, "lora_alpha": 8.0, "lr": 5e-3}


def test_adapter_checkpoint_is_merged_and_goes_on(base, tmp_path):
    """Two rounds with an adapter: served weights are base plus low-rank, only the adapter has moments."""
    peft = pytest.importorskip("peft")
    train(base, tmp_path / "r0", **ADAPTER)
    train(base, tmp_path / "r1", model=tmp_path / "r0", **ADAPTER)
    start, end = weights(base[0]), weights(tmp_path / "r1")
    assert start.keys() == end.keys()
    changed = {name for name in start if not np.array_equal(start[name], end[name])}
    assert changed and all("proj" in name for name in changed)
    assert np.linalg.matrix_rank(end[min(changed)] - start[min(changed)], tol=1e-5) <= 4
    moments = load_file(tmp_path / "r1/trainer/optimizer.safetensors")
    assert moments and all("lora_" in name for name in moments)
    adapted = peft.PeftModel.from_pretrained(load(base[0]), str(tmp_path / "r1/adapter"))
    prompt, completion = [5, 6, 7], [8, 9, 10]
    one = plain_logprobs(load(tmp_path / "r1"), prompt, completion)
    np.testing.assert_allclose(plain_logprobs(adapted, prompt, completion), one, atol=1e-5)
    with pytest.raises(ConfigError, match="rank 4"):
        train(base, tmp_path / "r2", model=tmp_path / "r0", **{**ADAPTER, "lora_rank": 8})


def test_adapter_round_resumes_to_the_bit_and_takes_its_base_as_reference(base, tmp_path):
    pytest.importorskip("peft")
    settings = {**ADAPTER, "steps": 4, "save_every": 1, "kl": 0.1}
    train(base, tmp_path / "whole", **settings)
    assert metric(tmp_path / "whole", "kl_reference")[0] == pytest.approx(0, abs=1e-7)
    with pytest.raises(KeyboardInterrupt):
        train(base, tmp_path / "part", stopped_at(3), **settings)
    train(base, tmp_path / "part", **settings)
    assert same(tmp_path / "part", tmp_path / "whole")


def test_an_adapter_on_a_base_in_4_bits(base, tmp_path):
    """Its checkpoint is the policy that was trained: the unpacked base plus the adapter, in a folder that any engine
    loads. Loss and gradient are those of an adapter on the unpacked base."""
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    settings = {**ADAPTER, "lora_4bit": True, "old_policy": "recompute"}
    train(base, tmp_path / "r0", **settings)
    train(base, tmp_path / "r1", model=tmp_path / "r0", **settings)
    config = TrainConfig(**settings, layout="padded")
    packed = load_policy(str(tmp_path / "r1"), config, World(), str(base[0])).model
    stored = {name: p for name, p in packed.get_base_model().named_parameters() if hasattr(p, "quant_state")}
    assert len(stored) == 7 * packed.config.num_hidden_layers
    assert all(p.dtype == torch.uint8 and not p.requires_grad for p in stored.values())
    start, end = weights(base[0]), weights(tmp_path / "r1")
    assert start.keys() == end.keys()
    assert {name for name in start if np.array_equal(start[name], end[name])} == {n for n in start if "proj" not in n}
    assert "quantization_config" not in json.loads((tmp_path / "r1/config.json").read_text())
    prompt, completion = [5, 6, 7], [8, 9, 10]
    one = plain_logprobs(load(tmp_path / "r1"), prompt, completion)
    np.testing.assert_allclose(plain_logprobs(packed.train(), prompt, completion), one, atol=1e-4)

    # the same round over a base that was unpacked beforehand
    unpacked = tmp_path / "unpacked"
    shutil.copytree(base[0], unpacked)
    full = {name.replace(".base_layer.", "."): four_bit.unpacked(p) for name, p in stored.items()}
    plain = {name: torch.from_numpy(value) for name, value in start.items()}
    save_file({**plain, **full}, unpacked / "model.safetensors", metadata={"format": "pt"})
    train((unpacked, *base[1:]), tmp_path / "u0", **{**settings, "lora_4bit": False})
    assert metric(tmp_path / "u0", "grad_norm") == pytest.approx(metric(tmp_path / "r0", "grad_norm"), rel=1e-4)
    assert metric(tmp_path / "u0", "loss") == pytest.approx(metric(tmp_path / "r0", "loss"), rel=1e-4, abs=1e-7)
    for name, value in weights(tmp_path / "u0").items():
        np.testing.assert_allclose(value, weights(tmp_path / "r0")[name], atol=2e-4)


def test_4_bits_without_an_adapter_or_bitsandbytes(base, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="none") as refused:
        train(base, tmp_path / "ck", lora_4bit=True)
    assert refused.value.hint == "add --lora-rank 16"
    with pytest.raises(ConfigError, match="another policy"):
        train(base, tmp_path / "ck", **ADAPTER, lora_4bit=True, merge=False)
    for package in ("bitsandbytes", "accelerate", "peft"):
        with monkeypatch.context() as without, pytest.raises(MissingDependency, match=package) as caught:
            without.setattr(adapter, "find_spec", lambda name, gone=package: None if name == gone else name)
            train(base, tmp_path / "ck", Options(dry_run=True), **ADAPTER, lora_4bit=True)
        assert caught.value.hint == 'pip install "toolsample[qlora]"'


def test_settings_of_an_adapter_that_do_nothing_are_refused(base, tmp_path):
    pytest.importorskip("peft")
    for settings in ({"lora_targets": "q_proj"}, {"lora_alpha": 8.0}, {"merge": False}):
        with pytest.raises(ConfigError, match=f"{next(iter(settings))} is a setting of an adapter"):
            train(base, tmp_path / "ck", Options(dry_run=True), **settings)
    with pytest.raises(ConfigError, match="change nothing"):
        train(base, tmp_path / "ck", lora_rank=4, lora_alpha=0.0)
    train(base, tmp_path / "r0", **ADAPTER, lora_targets="q_proj,v_proj")
    with pytest.raises(ConfigError, match=r"an adapter on q_proj, v_proj, asked for q_proj$"):
        train(base, tmp_path / "ck", model=tmp_path / "r0", **ADAPTER, lora_targets="q_proj")
    account = train(base, tmp_path / "ck", model=tmp_path / "r0")
    assert "all weights are trained now" in account.extra["warnings"]
    mask = os.umask(0)
    os.umask(mask)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "ck").rglob("*.*")} == {0o666 & ~mask}


def test_an_adapter_goes_on_only_from_a_base_in_the_same_form(base, tmp_path):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    train(base, tmp_path / "full", **ADAPTER)
    with pytest.raises(ConfigError, match="on a base in full") as refused:
        train(base, tmp_path / "ck", model=tmp_path / "full", **ADAPTER, lora_4bit=True)
    assert refused.value.hint == "leave --lora-4bit out"
    with pytest.raises(ConfigError, match="lora_4bit was False, now True"):  # the same round asked for otherwise
        train(base, tmp_path / "full", **ADAPTER, lora_4bit=True)
    state = tmp_path / "full/trainer/state.json"
    found = json.loads(state.read_text())
    del found["config"]["lora_4bit"]  # a checkpoint that is older than the setting
    state.write_text(json.dumps(found))
    write_sums(tmp_path / "full")
    assert train(base, tmp_path / "full", **ADAPTER).extra["nothing to do"]
    with pytest.raises(ConfigError, match="lora_4bit was False, now True"):
        train(base, tmp_path / "full", **ADAPTER, lora_4bit=True)


def test_only_linear_layers_are_adapted_and_packed():
    """Experts stored together and GPT-2's transposed weights would be left out of the merge or mixed up by it."""
    pytest.importorskip("peft")
    small = {"vocab_size": 99, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
    settings = transformers.Qwen3MoeConfig(
        **small, num_key_value_heads=1, head_dim=16, num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2
    )
    model = transformers.Qwen3MoeForCausalLM(settings)
    adapted = adapter.attach(copy.deepcopy(model), TrainConfig(lora_rank=2), None)
    assert set(adapter.merged(adapted)) == {name for name, _ in model.named_parameters()}
    assert {n.split(".")[-3] for n in adapter.adapter_tensors(adapted)} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    with pytest.raises(ConfigError, match="experts is not a linear layer"):
        adapter.attach(copy.deepcopy(model), TrainConfig(lora_rank=2, lora_targets="q_proj,down_proj"), None)
    with pytest.raises(ConfigError, match=r"hold \d+% of the weights of qwen3_moe"):
        four_bit.loading(settings, torch.float32, World())

    settings = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=1, n_head=2)
    with pytest.raises(ConfigError, match="no linear layers"):
        adapter.attach(transformers.GPT2LMHeadModel(settings), TrainConfig(lora_rank=2), None)
    with pytest.raises(ConfigError, match="keeps its weights transposed"):
        four_bit.loading(settings, torch.float32, World())


def test_an_adapter_without_peft_says_what_to_install(base, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingDependency) as caught:
        train(base, tmp_path / "ck", **ADAPTER)
    assert caught.value.hint == 'pip install "toolsample[peft]"'
