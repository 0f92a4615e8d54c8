"""The structure the design promises: imports point down, help is light, files and functions stay small."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolsample_cli.config import STAGES

PACKAGE = Path(__file__).resolve().parents[2] / "toolsample_cli"
FILES = sorted(PACKAGE.rglob("*.py"))

LEVELS = [
    {"errors", "config", "hashing", "json_types", "terminal", "__init__"},
    {"shards", "toolcalls"},
    {"models", "stage"},
    {"rollout", "score", "filter", "curriculum", "train", "importing", "bfcl", "inspection"},
    {"experiment"},
    {"cli", "__main__"},
]  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) if parts[-1] == "__init__" and len(parts) > 1 else ".".join(parts)


def level(name: str) -> int:
    """Level of a module by its longest listed prefix."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        prefix = ".".join(parts[:size])
        for number, members in enumerate(LEVELS):
            if prefix in members:
                return number
    raise AssertionError(f"{name} has no level: add it to LEVELS in tests/test_hygiene.py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at module scope?) of every import of our own package in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found += [(name, id(node) not in inner) for name in names]
    return found


def own_target(name: str) -> str | None:
    """The module of ours that an import name refers to, or None for another package or a mere attribute."""
    if not name.startswith("toolsample_cli."):
        return None
    relative = name.removeprefix("toolsample_cli.")
    path = PACKAGE.joinpath(*relative.split("."))
    return relative if path.with_suffix(".py").exists() or path.is_dir() else None


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down(path: Path):
    """A module imports only from its own level or from below."""
    mine = level(module_name(path))
    for name, _ in imports(path):
        target = own_target(name)
        if target is not None:
            assert level(target) <= mine, f"{module_name(path)} (level {mine}) imports {target} (level {level(target)})"


FRONT = ("cli", "errors", "config", "stage", "terminal", "json_types", "__init__", "__main__")
LIGHT = [path for path in FILES if module_name(path).split(".")[0] in FRONT]


@pytest.mark.parametrize("path", LIGHT, ids=module_name)
def test_front_modules_import_only_the_standard_library_typer_and_each_other(path: Path):
    """So that `--help` stays instant."""
    for name, top in imports(path):
        root = name.split(".")[0]
        if not top or root in sys.stdlib_module_names or root in ("typer", "__future__", "rich"):
            continue
        target = own_target(name)
        if root == "toolsample_cli" and (
            target is None
            or (
                target.split(".")[0] in ("cli", "errors", "config", "stage", "terminal", "json_types")
                or target == "shards.slice"
            )
        ):
            continue
        raise AssertionError(f"{module_name(path)} imports {name} at module scope")


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
