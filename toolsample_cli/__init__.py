"""Curate data for RL tool learning, one Parquet stage at a time.

`import toolsample_cli as ts` gives the functions of `toolsample_cli.api`, loaded when the first of them is used.
"""

import importlib

__version__ = "0.1.0"

PUBLIC = (
    *("read", "write", "import_tasks", "import_rollouts", "export"),
    *("scores", "groups", "pick", "right", "pairs", "Reward"),
)
"""The names of the Python interface; none of them is a module's, which would hide it once that is loaded."""


def __getattr__(name: str) -> object:
    if name in PUBLIC:
        return getattr(importlib.import_module("toolsample_cli.api"), name)
    raise AttributeError(f"module 'toolsample_cli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
