"""`toolsample import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import ImportConfig


def register(app: typer.Typer) -> None:
    """Add the command."""

    @stage_command(app, "import", ImportConfig)
    def import_(
        raw: Annotated[
            list[str], typer.Argument(help="Raw files, folders or hf://datasets/... paths: JSON, JSON lines, Parquet.")
        ],
        out: Annotated[Path, typer.Option("-o", "--out", help="Folder of task shards to write.")],
        config: Any,
        options: Any,
    ) -> Any:
        """Turn raw tool-calling data into tasks, checking that every gold answer earns its own full reward.

        Rows that cannot become a task go to OUT.rejects with the reason; doubtful golds are kept and flagged.
        """
        from toolsample_cli.importing.stage import run

        return run(raw, out, config, options)
