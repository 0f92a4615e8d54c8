"""The filter stage: rounds merge, slices join, and what cannot be right is refused with the place where it is."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from support.curation_data import HALF, RIGHT, WRONG, score_frame, write

from toolsample_cli.config import FilterConfig
from toolsample_cli.errors import DataError
from toolsample_cli.filter.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.slice import Slice
from toolsample_cli.stage import Options

NOW = FilterConfig()


def scores(folder: Path, *shards: dict, round: int = 0) -> Path:
    return write(schema.SCORES, folder, [score_frame(tasks, round=round) for tasks in shards])


def load(folder: Path) -> dict[str, dict]:
    return {row["slot_id"]: row for row in open_folder(folder, schema.GROUPS).load().iter_rows(named=True)}


def test_groups_of_a_round_and_the_account(tmp_path):
    """One row a task in the scores' own shards; drops are counted by reason."""
    source = scores(tmp_path / "scores", {"a": [RIGHT] * 4, "b": [RIGHT, WRONG]}, {"c": [None, None], "d": [HALF]})
    account = run(source, None, tmp_path / "groups", NOW, Options())
    folder = open_folder(tmp_path / "groups", schema.GROUPS)
    assert [shard.rows for shard in folder.shards] == [2, 2]
    assert (account.rows_in, account.rows_out, account.dropped) == (9, 4, {"errored": 1, "flat": 1, "single": 1})
    assert folder.counts["dropped flat"] == 1 and folder.counts["kept learnable"] == 1
    assert load(tmp_path / "groups")["b"]["reward_var"] == 12.25


def test_a_task_not_visited_keeps_its_statistics_and_age(tmp_path):
    """The history's rows travel on; a revisited task is counted and its old statistics replaced."""
    first = scores(tmp_path / "s0", {"a": [WRONG] * 4, "b": [RIGHT, WRONG]})
    run(first, None, tmp_path / "g0", NOW, Options())
    second = scores(tmp_path / "s1", {"a": [WRONG] * 4, "c": [RIGHT] * 4}, round=1)
    account = run(second, tmp_path / "g0", tmp_path / "g1", NOW, Options())
    groups = load(tmp_path / "g1")
    assert account.extra["carried"] == 1 and sorted(groups) == ["a", "b", "c"]
    assert groups["b"]["last_round"] == 0 and groups["b"]["reason"] == "absent" and not groups["b"]["keep"]
    assert groups["b"]["importance"] == load(tmp_path / "g0")["b"]["importance"]
    assert (groups["a"]["visits"], groups["a"]["misses"], groups["a"]["flat_visits"]) == (2, 8, 2)


def test_slices_merge_to_the_unsliced_whole(tmp_path):
    """`--slice 0/3, 1/3, 2/3` in any order write the same bytes as one run, history and counts included."""
    first = scores(tmp_path / "s0", {f"t{i}": [WRONG, RIGHT] for i in range(9)})
    run(first, None, tmp_path / "g0", NOW, Options())
    second = scores(tmp_path / "s1", *({f"t{i}": [RIGHT, WRONG], f"u{i}": [RIGHT] * 2} for i in range(4)), round=1)
    run(second, tmp_path / "g0", tmp_path / "whole", NOW, Options())
    for index in (2, 0, 1):
        run(second, tmp_path / "g0", tmp_path / "parts", NOW, Options(slice=Slice(index, 3)))
    whole, parts = (open_folder(tmp_path / name, schema.GROUPS) for name in ("whole", "parts"))
    assert whole.digest == parts.digest and whole.counts == parts.counts
    assert whole.load().equals(parts.load())


def test_rerun_changes_nothing_and_another_setting_is_refused(tmp_path):
    """Resuming rewrites no shard; other settings on the same folder name the key that differs."""
    source = scores(tmp_path / "scores", {"a": [RIGHT, WRONG]})
    run(source, None, tmp_path / "groups", NOW, Options())
    before = (tmp_path / "groups" / "part-00000.parquet").stat().st_mtime_ns
    run(source, None, tmp_path / "groups", NOW, Options())
    assert (tmp_path / "groups" / "part-00000.parquet").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="method was 'rds', now 'dapo'"):
        run(source, None, tmp_path / "groups", FilterConfig(method="dapo"), Options())


def test_ids_and_limit_choose_groups(tmp_path):
    """`--ids` names tasks, `--limit` takes the first of each shard."""
    source = scores(tmp_path / "scores", {"a": [RIGHT, WRONG], "b": [RIGHT, WRONG], "c": [RIGHT, WRONG]})
    (tmp_path / "ids.txt").write_text("b\nc\n")
    run(source, None, tmp_path / "g", NOW, Options(ids=tmp_path / "ids.txt", limit=1))
    assert list(load(tmp_path / "g")) == ["b"]


def test_dry_run_writes_nothing(tmp_path):
    """It says how many shards would be written."""
    source = scores(tmp_path / "scores", {"a": [RIGHT, WRONG]})
    account = run(source, None, tmp_path / "groups", NOW, Options(dry_run=True))
    assert "1 shards" in account.extra["would write"] and not (tmp_path / "groups").exists()


class TestBadInput:
    def test_scores_of_two_rounds(self, tmp_path):
        frame = pl.concat([score_frame({"a": [RIGHT]}), score_frame({"b": [RIGHT]}, round=1)])
        source = write(schema.SCORES, tmp_path / "scores", [frame])
        with pytest.raises(DataError, match=r"\(task b\): scores of round 1 beside round 0"):
            run(source, None, tmp_path / "g", NOW, Options())

    def test_history_of_the_same_round(self, tmp_path):
        source = scores(tmp_path / "s", {"a": [RIGHT, WRONG]})
        run(source, None, tmp_path / "g", NOW, Options())
        with pytest.raises(DataError, match="already holds its round 0"):
            run(source, tmp_path / "g", tmp_path / "g2", NOW, Options())

    def test_history_of_a_later_round(self, tmp_path):
        run(scores(tmp_path / "s5", {"a": [RIGHT]}, round=5), None, tmp_path / "g", NOW, Options())
        with pytest.raises(DataError, match="visited in round 5, but the scores are of round 2"):
            run(scores(tmp_path / "s2", {"b": [RIGHT]}, round=2), tmp_path / "g", tmp_path / "g2", NOW, Options())

    def test_two_forms_of_one_task(self, tmp_path):
        source = scores(tmp_path / "s", {"a": [RIGHT], "a@2shot": [RIGHT]})
        with pytest.raises(DataError, match="task a: two forms in one round: a, a@2shot"):
            run(source, None, tmp_path / "g", NOW, Options())

    def test_a_task_split_over_two_shards(self, tmp_path):
        run(scores(tmp_path / "s0", {"z": [RIGHT]}), None, tmp_path / "g", NOW, Options())
        source = scores(tmp_path / "s", {"a": [RIGHT]}, {"a": [WRONG]}, round=1)
        with pytest.raises(DataError, match="task a occurs in more than one shard"):
            run(source, tmp_path / "g", tmp_path / "g2", NOW, Options())

    def test_history_of_another_kind(self, tmp_path):
        source = scores(tmp_path / "s", {"a": [RIGHT]})
        with pytest.raises(DataError, match="a folder of scores shards, expected groups"):
            run(source, source, tmp_path / "g", NOW, Options())


def test_the_account_says_what_the_data_is_worth(tmp_path):
    """A verdict per task, counted, and pass@k of the split; what the next round needs lies in the manifest."""
    tasks = {"good": [RIGHT] * 4, "dead": [WRONG] * 4, "mixed": [RIGHT, WRONG, WRONG, WRONG], "single": [RIGHT]}
    account = run(scores(tmp_path / "s", tasks), None, tmp_path / "g", FilterConfig(), Options())
    line = account.line()
    assert "out 4, not kept: flat 2, single 1" in line and "kept 1" in line and "dropped" not in line
    assert account.extra["verdicts"] == {"train": 1, "mastered": 1, "hopeless": 1, "doubtful": 1}
    means = account.extra["means"]
    assert means["pass@1"] == pytest.approx((1 + 0 + 0.25 + 1) / 4)
    assert means["pass@2"] == pytest.approx((1 + 0 + 0.5) / 3) and means["pass@4"] == pytest.approx(2 / 3)
    assert "pass@8" not in means and means["best of n, reward"] == pytest.approx((4 - 3 + 4 + 4) / 4)
    assert "worth training on" in account.report and "pass@2 0.500" in account.report
    counts = json.loads((tmp_path / "g.manifest.json").read_text())["counts"]
    assert counts["round"] == 0 and counts["greso_easy"] == 0.5 and counts["verdict mastered"] == 1
