"""Slow: a real, if tiny, checkpoint on official questions, from the command line: killed, and behind a server.

python -m pytest tests/test_bfcl_policy.py -m slow
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from support.chat_server import ChatServer

from toolsample_cli.bfcl import environment
from toolsample_cli.errors import MissingDependency

pytestmark = pytest.mark.slow

POLICY = Path(__file__).resolve().parents[2] / "fixtures" / "policy"
ENTRIES = 100
COMMAND = [
    *(sys.executable, "-m", "toolsample_cli", "eval-bfcl", str(POLICY)),
    *("--categories", "simple_python", "--limit", str(ENTRIES), "-o", "out"),
]
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The output folder of an unbroken run and what it printed."""
    try:
        environment.provide("v4")
    except MissingDependency as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(COMMAND, cwd=folder, env=OFFLINE, capture_output=True, check=True)
    return folder / "out", done.stdout


def tree(out: Path) -> dict[str, bytes]:
    """All that is made from the answers; the journal keeps them in the order in which they came."""
    files = (file for file in sorted(out.rglob("*")) if file.is_file() and file.name != "answers.jsonl")
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_killed_again_and_again_it_ends_with_the_same_table(whole: tuple[Path, bytes], tmp_path: Path):
    """SIGKILL before the first answer, after some, after most: the same table and bytes, every answer made once."""
    journal, log = tmp_path / "out" / "answers.jsonl", tmp_path / "log"
    for least in (0, 10, 60):
        with log.open("wb") as output:
            child = subprocess.Popen(COMMAND, cwd=tmp_path, env=OFFLINE, stdout=output, stderr=output)
        while child.poll() is None and not (journal.exists() and len(journal.read_bytes().splitlines()) > least):
            time.sleep(0.02)
        assert child.poll() is None, log.read_text()
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    done = subprocess.run(COMMAND, cwd=tmp_path, env=OFFLINE, capture_output=True, check=True)
    assert done.stdout == whole[1]
    assert f"simple_python{'':>13}" in done.stdout.decode()
    assert tree(tmp_path / "out") == tree(whole[0])
    assert sorted(journal.read_bytes().splitlines()) == sorted((whole[0] / "answers.jsonl").read_bytes().splitlines())


def test_behind_a_server_it_gives_the_same_answers(whole: tuple[Path, bytes], tmp_path: Path):
    """Greedy, through the server's own template and tool parser: the calls and verdicts of the checkpoint read here."""
    with ChatServer(POLICY) as url:
        server = ["--backend", "openai", "--base-url", url, "--dots", "keep", "--concurrency", "4"]
        subprocess.run([*COMMAND, *server], cwd=tmp_path, env=OFFLINE, capture_output=True, check=True)
    here, there = (pl.read_parquet(out / "entries" / "part-00000.parquet") for out in (whole[0], tmp_path / "out"))
    assert here.height == ENTRIES
    for column in ("entry_id", "calls_json", "valid", "error_type", "finish_reason"):
        assert here[column].to_list() == there[column].to_list(), column
    silent = here["calls_json"] == "[]"
    assert 0 < silent.sum() < ENTRIES
    assert here.filter(silent)["answer"].to_list() == there.filter(silent)["answer"].to_list()
