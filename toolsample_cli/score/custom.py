"""Loads a user's own reward components from `my_file.py:function`; the file's digest goes into the record.

What a component prints goes to stderr, as stdout belongs to the stage's own result, and `sys.exit` in it is a failure.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path

from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.score.rewards import Answer


def load_components(setting: str) -> tuple[dict[str, Callable[[Answer], float]], dict[str, str]]:
    """(components by function name, digests by file) of a comma-separated setting. ConfigError names what is wrong."""
    components: dict[str, Callable[[Answer], float]] = {}
    digests: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in setting.split(","))):
        file, colon, name = item.rpartition(":")
        if not colon or not name.isidentifier():
            raise ConfigError(f"component = {item!r}: expected my_file.py:function")
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"component = {item!r}: no file {file}")
        if name in components:
            raise ConfigError(f"component = {item!r}: two components are called {name}")
        function = getattr(_module(path), name, None)
        if not callable(function):
            raise ConfigError(f"component = {item!r}: {file} defines no function {name}")
        components[name] = _checked(function, item)
        digests[file] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return components, digests


def _module(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"own_component_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"component: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for data
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"component: {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _checked(function: Callable[[Answer], float], item: str) -> Callable[[Answer], float]:
    def component(answer: Answer) -> float:
        try:
            value = float(function(answer))
        except (Exception, SystemExit) as error:
            raise StageFailure(
                f"component {item} failed: {type(error).__name__}: {error}",
                hint="fix it and rerun; what is finished is kept",
            ) from error
        if not math.isfinite(value):
            raise StageFailure(f"component {item} returned {value}, expected a finite number")
        return value

    return component
