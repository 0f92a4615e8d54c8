"""SIGKILL inside filter and curriculum at any moment at which something is made durable, then a rerun: same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.curation_data import HALF, RIGHT, WRONG, score_frame, task_row, write

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.shards import schema

KILLED = """
import os, signal, sys
from toolsample_cli.cli.app import run
moment, fsync, seen = int(sys.argv[1]), os.fsync, []
def sync(handle):
    seen.append(handle)
    if len(seen) == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)
os.fsync = sync
sys.exit(run(sys.argv[2:]))
"""

FILTER = ["filter", "scores1", "--history", "groups0", "-o", "out/groups"]
CURRICULUM = [
    *("curriculum", "corpus", "--groups", "groups1", "--scores", "scores1", "--state", "start/state.json"),
    *("--hard", "fewshot", "--hard-after", "4", "--tasks-per-round", "8", "-o", "out"),
]
MOMENTS = {"filter": (FILTER, 10), "curriculum": (CURRICULUM, 14)}
"""Command, and how often it makes something durable: a shard, its folder, a manifest, the state."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, the scores of two rounds in three shards, the groups of both, and a first state."""
    folder = tmp_path_factory.mktemp("interrupted")
    here = Path.cwd()
    os.chdir(folder)
    names = [f"t{i:02d}" for i in range(24)]
    write(schema.TASKS, Path("corpus"), [schema.frame(schema.TASKS, [task_row(n) for n in names])])
    for number, part in ((0, names[:12]), (1, names[6:18])):
        outcomes = {name: [RIGHT, HALF, WRONG, WRONG] if int(name[1:]) % 3 else [WRONG] * 4 for name in part}
        shards = [dict(list(outcomes.items())[i::3]) for i in range(3)]
        write(schema.SCORES, Path(f"scores{number}"), [score_frame(shard, round=number) for shard in shards])
    assert toolsample(["curriculum", "corpus", "-o", "start"]) == 0
    assert toolsample(["filter", "scores0", "-o", "groups0"]) == 0
    assert toolsample([*FILTER[:-1], "groups1"]) == 0
    os.chdir(here)
    return folder


WAITING = """
import sys, time
from toolsample_cli.cli.app import run
from toolsample_cli.filter import stage as filter
def wait(*_):
    print("ready", flush=True)
    time.sleep(60)
filter.run = wait
sys.exit(run(sys.argv[1:]))
"""


def test_ctrl_c_says_how_to_go_on(world: Path):
    """A real SIGINT, which typer turns into an exit of its own."""
    command = [sys.executable, "-c", WAITING, *FILTER]
    child = subprocess.Popen(command, cwd=world, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.splitlines()[-1] == "toolsample: interrupted; what was finished is kept, rerun to resume"


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    ("stage", "moment"),
    [
        pytest.param(stage, moment, marks=() if moment in (4, most) else pytest.mark.slow)
        for stage, (_, most) in MOMENTS.items()
        for moment in range(1, most + 2)
    ],
)
def test_killed_at_this_moment_a_rerun_ends_in_the_same_bytes(
    stage: str, moment: int, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One moment past the last one nothing is killed any more, which shows that they are all of them."""
    command, most = MOMENTS[stage]
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        for source in world.iterdir():
            (tmp_path / name / source.name).symlink_to(source)
    monkeypatch.chdir(tmp_path / "whole")
    assert toolsample(command) == 0
    monkeypatch.chdir(tmp_path / "broken")
    child = subprocess.run([sys.executable, "-c", KILLED, str(moment), *command], capture_output=True, check=False)
    assert child.returncode == (-signal.SIGKILL if moment <= most else 0), child.stderr.decode()
    if moment < most:  # at the last moment all is written, and only its folder not yet made durable
        assert tree(tmp_path / "broken" / "out") != tree(tmp_path / "whole" / "out")
    assert toolsample(command) == 0
    assert tree(tmp_path / "broken" / "out") == tree(tmp_path / "whole" / "out")
