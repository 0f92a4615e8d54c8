"""Writing shards: killed, resumed, changed, locked, out of space; and what stands on disk afterwards."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import polars as pl
import pytest
from support.shard_data import fill, rejects

from toolsample_cli.errors import ConfigError, DataError, StageFailure
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder, refuse_nested
from toolsample_cli.shards.slice import Slice
from toolsample_cli.shards.writing import Output

TESTS = Path(__file__).resolve().parents[1]


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_what_is_written_and_where(tmp_path):
    fill(tmp_path / "x", range(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "x.manifest.json"]
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["part-00000.parquet", "part-00001.parquet"]
    folder = open_folder(tmp_path / "x", schema.REJECTS)
    assert folder.config == {"knob": 1} and folder.counts == {"written": 2}
    assert all(shard.sha256 == digests(tmp_path / "x")[shard.path.name] for shard in folder.shards)


def test_same_input_same_bytes(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path / name, range(3))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert (tmp_path / "a.manifest.json").read_bytes() == (tmp_path / "b.manifest.json").read_bytes()


def test_resume_writes_only_what_is_missing(tmp_path):
    fill(tmp_path / "whole", range(4))
    fill(tmp_path / "x", range(2), finish=False)
    with pytest.raises(DataError, match="has not finished"):
        open_folder(tmp_path / "x", schema.REJECTS)
    assert fill(tmp_path / "x", range(4)).counts == {"written": 2}
    assert digests(tmp_path / "x") == digests(tmp_path / "whole")


def test_less_input_than_before_takes_extra_shards_away(tmp_path):
    fill(tmp_path / "x", range(4), finish=False)
    fill(tmp_path / "x", range(2))
    assert open_folder(tmp_path / "x", schema.REJECTS).rows == 6


@pytest.mark.parametrize(
    ("config", "inputs", "message"),
    [
        ({"knob": 2}, {"raw": "abc"}, "knob was 1, now 2"),
        ({"knob": 1, "new": True}, {"raw": "abc"}, "new was None, now True"),
        ({}, {"raw": "abc"}, "knob was 1, now None"),
        ({"knob": 1}, {"raw": "xyz"}, "input raw was 'abc', now 'xyz'"),
        ({"knob": 2}, {"raw": "xyz"}, "input raw was 'abc', now 'xyz'; knob was 1, now 2"),
        ({"knob": "y" * 500}, {"raw": "abc"}, r"now 'y{100,120}\.\.\."),
    ],
)
def test_changed_settings_are_refused_with_what_changed(tmp_path, config, inputs, message):
    fill(tmp_path / "x", range(2))
    before = digests(tmp_path / "x")
    with pytest.raises(ConfigError, match=message), Output(tmp_path / "x", schema.REJECTS, config, inputs):
        pass
    assert digests(tmp_path / "x") == before and open_folder(tmp_path / "x", schema.REJECTS).rows == 6
    with Output(tmp_path / "x", schema.REJECTS, config, inputs, overwrite=True) as output:
        assert not output.done(0)


def test_settings_that_may_change_leave_a_shard_undone_but_there(tmp_path):
    fill(tmp_path / "x", range(2))
    config = {"knob": 8}
    with Output(tmp_path / "x", schema.REJECTS, config, {"raw": "abc"}, may_change=frozenset({"knob"})) as output:
        assert not output.done(0) and output.existing(0).equals(rejects(0)) and output.existing(7) is None
        output.write(0, rejects(0, rows=5))
        assert output.done(0)
    with pytest.raises(DataError, match="not finished"):  # the old manifest is gone as soon as a shard has changed
        open_folder(tmp_path / "x", schema.REJECTS)


def test_a_slice_of_another_setting_is_refused(tmp_path):
    fill(tmp_path / "x", range(4), slice=Slice(0, 2))
    with pytest.raises(ConfigError, match="knob was 1, now 2"):
        fill(tmp_path / "x", range(4), {"knob": 2}, slice=Slice(1, 2))


def test_whole_and_slices_replace_each_others_manifests(tmp_path):
    fill(tmp_path / "x", range(4))
    fill(tmp_path / "x", range(4), {"knob": 2}, slice=Slice(0, 2), overwrite=True)
    assert not (tmp_path / "x.manifest.json").exists()
    with pytest.raises(ConfigError, match="knob was 1, now 2"):
        fill(tmp_path / "x", range(4), {"knob": 2}, slice=Slice(1, 2))
    fill(tmp_path / "x", range(4), {"knob": 2}, slice=Slice(1, 2), overwrite=True)
    assert open_folder(tmp_path / "x", schema.REJECTS).config == {"knob": 2}
    fill(tmp_path / "x", range(4), {"knob": 3}, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "x.manifest.json"]


def test_a_slice_of_another_cut_is_refused_and_harms_nothing(tmp_path):
    """A finished folder stays finished; the manifest of slices of another count is not mixed with."""
    fill(tmp_path / "x", range(4))
    before = (tmp_path / "x.manifest.json").read_bytes()
    with pytest.raises(ConfigError, match="was made as a whole, now --slice 1/2"):
        fill(tmp_path / "x", range(4), slice=Slice(1, 2))
    assert (tmp_path / "x.manifest.json").read_bytes() == before and open_folder(tmp_path / "x", schema.REJECTS).rows
    fill(tmp_path / "x", range(4), slice=Slice(1, 2, joined=True))
    fill(tmp_path / "y", range(4), slice=Slice(0, 4))
    with pytest.raises(ConfigError, match="was made in slices of 4, now --slice 1/3"):
        fill(tmp_path / "y", range(4), slice=Slice(1, 3))
    for index in range(3):
        fill(tmp_path / "y", range(4), slice=Slice(index, 3), overwrite=True)
    assert open_folder(tmp_path / "y", schema.REJECTS).rows == 12
    fill(tmp_path / "y", range(4))
    assert sorted(p.name for p in tmp_path.glob("y*")) == ["y", "y.manifest.json"]


def test_no_folder_inside_a_folder_of_shards(tmp_path):
    fill(tmp_path / "in[1]", range(2))
    with pytest.raises(ConfigError, match="a folder of shards"):
        fill(tmp_path / "in[1]" / "deep" / "out", range(1))
    assert open_folder(tmp_path / "in[1]", schema.REJECTS).rows == 6
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "foreign.parquet")
    refuse_nested(tmp_path / "out", tmp_path / "in[1]", tmp_path / "foreign.parquet", None)
    with pytest.raises(ConfigError, match="inside its own input"):
        refuse_nested(tmp_path / "raw" / "out", (tmp_path / "raw").mkdir() or tmp_path / "raw")
    with pytest.raises(ConfigError, match="lies in it"):
        refuse_nested(tmp_path, tmp_path / "foreign.parquet")


def test_overwrite_never_deletes_another_kind(tmp_path):
    fill(tmp_path / "input", range(2))
    before = digests(tmp_path / "input")
    for overwrite in (False, True):
        with (
            pytest.raises(DataError, match="holds rejects, this stage writes tasks"),
            Output(tmp_path / "input", schema.TASKS, {}, overwrite=overwrite),
        ):
            pass
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "input" / "part-00007.parquet")
    with (
        pytest.raises(DataError, match="holds foreign data"),
        Output(tmp_path / "input", schema.REJECTS, {}, overwrite=True),
    ):
        pass
    assert before.items() <= digests(tmp_path / "input").items()
    assert (tmp_path / "input.manifest.json").exists()


def test_a_torn_shard_is_named_and_overwrite_mends_it(tmp_path):
    fill(tmp_path / "x", range(2))
    (tmp_path / "x" / "part-00001.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"part-00001.parquet: damaged: 0 bytes"):
        fill(tmp_path / "x", range(2))
    fill(tmp_path / "x", range(2), overwrite=True)
    assert open_folder(tmp_path / "x", schema.REJECTS).rows == 6


def test_leftovers_of_a_killed_writer_go(tmp_path):
    beside = tmp_path / "x.tmp"
    beside.mkdir()
    (beside / "part-00003.parquet").write_bytes(b"half")
    (beside / "lock").write_text("")
    fill(tmp_path / "x", range(2))
    assert not beside.exists()


def test_bad_rows_are_refused_before_anything_is_written(tmp_path):
    with (
        pytest.raises(DataError, match=r"part-00000.parquet row 2 \(file f\): column reason"),
        Output(tmp_path / "x", schema.REJECTS, {}) as output,
    ):
        bad = [{"file": "f", "row": 1, "reason": r, "detail": "", "raw_json": ""} for r in ("a", None)]
        output.write(0, schema.frame(schema.REJECTS, bad))
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_a_file(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="exists and is not a folder"), Output(tmp_path / "x", schema.REJECTS, {}):
        pass


def test_the_folder_one_stands_in(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fill(Path("."), range(1))
    assert (tmp_path / "here.manifest.json").exists()
    assert open_folder(tmp_path / "here", schema.REJECTS).rows == 3


@pytest.mark.parametrize("where", ["write_parquet", "fsync", "replace"])
def test_no_space_left(tmp_path, monkeypatch, where):
    fill(tmp_path / "x", range(1), finish=False)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = {"write_parquet": pl.DataFrame, "fsync": os, "replace": Path}[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, where, full)
        with pytest.raises(StageFailure, match=r"part-00001.parquet: could not be written: the disk is full") as error:
            fill(tmp_path / "x", range(2))
    assert "rerun" in error.value.hint and error.value.exit_code == 1
    assert list((tmp_path / "x").iterdir()) == [tmp_path / "x" / "part-00000.parquet"] and [
        file.name for file in (tmp_path / "x.tmp").iterdir()
    ] == ["written.jsonl"]
    assert fill(tmp_path / "x", range(2)).counts == {"written": 1}


def test_no_space_left_for_the_manifest(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("toolsample_cli.shards.manifest.write_sealed", full)
        with pytest.raises(StageFailure, match=r"x.manifest.json: could not be written: the disk is full"):
            fill(tmp_path / "x", range(1))
    fill(tmp_path / "x", range(1))
    assert open_folder(tmp_path / "x", schema.REJECTS).rows == 3


def test_a_place_that_cannot_be_written():
    with pytest.raises(StageFailure, match="/proc/x: cannot be written"), Output(Path("/proc/x"), schema.REJECTS, {}):
        pass


def test_one_writer_at_a_time(tmp_path):
    with Output(tmp_path / "x", schema.REJECTS, {}):
        for part in (Slice(), Slice(0, 2)):
            with (
                pytest.raises(StageFailure, match="another process is writing it"),
                Output(tmp_path / "x", schema.REJECTS, {}, slice=part),
            ):
                pass
    with (
        Output(tmp_path / "x", schema.REJECTS, {}, slice=Slice(0, 2)),
        Output(tmp_path / "x", schema.REJECTS, {}, slice=Slice(1, 2)) as second,
    ):
        second.write(1, rejects(1))
        for part in (Slice(), Slice(1, 2)):
            with pytest.raises(StageFailure), Output(tmp_path / "x", schema.REJECTS, {}, slice=part):
                pass
    assert [file.name for file in (tmp_path / "x.tmp").iterdir()] == ["written-1-of-2.jsonl"]  # it has not finished
    fill(tmp_path / "x", range(2), {"n": 1}, overwrite=True)
    assert not (tmp_path / "x.tmp").exists()


def test_the_lock_is_no_longer_held_after_sigkill(tmp_path):
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from support.shard_data import rejects
        from toolsample_cli.shards import schema
        from toolsample_cli.shards.writing import Output
        with Output(Path(sys.argv[1]), schema.REJECTS, {"knob": 1}, {"raw": "abc"}) as output:
            output.write(0, rejects(0))
            print("written", flush=True)
            time.sleep(60)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "x"), str(TESTS)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "written\n"
    with pytest.raises(StageFailure, match="another process"):
        fill(tmp_path / "x", range(2))
    process.kill()
    process.wait()
    assert fill(tmp_path / "x", range(2)).counts == {"written": 1}


def test_many_processes_take_the_lock_in_turn(tmp_path):
    """Taking and giving back, with the lock's folder coming and going, never lets two in at once."""
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from toolsample_cli.errors import StageFailure
        from toolsample_cli.shards.locks import FolderLock
        from toolsample_cli.shards.slice import Slice
        folder, flag, wins = Path(sys.argv[1]), Path(sys.argv[1]) / "flag", 0
        while wins < 25:
            lock = FolderLock(folder / "x", folder / "x.tmp", Slice())
            try:
                lock.take()
            except StageFailure:
                continue
            with flag.open("x"):
                wins += 1
            flag.unlink()
            lock.release()
        """
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    deadline = time.monotonic() + 60
    assert [process.wait(timeout=max(1, deadline - time.monotonic())) for process in running] == [0, 0, 0]


TEXTS = [
    "plain",
    "line\nbreak\r\n",
    "nul\0inside",
    "tab\t",
    "emoji 🦩 ünï",
    "\u2028",
    "x" * 1_000_000,
    "",
    "'\"\\",
    "\x1b[2J",
]


def test_any_text_survives(tmp_path):
    rows = [{"file": "f", "row": i + 1, "reason": "r", "detail": t, "raw_json": t} for i, t in enumerate(TEXTS)]
    with Output(tmp_path / "x", schema.REJECTS, {"note": "\0 ü"}, {}) as output:
        output.write(0, schema.frame(schema.REJECTS, rows))
        output.finish()
    folder = open_folder(tmp_path / "x", schema.REJECTS)
    assert folder.load()["detail"].to_list() == TEXTS and folder.config == {"note": "\0 ü"}
