"""`toolsample report`: a run folder as one self-contained HTML page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("report", no_args_is_help=True)
    def command(
        run: Annotated[Path, typer.Argument(help="folder that `toolsample run` or examples/round.sh filled")],
        out: Annotated[Optional[Path], typer.Option("--out", "-o", help="the page [default: RUN/report.html]")] = None,  # noqa: UP045
        json_: Annotated[bool, typer.Option("--json", help="print the table of arms as JSON on stdout")] = False,
    ) -> None:
        """Draw a run's curves and compare its arms, as one HTML page without outside references."""
        from toolsample_cli.experiment.report import arm_table, collect, heldout_names, page
        from toolsample_cli.shards.reading import write_atomically

        runs = collect(run)
        place = out or run / "report.html"
        write_atomically(place, page(run, runs).encode("utf-8"))
        if json_:
            print(json.dumps({name: arm_table(runs, name) for name in heldout_names(runs)}))
        print(f"report: {len(runs)} runs -> {place}", file=sys.stderr)
