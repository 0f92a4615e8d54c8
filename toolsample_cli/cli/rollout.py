"""`toolsample rollout`: n completions of every task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import RolloutConfig

MaybeText = Optional[str]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @stage_command(app, "rollout", RolloutConfig)
    def rollout(
        tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
        out: Annotated[Path, typer.Option("-o", "--out", help="Folder of rollout shards to write.")],
        model: Annotated[
            MaybeText,
            typer.Option("-m", "--model", help="Model folder, hub id or served name (replay: a tokenizer, or none)."),
        ] = None,
        config: Any = None,
        options: Any = None,
    ) -> Any:
        """Sample n completions of every task, with token ids and logprobs as they were drawn.

        Rerunning goes on where it stopped: finished samples are kept, errored ones made again, a larger -n tops up.
        """
        from toolsample_cli.rollout.stage import run

        return run(tasks, out, model, config, options)
