"""The state of a checkpoint is JSON, also after a step that diverged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli.train.checkpoint import Position, StepValue, no_records, position_record, read_position


def test_a_diverged_step_is_remembered_as_it_was(tmp_path: Path):
    """Infinity and NaN come back, and the file holds neither."""
    row = {name: math.inf if dtype == pl.Float64 else 0 for name, dtype in no_records().schema.items()}
    records = pl.DataFrame([row], schema=no_records().schema)
    position = Position(
        metrics=[StepValue(0, 1, "grad_norm", math.inf), StepValue(0, 1, "loss", -math.inf)], records=records
    )
    text = json.dumps(position_record(position), allow_nan=False)
    json.loads(text, parse_constant=pytest.fail)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "state.json").write_text(text)
    found = read_position(tmp_path)
    assert found is not None
    assert found.metrics == position.metrics
    assert found.records.equals(records)
