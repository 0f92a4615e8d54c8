"""Documents and code say the same."""

from __future__ import annotations

import re
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


CITED = re.compile(r"(?<![\w/.:])((?:toolsample_cli|tests|docs|examples|fixtures|benchmarks)/[\w.*/-]*[\w/])")
PAGE = re.compile(r"(?<![\w/])([\w-]+\.md)\b")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("fixtures/*.md")]
CODE = [
    path
    for folder in ("toolsample_cli", "benchmarks", "examples", "fixtures", "docs")
    for path in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize("path", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_cite_files_that_exist(path: Path):
    """A page sends nobody to a file or folder that is not in the repository."""
    cited = {word.rstrip("/") for word in CITED.findall(path.read_text(encoding="utf-8"))}
    made = {"docs/settings.md", "docs/names.md", "docs/shards.md"}
    lost = [word for word in sorted(cited - made) if "NAME" not in word and not list(ROOT.glob(word))]
    assert not lost


def test_code_cites_pages_that_exist():
    """Nor does a docstring or a help text."""
    known = {page.name for page in PAGES}
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in CODE
        for name in PAGE.findall(path.read_text(encoding="utf-8"))
        if name not in known
    ]
    assert not lost
