"""What lies on disk is compared with what was written: no bit, row, digest or setting changes unnoticed."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from pathlib import Path

import polars as pl
import pytest
from support.curation_data import RIGHT, WRONG, score_frame, task_row, write
from support.shard_data import fill, rejects

from toolsample_cli.cli.app import run as toolsample
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.shards import schema
from toolsample_cli.shards.journal import Journal
from toolsample_cli.shards.manifest import Manifest
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.sealed import read_sealed, write_sealed
from toolsample_cli.shards.writing import Output


def flip(file: Path, bit: int) -> None:
    """Turn one bit over; the time of change stays, as it does when a disk forgets."""
    data, times = bytearray(file.read_bytes()), file.stat()
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    fill(tmp_path / "x", range(3))
    return tmp_path / "x"


def test_every_flipped_bit_of_a_shard_is_refused_by_name(shards: Path, tmp_path: Path):
    """Also when only columns are read that the bit does not touch."""
    pick = random.Random(0)
    for trial in range(60):
        shutil.copytree(shards, tmp_path / f"t{trial}")
        shutil.copy(tmp_path / "x.manifest.json", tmp_path / f"t{trial}.manifest.json")
        file = tmp_path / f"t{trial}" / "part-00001.parquet"
        flip(file, pick.randrange(8 * file.stat().st_size))
        with pytest.raises(DataError, match=r"part-00001.parquet: damaged"):
            open_folder(tmp_path / f"t{trial}", schema.REJECTS).load(["row"])


def test_a_single_shard_is_compared_with_its_folders_manifest(shards: Path):
    flip(shards / "part-00001.parquet", 4321)
    with pytest.raises(DataError, match="damaged"):
        open_folder(shards / "part-00001.parquet", schema.REJECTS).load()


def test_swapped_shards_zeroed_digests_and_other_row_counts_are_refused(shards: Path):
    one, other = shards / "part-00000.parquet", shards / "part-00001.parquet"
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second), other.write_bytes(first)
    with pytest.raises(DataError, match=r"part-00000.parquet: damaged: its bytes differ"):
        open_folder(shards, schema.REJECTS).load()
    one.write_bytes(first), other.write_bytes(second)
    file = shards.parent / "x.manifest.json"
    manifest = json.loads(file.read_text())
    for change in ({"sha256": "0" * 64}, {"xxh3": "0" * 32}, {"rows": 2}):
        edited = {**manifest, "shards": [{**manifest["shards"][0], **change}, *manifest["shards"][1:]]}
        file.write_text(json.dumps(edited))
        with pytest.raises(DataError, match="json: damaged: its content does not match its digest"):
            open_folder(shards, schema.REJECTS)
    file.write_text(json.dumps(manifest))
    assert open_folder(shards, schema.REJECTS).load().height == 9
    wrong = Manifest.read(file)
    dataclasses.replace(wrong, shards=(dataclasses.replace(wrong.shards[0], rows=2), *wrong.shards[1:])).write(file)
    with pytest.raises(DataError, match=r"part-00000.parquet: damaged: 3 rows, expected 2"):
        open_folder(shards, schema.REJECTS).load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"complete": False}, "has not finished"),
        ({"schema_version": schema.VERSION + 1}, "written by a newer toolsample"),
        ({"counts": []}, "damaged: counts is list"),
        ({"rows": "9"}, "damaged: rows is str"),
        ({"rows": True}, "damaged: rows is bool"),
        ({"rows": 8}, "do not add up to 8 rows"),
        ({"kind": None}, "damaged: kind is NoneType"),
        ({"shards": [1]}, "damaged: not a manifest"),
        ({"shards": [{"name": "part-00000.parquet"}]}, "damaged: not a manifest"),
        ({"more": 1}, "damaged: not a manifest"),
    ],
)
def test_a_manifest_that_says_something_odd_is_refused_in_one_line(shards: Path, change: dict, message: str):
    """Sealed anew, so that only its meaning is wrong."""
    file = shards.parent / "x.manifest.json"
    write_sealed(file, {**read_sealed(file, hint=""), **change})
    with pytest.raises(DataError, match=message) as error:
        open_folder(shards, schema.REJECTS)
    assert error.value.hint and error.value.exit_code == 3


def test_a_manifest_of_an_older_version_is_read_and_its_sha256_compared(shards: Path):
    file = shards.parent / "x.manifest.json"
    old = read_sealed(file, hint="")
    old["shards"] = [{k: v for k, v in shard.items() if k != "xxh3"} for shard in old["shards"]]
    file.write_text(json.dumps(old))
    assert open_folder(shards, schema.REJECTS).load().height == 9
    flip(shards / "part-00002.parquet", 999)
    with pytest.raises(DataError, match=r"part-00002.parquet: damaged"):
        open_folder(shards, schema.REJECTS).load()


def test_a_rerun_names_damage_and_makes_that_shard_alone_anew(shards: Path):
    """It never takes a new digest of what is there, which would bless the damage."""
    whole = {file.name: file.read_bytes() for file in shards.iterdir()}
    manifest = (shards.parent / "x.manifest.json").read_bytes()
    flip(shards / "part-00001.parquet", 4000)
    with pytest.raises(DataError, match=r"part-00001.parquet: damaged") as error:
        fill(shards, range(3))
    assert "delete that file and rerun" in error.value.hint
    assert (shards.parent / "x.manifest.json").read_bytes() == manifest
    (shards / "part-00001.parquet").unlink()
    assert fill(shards, range(3)).counts == {"written": 1}
    assert {file.name: file.read_bytes() for file in shards.iterdir()} == whole
    assert not (shards.parent / "x.tmp").exists()


def test_damage_to_an_unfinished_output_is_named_too(tmp_path: Path):
    """A killed run leaves the digests of its shards in a journal."""
    fill(tmp_path / "x", range(2), finish=False)
    flip(tmp_path / "x" / "part-00000.parquet", 4000)
    with pytest.raises(DataError, match=r"part-00000.parquet: damaged"):
        fill(tmp_path / "x", range(3))
    (tmp_path / "x" / "part-00000.parquet").unlink()
    fill(tmp_path / "x", range(3))
    assert open_folder(tmp_path / "x", schema.REJECTS).load().height == 9


def test_topping_up_keeps_the_digests_of_the_shards_that_stay(shards: Path):
    """The manifest goes before the first shard changes; a kill right then loses no digest."""
    free = frozenset({"knob"})
    with Output(shards, schema.REJECTS, {"knob": 2}, {"raw": "abc"}, may_change=free) as output:
        output.write(0, rejects(0, rows=5))  # and the process dies before shard 1 is reached
    assert not (shards.parent / "x.manifest.json").exists()
    flip(shards / "part-00001.parquet", 4000)
    with (
        pytest.raises(DataError, match=r"part-00001.parquet: damaged"),
        Output(shards, schema.REJECTS, {"knob": 2}, {"raw": "abc"}, may_change=free),
    ):
        pass


def test_a_journal_leaves_out_what_is_torn_or_damaged(tmp_path: Path):
    path = tmp_path / "j"
    with Journal(path, {"a": 1}) as journal:
        for number in range(5):
            journal.add({"id": f"r{number}", "value": number})
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert len(Journal(path, {"a": 1}).records) == max(0, whole[:cut].count(b"\n") - 1)
    first = whole.index(b"\n")
    for at in range(len(whole)):
        path.write_bytes(whole)
        flip(path, 8 * at + at % 8)
        if at <= first:
            with pytest.raises(DataError, match="its first line is damaged"):
                Journal(path, {"a": 1})
        else:
            found = Journal(path, {"a": 1}).records
            assert 3 <= len(found) <= 4 and all(record["value"] == int(key[1:]) for key, record in found.items())
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match="a was 1, now 2"):
        Journal(path, {"a": 2})


def test_rows_that_lie_apart_are_read_and_doubled_or_infinite_ones_refused(tmp_path: Path, capsys):
    """By filter, curriculum and score, whoever wrote the shards."""
    frame = score_frame({"a": [RIGHT, WRONG], "b": [WRONG, RIGHT]})
    sound = write(schema.SCORES, tmp_path / "sound", [frame])
    apart = write(schema.SCORES, tmp_path / "apart", [frame[[0, 2, 1, 3]]])
    corpus = write(schema.TASKS, tmp_path / "corpus", [schema.frame(schema.TASKS, [task_row(n) for n in "ab"])])
    for scores in (sound, apart):
        assert toolsample(["filter", str(scores), "-o", str(tmp_path / f"{scores.name}-groups")]) == 0
    groups = [open_folder(tmp_path / f"{name}-groups", schema.GROUPS).load() for name in ("sound", "apart")]
    assert groups[0].equals(groups[1])
    doubled = write(schema.SCORES, tmp_path / "doubled", [pl.concat([frame, frame[1:2]])])
    twice = write(schema.SCORES, tmp_path / "twice", [frame, frame[:2]])
    start = ["curriculum", str(corpus), "--groups", str(tmp_path / "sound-groups")]
    capsys.readouterr()
    for scores, words in ((doubled, "occurs more than once"), (twice, "occurs in more than one shard")):
        assert toolsample(["filter", str(scores), "-o", str(tmp_path / "out")]) == 3
        assert words in capsys.readouterr().err
        assert toolsample([*start, "--scores", str(scores), "-o", str(tmp_path / "round")]) == 3
        assert words in capsys.readouterr().err
        assert not (tmp_path / "round").exists()
    infinite = frame.with_columns(reward=pl.lit(float("inf")))
    with pytest.raises(DataError, match="expected a finite number"):
        write(schema.SCORES, tmp_path / "infinite", [infinite])
    infinite.write_parquet(tmp_path / "infinite.parquet")
    assert toolsample(["filter", str(tmp_path / "infinite.parquet"), "-o", str(tmp_path / "infinite-groups")]) == 3
    assert "reward = inf, expected a finite number" in capsys.readouterr().err
