"""Servers of other projects through the openai engine, for real (slow): llama.cpp's and `transformers serve`.

`LLAMACPP_PYTHON` names an interpreter with llama-cpp-python[server], gguf and safetensors; without it
`.venv-llamacpp` beside the repository's files is made (compiled, 6 minutes). `SERVE_PYTHON` names one with
transformers[serving]; without it `.venv-serve` is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.conformance import TOLERANCE, confirmed
from support.rollout_world import loaded, write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.rollout.engines.transformers import TransformersEngine
from toolsample_cli.rollout.stage import run
from toolsample_cli.rollout.types import Sampling, open_engine
from toolsample_cli.stage import Options

ROOT = Path(__file__).resolve().parents[2]
CONFIG = RolloutConfig(n=2, max_new_tokens=24, batch_tokens=8192, concurrency=2, retries=1, timeout=120.0)
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A model whose tokens are letters, so that its text has one reading, and 20 tasks."""
    path = tmp_path_factory.mktemp("world")
    folder = tiny_model(path, tokens=266)  # one merge, as llama.cpp wants some; it and its first letter are ruled out
    plain = TransformersEngine(folder, CONFIG)
    words = [plain.chat.tokenizer.decode([i]) for i in range(plain.model.config.vocab_size)]
    merged = {w[0] for w in words if len(w) == 2}
    odd = [i for i, w in enumerate(words) if not (w.isascii() and w.isprintable()) or len(w) != 1 or w in merged]
    odd = [i for i in odd if i not in plain.stop_ids]
    with torch.no_grad():
        plain.model.lm_head.weight[odd, :8] -= 20.0  # the direction that every position shares
    plain.model.save_pretrained(folder)
    write_tasks(path / "tasks", [task_row(i, "weather " * (1 + i % 7)) for i in range(20)])
    return path


def interpreter(variable: str, folder: str, wanted: list[str]) -> str:
    """What the variable names, or that of an environment made beside the repository's files."""
    given = os.environ.get(variable)
    if given:
        return given
    place = ROOT / folder
    if not (place / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        if subprocess.run([str(place / "bin" / "pip"), "-q", "install", *wanted]).returncode:
            pytest.skip(f"pip could not install {wanted[0]}")
        (place / "done").touch()
    return str(place / "bin" / "python")


@contextlib.contextmanager
def serving(command: list[str], probe: str) -> Iterator[str]:
    """A server on a free port; its base URL once `probe` answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], **QUIET) as server:
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
            while time.monotonic() < deadline and server.poll() is None:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}{probe}", timeout=5):
                    break
                time.sleep(0.5)
            assert server.poll() is None, "the server did not start"
            yield f"{url}/v1"
        finally:
            server.terminate()


def texts(path: Path) -> list[str]:
    return loaded(path)["text"].to_list()


@pytest.mark.slow
def test_llamacpp(world, tmp_path):
    """Another implementation of the same weights: its logprobs are the model's, under the name of what they are."""
    packages = ["llama-cpp-python[server]==0.3.36", "gguf==0.19.0", "safetensors"]
    llamacpp = interpreter("LLAMACPP_PYTHON", ".venv-llamacpp", packages)
    model, file = world / "tiny", tmp_path / "tiny.gguf"
    subprocess.run([llamacpp, str(ROOT / "tests" / "support" / "gguf_model.py"), str(model), str(file)], check=True)
    plain = TransformersEngine(model, CONFIG)
    command = [llamacpp, "-m", "llama_cpp.server", "--model", str(file), "--model_alias", "tiny"]
    command += ["--n_ctx", "1024", "--logits_all", "true", "--n_threads", "1", "--n_threads_batch", "1"]
    with serving(command, "/v1/models") as url:
        base = dataclasses.replace(CONFIG, backend="openai", base_url=url, tokenizer=str(model))
        for name, temperature, convention in (("one", 1.0, "processed"), ("cool", 0.7, "raw")):
            config = dataclasses.replace(base, temperature=temperature)
            engine = open_engine("openai", "tiny", config)
            theirs, ours = engine.describe()["probe_prompt_tokens"]
            assert engine.describe()["dialect"] == "text" and theirs == ours
            account = run(world / "tasks", tmp_path / name, "tiny", config, Options(), engine=engine)
            assert account.exit_code == 0
            # raw logprobs are those at temperature 1, whatever was sampled at
            found = confirmed(world / "tasks", tmp_path / name, plain.model, plain.chat, Sampling.of(CONFIG))
            print(name, found)
            assert found["convention"] == convention and found["exact"] == 0 and found["reasons"] == ["length", "stop"]
            assert found["gap"] < TOLERANCE
            # its list has nothing for an end token and is now and then one short of its own text: stored without, then
            assert 0.6 * found["rows"] <= found["with_logprobs"] < found["rows"]
        greedy = dataclasses.replace(CONFIG, n=1, temperature=0.0)
        run(world / "tasks", tmp_path / "ours", str(model), greedy, Options(), engine=plain)
        run(world / "tasks", tmp_path / "theirs", "tiny", dataclasses.replace(base, n=1, temperature=0.0), Options())
    same = sum(a == b for a, b in zip(texts(tmp_path / "ours"), texts(tmp_path / "theirs"), strict=True))
    print("greedy", same, "of 20")
    assert same >= 19


@pytest.mark.slow
def test_transformers_serve(world, tmp_path):
    """A server that ignores or refuses most fields: standard fields only, no logprobs, and the rows say so."""
    python = interpreter("SERVE_PYTHON", ".venv-serve", ["torch==2.13.0", "transformers[serving]"])
    model, start = str(world / "tiny"), "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    command = [python, "-c", start, "serve", "--device", "cpu", "--dtype", "float32", model]
    with serving(command, "/health") as url:
        config = dataclasses.replace(CONFIG, backend="openai", base_url=url, n=1, temperature=0.0)
        engine = open_engine("openai", model, config)
        print(dict(engine.describe()))
        account = run(world / "tasks", tmp_path / "theirs", model, config, Options(), engine=engine)
    assert account.exit_code == 0
    plain = TransformersEngine(model, CONFIG)
    run(
        world / "tasks",
        tmp_path / "ours",
        model,
        dataclasses.replace(CONFIG, n=1, temperature=0.0),
        Options(),
        engine=plain,
    )
    found = confirmed(world / "tasks", tmp_path / "theirs", plain.model, plain.chat, Sampling.of(config))
    same = sum(a == b for a, b in zip(texts(tmp_path / "ours"), texts(tmp_path / "theirs"), strict=True))
    print("greedy", same, "of 20", found)
    assert same >= 19 and found["exact"] == 0 and found["with_logprobs"] == 0 and found["convention"] is None
