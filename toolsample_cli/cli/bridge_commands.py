"""The commands that meet other trainers: `export` and `import-rollouts`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import ExportConfig, RolloutsInConfig
from toolsample_cli.stage import Account, Options

MaybePath = Optional[Path]  # noqa: UP045  typer reads Optional on Python 3.10
MaybeText = Optional[str]  # noqa: UP045


@stage_command("export", ExportConfig)
def export(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write: .jsonl, or .parquet for verl.")],
    config: ExportConfig,
    options: Options,
    model: Annotated[
        MaybeText, typer.Option("-m", "--model", help="The model to train: its tokenizer renders the prompts.")
    ] = None,
    groups: Annotated[MaybePath, typer.Option("--groups", help="Groups from filter, whose verdicts go along.")] = None,
    rollouts: Annotated[MaybePath, typer.Option("--rollouts", help="Rollouts to take answers from.")] = None,
    scores: Annotated[MaybePath, typer.Option("--scores", help="Scores of those rollouts.")] = None,
) -> Account:
    """Write data for another trainer: tasks, answers, pairs.

    Every task carries a label, one JSON text, as its ground truth: our reward reads it inside the trainer, and
    import-rollouts finds the task by it afterwards. Prompts are compared with ours token by token.
    """
    from toolsample_cli.bridges.stage import Paths, run

    return run(Paths(tasks, groups, rollouts, scores), out, model, config, options)


@stage_command("import-rollouts", RolloutsInConfig)
def import_rollouts(
    files: Annotated[list[Path], typer.Argument(help="Files or folders: JSON lines or Parquet.")],
    tasks: Annotated[Path, typer.Option("--tasks", help="Folder of the tasks that were exported.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of rollout shards to write.")],
    config: RolloutsInConfig,
    options: Options,
    model: Annotated[
        MaybeText,
        typer.Option("-m", "--model", help="Its tokenizer: makes ids where they are missing, matches prompts."),
    ] = None,
) -> Account:
    """Take another trainer's rollouts as ours.

    Dumps of verl, completions of TRL, traces of verifiers and prime-rl, NeMo-RL's training data, OpenAI batches and
    plain lines are told apart by their keys. A row finds its task by our label, its id or its prompt.
    """
    from toolsample_cli.bridges.rollouts_in import run

    return run(files, tasks, out, model, config, options)
