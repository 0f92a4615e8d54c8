"""`toolsample filter`: rewards of a round -> what each task's group says and how much it is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import FilterConfig


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @stage_command(app, "filter", FilterConfig)
    def filter(
        scores: Annotated[Path, typer.Argument(help="folder of scores of one round")],
        out: Annotated[Path, typer.Option("--out", "-o", help="folder of groups to write")],
        config: Any,
        options: Any,
        history: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option("--history", help="groups of the round before; tasks not visited keep their statistics"),
        ] = None,
    ) -> Any:
        """Turn the scores of one round into groups: statistics, importance, keep and reason, one row a task."""
        from toolsample_cli.filter.stage import run

        return run(scores, history, out, config, options)
