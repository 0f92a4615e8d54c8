"""Every end is clean: full disks, killed runs, races, empty rounds, components that exit, names that are paths."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import training_world
from support.curation_data import RIGHT, WRONG, score_frame, task_row, write
from support.shard_data import fill
from support.training_runs import train

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.config import TrainConfig, read_recipe
from toolsample_cli.errors import ConfigError, DataError, EmptyBatch, StageFailure
from toolsample_cli.experiment.recipe import plans
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import check_room, in_words
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.stage import Options
from toolsample_cli.train import checkpoint
from toolsample_cli.train.stage import run as train_stage


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return training_world.world(tmp_path_factory.mktemp("base"), groups=2, samples=2)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WRITTEN = ["c", "c.records", "c.records.manifest.json", "c.steps", "c.steps.manifest.json"]


def test_what_a_killed_training_leaves_is_swept_by_the_next(base, tmp_path: Path):
    """Also by a rerun that finds its round finished."""
    train(base, tmp_path / "c")
    assert left(tmp_path) == WRITTEN
    for name in (".c.partial", "..c.partial.old", "..c.partial.tmp", ".c.old", ".c.tmp", ".c.step-3.tmp", ".c.gone"):
        shutil.copytree(tmp_path / "c", tmp_path / name)
    assert train(base, tmp_path / "c").extra["nothing to do"]
    assert left(tmp_path) == WRITTEN


def test_a_checkpoint_that_was_moved_aside_gets_its_name_back(base, tmp_path: Path):
    """Killed between the two renames that replace it."""
    train(base, tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / ".c.old")
    assert train(base, tmp_path / "c").extra["nothing to do"]
    assert left(tmp_path) == WRITTEN


def test_pruning_never_shows_half_a_checkpoint(base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed inside the deletion, the folder has lost its name already."""
    train(base, tmp_path / "c")

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint.shutil, "rmtree", lambda path, **more: dies() if Path(path).exists() else None)
        checkpoint.remove(tmp_path / "c")
    assert not (tmp_path / "c").exists()
    checkpoint.remove(tmp_path / "c")
    assert left(tmp_path) == WRITTEN[1:]


@pytest.mark.parametrize("name", ["model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"])
def test_a_flipped_bit_in_a_checkpoint_is_refused_by_name(base, tmp_path: Path, name: str):
    """By the next round and by a rerun of its own, wherever in the file it is."""
    train(base, tmp_path / "c")
    file = tmp_path / "c" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    for out in ("c", "next"):
        with pytest.raises(DataError, match=f"{Path(name).name}: damaged"):
            train(base, tmp_path / out, model=tmp_path / "c" if out == "next" else None)


def test_a_full_disk_is_found_before_the_work(base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10_000))
    monkeypatch.setattr("toolsample_cli.train.stage.load_policy", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(StageFailure, match=r"c: the disk has 10.0 kB left, a checkpoint and its optimizer needs about"):
        train(base, tmp_path / "c")
    assert left(tmp_path) == []


def test_full_and_read_only_are_said_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where a library says something else, which the size of a short file made it say."""
    assert in_words(OSError(errno.EROFS, "x"), tmp_path) == "the file system is read-only"
    assert in_words(OSError(errno.EDQUOT, "x"), tmp_path) == "the disk quota is used up"
    monkeypatch.setattr("toolsample_cli.shards.disk._probe", lambda _: errno.ENOSPC)
    assert in_words(RuntimeError("Invalid thrift: end of file"), tmp_path) == "the disk is full"
    with pytest.raises(StageFailure, match="cannot be written: the disk is full"):
        check_room(tmp_path / "out", 0, what="it")


def test_a_file_size_limit_while_a_shard_is_written_is_one_line(tmp_path: Path):
    """A real short write: the kernel refuses, polars meets it first."""
    script = (
        "import resource, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from support.shard_data import fill\n"
        "from toolsample_cli.errors import StageFailure\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))\n"
        "try: fill(Path(sys.argv[1]), range(2))\n"
        "except StageFailure as error: print(error)\n"
    )
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x"), tests], capture_output=True, text=True)
    assert "part-00000.parquet: could not be written: larger than a file may be here" in done.stdout, done.stderr
    assert fill(tmp_path / "x", range(2)).counts == {"written": 2}


def test_two_trainings_of_one_checkpoint_exclude_each_other(base, tmp_path: Path):
    with FolderLock(tmp_path / "c", tmp_path / "c.tmp"), pytest.raises(StageFailure, match="c: another process"):
        train(base, tmp_path / "c")
    train(base, tmp_path / "c")
    assert left(tmp_path) == WRITTEN


def test_a_file_system_without_locks_has_a_way_out(base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    scores = tmp_path / "s"
    monkeypatch.setattr(FolderLock, "release", lambda self: None)
    with pytest.raises(StageFailure, match="its file system has no locks") as error:
        fill(scores, range(1))
    assert "--no-lock" in error.value.hint
    fill(scores, range(1), lock=False)
    train(base, tmp_path / "c", Options(lock=False))
    assert (tmp_path / "c" / "config.json").exists()


def test_an_empty_batch_has_its_own_exit_code(base, tmp_path: Path):
    model, rollouts, _ = base
    empty = write(schema.BATCH, tmp_path / "batch", [])
    with pytest.raises(EmptyBatch, match="no rows to train on") as error:
        train_stage(rollouts, empty, model=str(model), out=tmp_path / "c", config=TrainConfig(), options=Options())
    assert error.value.exit_code == 5
    assert left(tmp_path) == ["batch", "batch.manifest.json"]


def rollouts_of(folder: Path, errors: list[str | None]) -> tuple[Path, Path]:
    tasks = write(schema.TASKS, folder / "tasks", [schema.frame(schema.TASKS, [task_row("a")])])
    rows = [
        {"rollout_id": f"a/0/{i}", "task_id": "a", "round": 0, "sample": i, "policy": "p", "backend": "b", "seed": i,
         "prompt_ids": [], "completion_ids": [], "logprobs": None, "finish_reason": None, "ids_from_text": False,
         "text": "x", "error": error}
        for i, error in enumerate(errors)
    ]  # fmt: skip
    return tasks, write(schema.ROLLOUTS, folder / "rollouts", [schema.frame(schema.ROLLOUTS, rows)])


@pytest.mark.parametrize(("errors", "code"), [(["e", "e"], 1), (["e", None], 0)])
def test_a_stage_in_which_nothing_succeeded_fails(tmp_path: Path, errors: list, code: int):
    tasks, rollouts = rollouts_of(tmp_path, errors)
    assert toolsample(["score", str(tasks), str(rollouts), "-o", str(tmp_path / "scores")]) == code


COMPONENTS = {
    "exits when called": ("import sys\ndef c(answer):\n    sys.exit(0)\n", 1),
    "exits when imported": ("import sys\nsys.exit(0)\n", 2),
    "prints": ("print('hello')\ndef c(answer):\n    print('{')\n    return 1.0\n", 0),
}


@pytest.mark.parametrize("case", COMPONENTS)
def test_a_component_that_exits_or_prints_does_no_harm(tmp_path: Path, case: str, capsys):
    text, code = COMPONENTS[case]
    (tmp_path / "mine.py").write_text(text)
    tasks, rollouts = rollouts_of(tmp_path, [None])
    command = ["score", str(tasks), str(rollouts), "--component", f"{tmp_path / 'mine.py'}:c", "--json"]
    assert toolsample([*command, "-o", str(tmp_path / "scores")]) == code
    out = capsys.readouterr().out
    assert json.loads(out)["rows_out"] == 1 if code == 0 else out == ""


@pytest.mark.parametrize("name", ["../../escape", "/tmp/escape", "..", ".", "a/b", "", "a\nb", "-x"])
def test_an_arm_is_no_path(name: str):
    with pytest.raises(ConfigError, match="not a name"):
        plans({"run": {"corpus": "c", "model": "m"}, "arms": {name: {}}}, {}, [], [])


def test_a_recipe_nested_3000_deep_is_one_line(tmp_path: Path):
    (tmp_path / "r.toml").write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(ConfigError, match=r"r.toml: nested too deeply"):
        read_recipe(tmp_path / "r.toml")


def test_one_endless_line_of_a_packed_file_is_refused_in_bounded_memory(tmp_path: Path):
    import gzip

    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb", compresslevel=9) as handle:
        handle.write(b'{"messages": "')
        for _ in range(300):
            handle.write(b"x" * (1 << 20))
    script = (
        "import resource, sys; from toolsample_cli.cli.app import run; code = run(sys.argv[1:])\n"
        "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    command = ["import", "bomb.jsonl.gz", "--format", "messages", "-o", "out"]
    done = subprocess.run([sys.executable, "-c", script, *command], cwd=tmp_path, capture_output=True, text=True)
    code, peak = map(int, done.stdout.split()[-2:])
    assert code == 3 and "bomb.jsonl.gz row 1: longer than 64 MiB" in done.stderr, done.stderr
    assert peak < 900


def test_every_group_flat_ends_filter_and_curriculum_with_code_5(tmp_path: Path, capsys):
    scores = write(schema.SCORES, tmp_path / "s", [score_frame({"a": [WRONG, WRONG], "b": [RIGHT, RIGHT]})])
    corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, [task_row(n) for n in "ab"])])
    assert toolsample(["filter", str(scores), "--method", "dapo", "-o", str(tmp_path / "g")]) == 0
    command = ["curriculum", str(corpus), "--groups", str(tmp_path / "g"), "--scores", str(scores)]
    assert toolsample([*command, "-o", str(tmp_path / "round")]) == 5
    assert "no group of round 0 was kept" in capsys.readouterr().err
    assert (tmp_path / "round" / "state.json").exists()
