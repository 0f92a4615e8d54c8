"""`toolsample run`: rounds of all stages from one recipe."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from toolsample_cli.config import RunConfig, read_recipe


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("run", no_args_is_help=True)
    def command(
        recipe: Annotated[Path, typer.Argument(help="recipe (TOML): [run], a table a stage, [arms.NAME.STAGE]")],
        out: Annotated[Path, typer.Option("--out", "-o", help="folder of the run(s)")],
        arm: Annotated[str, typer.Option(help="only these arms, comma-separated")] = "",
        seed: Annotated[str, typer.Option(help="only these seeds, comma-separated")] = "",
        corpus: Annotated[Optional[str], typer.Option(help="overrides [run] corpus")] = None,  # noqa: UP045
        model: Annotated[Optional[str], typer.Option(help="overrides [run] model")] = None,  # noqa: UP045
        rounds: Annotated[Optional[int], typer.Option(help="overrides [run] rounds")] = None,  # noqa: UP045
        heldout: Annotated[Optional[str], typer.Option(help="overrides [run] heldout")] = None,  # noqa: UP045
        dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved plan and stop")] = False,
        json_: Annotated[bool, typer.Option("--json", help="print the closing account as JSON on stdout")] = False,
    ) -> None:
        """Run whole experiments: rounds of all stages in one process, resumable at any moment."""
        from toolsample_cli.experiment.recipe import parse_seeds, plans

        given = {"corpus": corpus, "model": model, "rounds": rounds, "heldout": heldout}
        known = {item.name for item in dataclasses.fields(RunConfig)}
        flags = {key: value for key, value in given.items() if key in known}
        arms = [part.strip() for part in arm.split(",") if part.strip()]
        planned = plans(read_recipe(recipe), flags, arms, parse_seeds(seed))
        from toolsample_cli.experiment.runner import run
        from toolsample_cli.stage import Options

        account = run(planned, out, Options(dry_run=dry_run), lambda line: print(line, file=sys.stderr, flush=True))
        print(account.line(), file=sys.stderr)
        if json_ or dry_run:
            print(json.dumps(account.record(), indent=2 if dry_run else None, ensure_ascii=False))
