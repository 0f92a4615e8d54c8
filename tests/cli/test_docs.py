"""Documents and code say the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolsample_cli.config import STAGES, read_recipe
from toolsample_cli.experiment.recipe import plans

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_up_to_date():
    """`make docs` would change nothing."""
    subprocess.run([sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], check=True)


@pytest.mark.parametrize("command", [*STAGES, "inspect"])
def test_every_command_stands_in_the_readme(command: str):
    """No command is left undocumented."""
    assert f"toolsample {command}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_recipe_resolves(path: Path):
    """A shipped recipe has no unknown key and no value out of range."""
    assert plans(read_recipe(path), {}, [], [])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.sh")), ids=lambda path: path.name)
def test_every_example_script_parses(path: Path):
    """bash reads the shipped scripts."""
    subprocess.run(["bash", "-n", str(path)], check=True)
