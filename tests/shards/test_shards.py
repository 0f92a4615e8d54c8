"""Reading shards: the order, the names, and a clear refusal of whatever is missing, torn or foreign."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
from support.shard_data import fill, rejects

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.manifest import Manifest
from toolsample_cli.shards.reading import FOOTER_KEY, numbered, open_folder, read_footer, read_frame
from toolsample_cli.shards.sealed import write_atomically
from toolsample_cli.shards.slice import Slice

ODD_NAMES = [
    "plain",
    "run[1]",
    "a=1",
    "with space",
    "what?",
    "star*",
    "täsk",
    "x.parquet",
    "-dash",
    "{b}",
    "%20",
    "a#b",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_round_trip_under_odd_names(tmp_path, name):
    fill(tmp_path / name, range(2))
    folder = open_folder(tmp_path / name, schema.REJECTS)
    assert folder.rows == 6 and folder.load().equals(pl.concat([rejects(0), rejects(1)]))
    again = fill(tmp_path / name, range(2))
    assert not again.counts, "a rerun has nothing to write"
    fill(tmp_path / name, range(1), overwrite=True)
    assert open_folder(tmp_path / name, schema.REJECTS).rows == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, f"{name}.manifest.json"])


def test_neighbours_with_similar_names_do_not_disturb_each_other(tmp_path):
    for name in ("run", "run[1]", "run1", "run.manifest", "run.tmp2"):
        fill(tmp_path / name, range(1))
    fill(tmp_path / "run[1]", range(1), overwrite=True)
    for name in ("run", "run[1]", "run1", "run.manifest", "run.tmp2"):
        assert open_folder(tmp_path / name, schema.REJECTS).rows == 3


def test_order_is_numerical(tmp_path):
    numbers = [0, 1, 2, 9, 10, 11, 100, 99_999, 100_000]
    fill(tmp_path / "x", numbers)
    folder = open_folder(tmp_path / "x", schema.REJECTS)
    assert [shard.number for shard in folder.shards] == numbers
    assert folder.load()["file"].unique(maintain_order=True).to_list() == [f"f{n}" for n in numbers]
    manifest = json.loads((tmp_path / "x.manifest.json").read_text())
    assert [entry["name"] for entry in manifest["shards"]] == [shard.path.name for shard in folder.shards]


def test_names_of_other_programs_are_ordered_too(tmp_path):
    (tmp_path / "x").mkdir()
    for number in (10, 2, 0):
        rejects(number).write_parquet(tmp_path / "x" / f"train-{number}-of-00011.parquet")
    assert [number for number, _ in numbered(tmp_path / "x")] == [0, 2, 10]
    assert open_folder(tmp_path / "x", schema.REJECTS).rows == 9
    rejects(2).write_parquet(tmp_path / "x" / "train-02.parquet")
    with pytest.raises(DataError, match="same number"):
        open_folder(tmp_path / "x", schema.REJECTS)


def test_a_single_file_is_a_folder_of_one(tmp_path):
    fill(tmp_path / "x", range(3))
    folder = open_folder(tmp_path / "x" / "part-00001.parquet", schema.REJECTS)
    assert folder.load().equals(rejects(1)) and len(folder.shards) == 1


def damaged(tmp_path: Path, how) -> None:
    fill(tmp_path / "x", range(2))
    how(tmp_path / "x", tmp_path / "x" / "part-00001.parquet")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda folder, file: file.write_bytes(b""), r"part-00001.parquet: 0 bytes, the shard was lost"),
        (lambda folder, file: file.write_bytes(file.read_bytes()[:-9]), r"part-00001.parquet: damaged: \d+ bytes, its"),
        (lambda folder, file: file.write_bytes(b"PAR1" * 9), r"part-00001.parquet: damaged: 36 bytes, its manifest"),
        (lambda folder, file: file.unlink(), r"part-00001.parquet: missing, though the manifest"),
        (
            lambda folder, file: rejects(7, rows=9).write_parquet(file),
            r"part-00001.parquet: damaged: \d+ bytes",
        ),
        (lambda folder, file: (folder / "notes.txt").write_text("x"), r"notes.txt: does not belong"),
        (lambda folder, file: (folder / "sub").mkdir(), r"sub: does not belong"),
        (lambda folder, file: rejects(5).write_parquet(folder / "part-00005.parquet"), r"00005.parquet: not named in"),
        (
            lambda folder, file: (folder.parent / "x.manifest.json").write_text("{"),
            r"json: damaged: not valid JSON",
        ),
        (
            lambda folder, file: (folder.parent / "x.manifest.json").write_text("[]"),
            r"json: damaged: list instead",
        ),
        (lambda folder, file: (folder.parent / "x.manifest.json").unlink(), r"x: its stage has not finished"),
    ],
)
def test_damage_is_named(tmp_path, how, message):
    damaged(tmp_path, how)
    with pytest.raises(DataError, match=message) as error:
        open_folder(tmp_path / "x", schema.REJECTS)
    assert error.value.exit_code == 3


def test_hidden_files_are_no_shards(tmp_path):
    fill(tmp_path / "x", range(2))
    for name in (".DS_Store", "_SUCCESS", ".part-00009.parquet.tmp"):
        (tmp_path / "x" / name).write_text("")
    assert open_folder(tmp_path / "x", schema.REJECTS).rows == 6


def test_other_kinds_and_strangers(tmp_path):
    fill(tmp_path / "x", range(1))
    with pytest.raises(DataError, match="a folder of rejects shards, expected tasks"):
        open_folder(tmp_path / "x", schema.TASKS)
    with pytest.raises(DataError, match="holds rejects, expected tasks"):
        open_folder(tmp_path / "x" / "part-00000.parquet", schema.TASKS)
    with pytest.raises(DataError, match="no such file or folder"):
        open_folder(tmp_path / "nothing", schema.TASKS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no shards in it"):
        open_folder(tmp_path / "empty", schema.TASKS)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"missing column.*file.*unknown column.*a"):
        open_folder(tmp_path / "a.parquet", schema.REJECTS).load()
    with pytest.raises(DataError, match="no column"):
        open_folder(tmp_path / "a.parquet", schema.REJECTS).load(["reason"])


def test_newer_schema_and_odd_footers(tmp_path):
    newer = json.dumps({"kind": "rejects", "schema_version": schema.VERSION + 1})
    for name, text, message in (("n", newer, "newer toolsample"), ("j", "{", "not JSON"), ("l", "[]", "not JSON")):
        rejects(0).write_parquet(tmp_path / f"{name}.parquet", metadata={FOOTER_KEY: text})
        with pytest.raises(DataError, match=message):
            read_frame(tmp_path / f"{name}.parquet", schema.REJECTS)
    rejects(0).write_parquet(tmp_path / "o.parquet")
    assert read_footer(tmp_path / "o.parquet") == {} and read_frame(tmp_path / "o.parquet", schema.REJECTS).height == 3


def test_columns_are_read_alone(tmp_path):
    fill(tmp_path / "x", range(2))
    folder = open_folder(tmp_path / "x", schema.REJECTS)
    assert folder.load(["row", "file"]).columns == ["file", "row"]
    assert [frame.width for _, frame in folder.frames(["row"])] == [1, 1]


def test_slices(tmp_path):
    assert [n for n in range(7) if Slice.parse("1/3").owns(n)] == [1, 4]
    for text in ("3/3", "-1/3", "1", "a/b", "1/0", "", "1/3/5"):
        with pytest.raises(ConfigError, match="expected i/n"):
            Slice.parse(text)
    parts = [Slice(0, 3), Slice(1, 3), Slice(2, 3)]
    fill(tmp_path / "whole", range(5))
    for done, part in enumerate(parts):
        if done:
            with pytest.raises(DataError, match=f"only {done} of 3 slices"):
                open_folder(tmp_path / "x", schema.REJECTS)
        fill(tmp_path / "x", range(5), slice=part)
    whole, sliced = (open_folder(tmp_path / name, schema.REJECTS) for name in ("whole", "x"))
    assert sliced.digest == whole.digest and sliced.counts == whole.counts == {"written": 5}
    assert sliced.load().equals(whole.load())
    read = [shard.number for part in parts for shard, _ in sliced.frames(slice=part)]
    assert sorted(read) == list(range(5)) and read != sorted(read)


def test_slices_of_different_runs_are_refused(tmp_path):
    for part in (Slice(0, 2), Slice(1, 2)):
        fill(tmp_path / "x", range(4), slice=part)
    (tmp_path / "x.manifest-0-of-2.json").rename(tmp_path / "x.manifest-0-of-3.json")
    with pytest.raises(DataError, match="slices of 2 and of 3"):
        open_folder(tmp_path / "x", schema.REJECTS)
    (tmp_path / "x.manifest-0-of-3.json").rename(tmp_path / "x.manifest-0-of-2.json")
    manifest = Manifest.read(tmp_path / "x.manifest-0-of-2.json")
    dataclasses.replace(manifest, config={"knob": 2}).write(tmp_path / "x.manifest-0-of-2.json")
    with pytest.raises(DataError, match="different config"):
        open_folder(tmp_path / "x", schema.REJECTS)


def test_empty_output_is_readable(tmp_path):
    fill(tmp_path / "x", [])
    folder = open_folder(tmp_path / "x", schema.REJECTS)
    assert folder.rows == 0 and folder.load().schema == schema.REJECTS.schema and folder.load(["row"]).width == 1


def test_small_files_are_replaced_in_one_step(tmp_path):
    write_atomically(tmp_path / "deep" / "state.json", b"1")
    write_atomically(tmp_path / "deep" / "state.json", b"2")
    assert (tmp_path / "deep" / "state.json").read_bytes() == b"2"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["state.json"]
