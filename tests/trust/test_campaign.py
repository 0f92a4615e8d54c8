"""The short form of the campaign; `make campaign` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_short_campaign_meets_no_surprise(tmp_path: Path):
    """Kills, a full disk, flipped bits and odd rows: everything is refused by name, mended by a rerun, or no change."""
    script = Path(__file__).with_name("campaign.py")
    done = subprocess.run(
        [sys.executable, script, "--short", "--work", tmp_path / "w"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no surprise" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_campaign_against_code_that_reads_without_comparing_ends_at_once(tmp_path: Path):
    """It would find out: with the comparison taken out, a flipped bit is a surprise."""
    script = Path(__file__).with_name("campaign.py")
    blind = (
        "import runpy, sys; sys.argv[0] = sys.argv.pop(1)\n"
        "sys.path[:0] = [sys.argv[0].rpartition('/')[0]]\n"
        "import toolsample_cli.shards.reading as reading\n"
        "reading.verify = lambda *_, **__: None\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", blind, script, "--short", "--work", tmp_path / "w"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "SURPRISE: " in done.stderr, done.stdout
