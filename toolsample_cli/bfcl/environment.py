"""The scorer's own environment: a small venv with exact pins, made on first use, shared by all runs, then offline.

It is built beside its place and renamed, under a lock: a killed installation is never taken for a whole one, and two
processes do not clash. `$TOOLSAMPLE_CACHE` (else `~/.cache/toolsample`) is where it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolsample_cli.errors import ConfigError, MissingDependency, StageFailure
from toolsample_cli.hashing import digest
from toolsample_cli.models.tokenizer_files import cache_folder

RELEASES = {"v4": "2026.3.23", "v3": "2025.8.6.2"}
"""The two pinned releases of bfcl-eval; v3 numbers need the last v3 wheel, whose data and back-ends differ."""

PINS = ("filelock==3.20.0", "mpmath==1.3.0", "overrides==7.7.0", "tenacity==9.2.1")
"""What the checkers import beyond the standard library; everything else that bfcl-eval declares is left out."""

PARSER_PINS = ("tree-sitter==0.21.3", "tree-sitter-java==0.21.0", "tree-sitter-javascript==0.21.4")
"""For Java and JavaScript written as text; without builds for Python 3.13 and newer."""

MEMORY_PINS = ("numpy==1.26.4", "rank-bm25==0.2.2")
"""For the simulated key-value memory."""

SECONDS = 600
"""Longest an installation may take."""


@dataclass(frozen=True)
class Environment:
    """A finished environment: its interpreter and where its packages lie."""

    python: Path
    version: str


def requirements(version: str, memory: bool = False) -> tuple[str, ...]:
    """Pins of one release."""
    return (f"bfcl-eval=={RELEASES[version]}", *PINS, *PARSER_PINS, *(MEMORY_PINS if memory else ()))


def folder_of(version: str, python: str = "", memory: bool = False) -> Path:
    """Where the environment of a release lives; its name changes with pins and interpreter."""
    interpreter = python or f"{sys.version_info[0]}.{sys.version_info[1]} {sys.base_prefix}"
    mark = digest([requirements(version, memory), interpreter])[:8]
    return cache_folder() / f"bfcl-{RELEASES[version]}-{mark}"


def ready(version: str, python: str = "", memory: bool = False) -> bool:
    """Whether the environment stands there whole."""
    return (folder_of(version, python, memory) / "whole").is_file()


def provide(version: str, python: str = "", memory: bool = False) -> Environment:
    """The environment of a release, made when it is not there yet.

    `python`: interpreter to build it from ("" is the running one). Raises MissingDependency with the command to try
    when the packages cannot be had.
    """
    place = folder_of(version, python, memory)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StageFailure(
            f"{place.parent}: cannot be written: {error}", hint="set TOOLSAMPLE_CACHE to a folder of yours"
        ) from None
    if not ready(version, python, memory):
        with _lock(place):
            if not ready(version, python, memory):
                _build(place, version, python or sys.executable, requirements(version, memory))
    return Environment(place / "bin" / "python", version)


@contextlib.contextmanager
def _lock(place: Path) -> Iterator[None]:
    """Exclusive while one process builds; the others wait for it."""
    with (place.parent / f".{place.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(place: Path, version: str, python: str, pins: tuple[str, ...]) -> None:
    beside = place.parent / f".{place.name}.tmp"
    for leftover in (beside, place):  # of a build that was killed; we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    print(f"eval-bfcl: installing bfcl-eval {RELEASES[version]} once, into {place}", file=sys.stderr)
    _run([python, "-m", "venv", "--without-pip", str(beside)], pins)
    interpreter = beside / "bin" / "python"
    parsers = [pin for pin in pins if pin in PARSER_PINS]
    others = [pin for pin in pins if pin not in PARSER_PINS]
    _run([*_installer(interpreter), *others], pins)
    with contextlib.suppress(MissingDependency):  # Python calls are scored without it; Java text is then refused
        _run([*_installer(interpreter), "--only-binary", ":all:", *parsers], pins)
    (beside / "whole").write_text("\n".join(pins) + "\n", encoding="utf-8")
    beside.rename(place)


def _installer(interpreter: Path) -> list[str]:
    """The command that installs into that interpreter: our pip, else uv, else a pip put into the venv itself."""
    quiet = ["--quiet", "--no-deps"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-warn-conflicts", *quiet]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", str(interpreter), *quiet]
    subprocess.run([str(interpreter), "-m", "ensurepip"], capture_output=True, check=False)
    return [str(interpreter), "-m", "pip", "install", *quiet]


def _run(command: list[str], pins: tuple[str, ...]) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL,
            env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError(f"{command[0]}: no such interpreter", hint="--scorer-python takes a path") from None
    except subprocess.TimeoutExpired:
        raise _missing(pins, f"no end after {SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no message"]
        raise _missing(pins, errors[0].strip())


def _missing(pins: tuple[str, ...], why: str) -> MissingDependency:
    return MissingDependency(
        pins[0],
        needed_for="eval-bfcl's scorer",
        install=f"it could not be installed ({why}); where the package index can be reached, run "
        f"`pip download --no-deps {' '.join(pins)} -d wheels` and set PIP_FIND_LINKS=wheels PIP_NO_INDEX=1 here",
    )
