"""Engines that generate, by name; one is imported only when it is asked for."""

from toolsample_cli.backends.base import (
    BACKENDS,
    Backend,
    Completion,
    Request,
    Sampling,
    open_backend,
    rollout_seed,
)

__all__ = ["BACKENDS", "Backend", "Completion", "Request", "Sampling", "open_backend", "rollout_seed"]
