"""One conformance test over all engines: what stands in the shards is what the model itself says.

vLLM, its server and llama.cpp go through the same check in test_backends_vllm.py and test_backends_llamacpp.py.
"""

from __future__ import annotations

import dataclasses

import pytest
from support.conformance import SAMPLINGS, TOLERANCE, confirmed
from support.fake_server import Fake
from support.rollout_world import write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.rollout.engines.kv_cache import Repeated
from toolsample_cli.rollout.stage import run
from toolsample_cli.rollout.types import ENGINES, Sampling, open_engine
from toolsample_cli.stage import Options

CONFIG = RolloutConfig(n=3, max_new_tokens=24, batch_tokens=4096)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("world")
    tiny_model(path)
    write_tasks(path / "tasks", [task_row(i, "weather " * (1 + i % 7)) for i in range(8)])
    return path


@pytest.mark.parametrize("knobs", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("engine", ["transformers", "transformers, repeated prompt", "openai", "replay"])
def test_shards_hold_what_the_model_says(world, tmp_path, engine, knobs):
    """Logprobs within 2e-3 of a plain forward pass, ids decode to the text, prompt ids are the template's."""
    name, _, layout = engine.partition(", ")
    model = str(world / "tiny")
    config = dataclasses.replace(CONFIG, backend=name, **knobs)
    plain = open_engine("transformers", model, CONFIG)
    with Fake(plain) as fake:
        config = dataclasses.replace(config, base_url=fake.url, tokenizer=model if name == "openai" else "")
        backend = open_engine(name, "tiny" if name == "openai" else model, config)
        if layout:
            backend.state_class = Repeated
        run(world / "tasks", tmp_path / "out", model, config, Options(), engine=backend)
    found = confirmed(world / "tasks", tmp_path / "out", plain.model, plain.chat, Sampling.of(config))
    if name == "replay":  # texts of no model: no logprobs, and the metadata say so
        assert found["with_logprobs"] == found["exact"] == 0 and found["convention"] is None
        return
    assert found["gap"] < TOLERANCE and found["with_logprobs"] == found["exact"] == found["rows"] == 24
    assert found["convention"] == "processed" and found["reasons"] == ["length", "stop"]


def test_no_engine_is_left_out():
    """vLLM has its own file, as it needs its own environment."""
    assert set(ENGINES) == {"transformers", "openai", "replay", "vllm"}
