"""The structure the design promises: imports point down, help is light, files and functions stay small."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolsample_cli.config import STAGES

PACKAGE = Path(__file__).resolve().parents[2] / "toolsample_cli"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) if parts[-1] == "__init__" and len(parts) > 1 else ".".join(parts)


def test_imports_keep_the_contracts():
    """Rooms import downwards, without circles, lazy imports too: the contracts stand in pyproject.toml."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"],
        cwd=PACKAGE.parent, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


PROBE = """
import json, resource, sys
from toolsample_cli.cli.app import run
code = run(sys.argv[1:])
heavy = [m for m in ("polars", "torch", "transformers", "vllm", "numpy", "jsonschema", "rich") if m in sys.modules]
usage = resource.getrusage(resource.RUSAGE_SELF)
print("\\n" + json.dumps({"code": code, "heavy": heavy, "cpu": usage.ru_utime + usage.ru_stime}))
"""


@pytest.mark.parametrize("command", [None, *STAGES, "inspect", "report"], ids=str)
def test_help_is_light(command: str | None):
    """`--help` of every command works and loads none of the heavy packages."""
    arguments = ["--help"] if command is None else [command, "--help"]
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["code"] == 0
    assert result["heavy"] == []
    assert "Usage: toolsample" in done.stdout


def test_files_and_functions_stay_small():
    """A file over 400 lines or a function over 60 hides two things in one."""
    faults = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 400:
            faults.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = node.end_lineno - node.lineno + 1
                if size > 60:
                    faults.append(f"{path.name}: {node.name} has {size} lines")
    assert not faults, "\n".join(faults)


def test_every_module_says_what_it_is():
    """Each module opens with a docstring."""
    silent = [str(path) for path in FILES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert not silent


def test_no_module_evaluates_text():
    """Model text is data: no eval, exec, pickle or yaml.load anywhere in the package."""
    faults = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                faults.append(f"{path.name}:{node.lineno}")
    assert not faults
