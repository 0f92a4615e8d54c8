"""Step metrics to trackers, if asked: tensorboard, wandb or trackio, each imported only then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, MissingDependency
from toolsample_cli.hashing import hash_text
from toolsample_cli.json_types import Json


class Tracker(Protocol):
    """Takes one step's metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one optimizer step."""

    def close(self) -> None:
        """Flush and end the run."""


@dataclass(frozen=True)
class TrackedRun:
    """What is one run in a tracker: the rounds of one arm and seed, whose steps count on. `resumed`: further calls
    of train log to the same run."""

    folder: Path
    name: str
    resumed: bool = True


class TensorBoard:
    """Event files in `<folder>/tensorboard`, one for each round of a run."""

    def __init__(self, run: TrackedRun, config: Mapping[str, Json]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependency("tensorboard", needed_for="--track tensorboard", install=_INSTALL) from None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {key} = {value}" for key, value in config.items()))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar a metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


class Wandb:
    """wandb, or trackio, which has its interface."""

    def __init__(self, run: TrackedRun, config: Mapping[str, Json], module: str = "wandb") -> None:
        import importlib

        try:
            self._module = importlib.import_module(module)
        except ImportError:
            raise MissingDependency(module, needed_for=f"--track {module}", install=f"pip install {module}") from None
        again: dict[str, str] = {"resume": "allow"} if run.resumed else {}
        if run.resumed and module == "wandb":  # trackio knows a run by its name
            again["id"] = f"{hash_text(str(run.folder.resolve())):016x}"
        self._module.init(project="toolsample", name=run.name, config=dict(config), **again)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point a metric."""
        self._module.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._module.finish()


def _trackio(run: TrackedRun, config: Mapping[str, Json]) -> Tracker:
    return Wandb(run, config, "trackio")


_INSTALL = 'pip install "toolsample[track]"'
TRACKERS: dict[str, Callable[[TrackedRun, Mapping[str, Json]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": _trackio,
}


def check_trackers(names: str) -> list[str]:
    """The names in a comma-separated list; ConfigError for an unknown one, MissingDependency for an absent package."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in TRACKERS:
            raise ConfigError(f"track = {name!r}: not one of {', '.join(TRACKERS)}", hint=nearest(name, TRACKERS))
        if name not in sys.modules and find_spec(name) is None:
            install = _INSTALL if name == "tensorboard" else f"pip install {name}"
            raise MissingDependency(name, needed_for=f"--track {name}", install=install)
    return asked


def open_trackers(names: str, run: TrackedRun, config: Mapping[str, Json]) -> list[Tracker]:
    """Trackers by comma-separated names; the errors are those of `check_trackers`."""
    return [TRACKERS[name](run, config) for name in check_trackers(names)]
