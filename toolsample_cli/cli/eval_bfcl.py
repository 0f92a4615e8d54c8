"""`toolsample eval-bfcl`: ask a model BFCL's questions, score by the official checker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import EvalConfig


def register(app: typer.Typer) -> None:
    """Add the command."""

    @stage_command(app, "eval-bfcl", EvalConfig)
    def eval_bfcl(
        model: Annotated[
            str, typer.Argument(help="checkpoint: a model folder, a hub id, or the name a server knows it by")
        ],
        out: Annotated[Path, typer.Option("--out", "-o", help="folder to write answers, verdicts and summary to")],
        config: EvalConfig,
        options: Any,
        entries: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option("--entries", help="your own questions: a file or folder in BFCL's format"),
        ] = None,
        answers: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option("--answers", help="their ground truth, when not in possible_answer/ beside them"),
        ] = None,
        base: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(
                "--compare", help="a base model to ask the same, for a paired test and the entries that flipped"
            ),
        ] = None,
        base_protocol: Annotated[
            str, typer.Option("--compare-protocol", help="how the base model is asked (default: its native template)")
        ] = "hermes",
    ) -> Any:
        """Score a model on BFCL, greedily, by the official checker, which is installed apart on first use.

        --limit takes the first questions of each category and marks the result as partial. A rerun goes on where the
        last one stopped and asks failed questions again.
        """
        from toolsample_cli.bfcl.stage import Against, Sources, run

        against = Against(base, base_protocol) if base else None
        sources = Sources(entries, answers)
        return run(model, out=out, sources=sources, config=config, options=options, against=against)
