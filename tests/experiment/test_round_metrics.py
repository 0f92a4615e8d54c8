"""Numbers of a round are numbers or null, whatever the rows are, and every JSON file is JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli.experiment.report import RunRecord, arm_table, interval
from toolsample_cli.experiment.round_metrics import group_shares, score_shares
from toolsample_cli.shards.schema import COMPONENTS
from toolsample_cli.shards.sealed import sealed, write_json

COLUMNS = ("exact", "reward", *COMPONENTS, *(f"{name}_max" for name in COMPONENTS))


def scores(*rows: dict[str, object]) -> pl.DataFrame:
    """Scores of calls with one name, key and value, all earned, but for what a row says otherwise."""
    whole = {"exact": True, "reward": 4.0} | {name: 1.0 for name in COLUMNS[2:]}
    schema = {name: pl.Boolean if name == "exact" else pl.Float64 for name in COLUMNS}
    return pl.DataFrame([whole | row for row in rows], schema=schema)


ERROR = dict.fromkeys(COLUMNS)
NO_PARAMETERS = {"key": 0.0, "key_max": 0.0, "value": 0.0, "value_max": 0.0}
NO_CALL = {name: 0.0 for component in ("name", "key", "value") for name in (component, f"{component}_max")}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], {"n": 0, "exact": None, "reward": None, "value": None}),
        ([ERROR], {"n": 1, "exact": 0.0, "reward": None, "value": None}),
        ([NO_PARAMETERS], {"n": 1, "exact": 1.0, "value": None, "name": 1.0}),
        ([NO_CALL], {"name": None, "key": None, "value": None, "format": 1.0}),
        ([NO_PARAMETERS, {"value": 1.0, "value_max": 2.0}], {"value": 0.5, "key": 1.0}),
        ([ERROR, {"exact": None, "value": 0.0}], {"n": 2, "exact": 0.0, "value": 0.0, "reward": 4.0}),
    ],
)
def test_scores_without_anything_to_earn(rows: list[dict[str, object]], expected: dict[str, object], tmp_path: Path):
    """No parameters, no call, errors, no row at all: a share of nothing is null and the rest is right."""
    found = score_shares(scores(*rows))
    assert {name: found[name] for name in expected} == expected
    write_json(tmp_path / "round.json", sealed(found))
    json.loads((tmp_path / "round.json").read_text(), parse_constant=pytest.fail)


def test_groups_without_a_spread():
    """A group of one sample has no variance and is dead; of no groups there is no share."""
    groups = pl.DataFrame({"reward_var": [None, 0.0, 0.5], "n_exact": [1, 0, 2]})
    assert group_shares(groups) == {"dead": pytest.approx(2 / 3), "all_wrong": pytest.approx(1 / 3)}
    assert group_shares(groups.clear()) == {"dead": None, "all_wrong": None}


def test_no_json_file_holds_nan(tmp_path: Path):
    """It is refused where it is written, so that nobody finds it where it is read."""
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "x.json", {"a": [value]})
        with pytest.raises(ValueError, match="JSON compliant"):
            sealed({"a": value})
    assert not (tmp_path / "x.json").exists()


def test_an_arm_with_one_seed_or_none_has_no_interval(tmp_path: Path):
    """One value has no interval, and arms without a seed in common no difference."""
    assert interval([0.5]) is None
    runs = [
        RunRecord(arm, seed, ({"rollouts": 8, "heldout": {"h": {"exact": 0.5}}},)) for arm, seed in (("a", 0), ("b", 1))
    ]
    table = arm_table(runs, "h")
    assert [row["difference"] for row in table] == [0.0, None]
    write_json(tmp_path / "table.json", table)
