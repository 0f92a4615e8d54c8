"""Step metrics to trackers, if asked: tensorboard, wandb or trackio, each imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, MissingDependency


class Tracker(Protocol):
    """Takes one step's metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one optimizer step."""

    def close(self) -> None:
        """Flush and end the run."""


class TensorBoard:
    """Event files in `<folder>/tensorboard`."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependency("tensorboard", needed_for="--track tensorboard", install=_INSTALL) from None
        self._writer = SummaryWriter(str(folder / "tensorboard"))
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

    def __init__(self, folder: Path, config: Mapping[str, Any], module: str = "wandb") -> None:
        import importlib

        try:
            self._module = importlib.import_module(module)
        except ImportError:
            raise MissingDependency(module, needed_for=f"--track {module}", install=f"pip install {module}") from None
        self._run = self._module.init(project="toolsample", name=folder.resolve().name, config=dict(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point a metric."""
        self._module.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._module.finish()


def _trackio(folder: Path, config: Mapping[str, Any]) -> Tracker:
    return Wandb(folder, config, "trackio")


_INSTALL = 'pip install "toolsample[track]"'
TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": _trackio}


def open_trackers(names: str, folder: Path, config: Mapping[str, Any]) -> list[Tracker]:
    """Trackers by comma-separated names; ConfigError for an unknown one, MissingDependency for an absent one."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in TRACKERS:
            raise ConfigError(f"track = {name!r}: not one of {', '.join(TRACKERS)}", hint=nearest(name, TRACKERS))
    return [TRACKERS[name](folder, config) for name in wanted]
