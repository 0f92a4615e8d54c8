"""`toolsample train`: optimizer steps from scored rollouts, or from gold answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import TrainConfig


def register(app: typer.Typer) -> None:
    """Add the command."""

    @stage_command(app, "train", TrainConfig)
    def train(
        source: Annotated[Path, typer.Argument(metavar="ROLLOUTS", help="folder of rollouts (sft: of tasks)")],
        batch: Annotated[Optional[Path], typer.Argument(help="folder of the batch that curriculum wrote")] = None,  # noqa: UP045
        *,
        model: Annotated[str, typer.Option("--model", "-m", help="model folder, checkpoint or hub id to go on from")],
        out: Annotated[Path, typer.Option("--out", "-o", help="checkpoint folder to write")],
        tasks: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option("--tasks", help="tasks of the rollouts, to refuse benchmark test data here too"),
        ] = None,
        config: TrainConfig,
        options: Any,
    ) -> Any:
        """Train one round: a few GRPO steps from stored rollouts, nothing is generated.

        OUT is a model folder that transformers and vLLM load as it is; optimizer and schedule go on when --model is
        such a checkpoint. Step metrics and a record per rollout are written beside it as OUT.steps and OUT.records.
        """
        from toolsample_cli.train.stage import run

        account = run(source, batch, model=model, out=out, config=config, options=options, tasks=tasks)
        if int(os.environ.get("RANK", "0")):  # under torchrun one process speaks for all
            raise typer.Exit
        return account
