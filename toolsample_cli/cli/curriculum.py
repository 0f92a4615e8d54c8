"""`toolsample curriculum`: what a round showed -> what to train on and what to ask next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import CurriculumConfig

MaybePath = Optional[Path]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Add the command to the application."""

    @stage_command(app, "curriculum", CurriculumConfig)
    def curriculum(
        corpus: Annotated[Path, typer.Argument(help="all tasks of the run, zero-shot")],
        out: Annotated[Path, typer.Option("--out", "-o", help="folder to write batch, tasks and state.json in")],
        config: Any,
        options: Any,
        groups: Annotated[MaybePath, typer.Option("--groups", help="groups of the round, from filter")] = None,
        scores: Annotated[MaybePath, typer.Option("--scores", help="scores of the round")] = None,
        tasks: Annotated[MaybePath, typer.Option("--tasks", help="tasks of the round, as they were rolled out")] = None,
        rollouts: Annotated[
            MaybePath, typer.Option("--rollouts", help="rollouts of the round, for demo_source = own")
        ] = None,
        records: Annotated[
            MaybePath, typer.Option("--records", help="records of the latest training, for mastery = loss")
        ] = None,
        state: Annotated[MaybePath, typer.Option("--state", help="state.json of the round before")] = None,
    ) -> Any:
        """Weigh the sub-tasks of a round's rewards (OUT/batch), draw the next tasks (OUT/tasks), keep OUT/state.json.

        Without --groups and --scores it makes the first draw and the first state.
        """
        from toolsample_cli.curriculum.stage import Paths, run

        return run(Paths(corpus, groups, scores, tasks, state, rollouts, records), out, config, options)
