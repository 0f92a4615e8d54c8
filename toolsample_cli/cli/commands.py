"""Every command but `inspect`: what it takes, and the stage that does it. No rule of the method lives here.

Stages are imported when their command runs, so that `--help` stays instant.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from toolsample_cli.cli.command import finish, stage_command, warn_of_no_lock
from toolsample_cli.cli.help import COMMON
from toolsample_cli.config import (
    CurriculumConfig,
    EvalConfig,
    FilterConfig,
    ImportConfig,
    RolloutConfig,
    ScoreConfig,
    TrainConfig,
    read_recipe,
)
from toolsample_cli.stage import Account, Options
from toolsample_cli.terminal import json_line, one_line

MaybePath = Optional[Path]  # noqa: UP045  typer reads Optional on Python 3.10
MaybeText = Optional[str]  # noqa: UP045
MaybeInt = Optional[int]  # noqa: UP045


@stage_command("import", ImportConfig)
def import_(
    raw: Annotated[
        list[str], typer.Argument(help="Raw files, folders or hf://datasets/... paths: JSON, JSON lines, Parquet.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of task shards to write.")],
    config: ImportConfig,
    options: Options,
) -> Account:
    """Turn raw tool-calling data into tasks.

    Every gold answer is checked to earn its own full reward. Rows that cannot become a task go to OUT.rejects with
    the reason; doubtful golds are kept and flagged.
    """
    from toolsample_cli.importing.stage import run

    return run(raw, out, config, options)


@stage_command("rollout", RolloutConfig, sliced=True)
def rollout(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of rollout shards to write.")],
    config: RolloutConfig,
    options: Options,
    model: Annotated[
        MaybeText,
        typer.Option("-m", "--model", help="Model folder, hub id or served name (replay: a tokenizer, or none)."),
    ] = None,
) -> Account:
    """Sample n completions of every task.

    They are kept with their token ids and logprobs as they were drawn. A rerun resumes: finished samples are kept,
    errored ones made again, a larger -n tops up.
    """
    from toolsample_cli.rollout.stage import run

    return run(tasks, out, model, config, options)


@stage_command("score", ScoreConfig, sliced=True)
def score(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks the rollouts were made from.")],
    rollouts: Annotated[Path, typer.Argument(help="Folder of rollouts.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of scores to write.")],
    config: ScoreConfig,
    options: Options,
) -> Account:
    """Score every completion: called, right, earned.

    ToolRL's reward by default, in the four parts format, name, key and value; no model is needed. An errored
    rollout is kept with a null reward.
    """
    from toolsample_cli.score.stage import run

    return run(tasks, rollouts, out=out, config=config, options=options)


@stage_command("filter", FilterConfig, sliced=True)
def filter(
    scores: Annotated[Path, typer.Argument(help="Folder of scores of one round.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of groups to write.")],
    config: FilterConfig,
    options: Options,
    history: Annotated[
        MaybePath,
        typer.Option("--history", help="Groups of the round before; unvisited tasks keep them."),
    ] = None,
) -> Account:
    """Turn scores into groups, with a verdict on each task.

    A group is one row per task: statistics of its rewards, importance, keep and the reason.
    """
    from toolsample_cli.filter.stage import run

    return run(scores, history, out, config, options)


@stage_command("curriculum", CurriculumConfig)
def curriculum(
    corpus: Annotated[Path, typer.Argument(help="All tasks of the run, zero-shot.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for batch, tasks and state.json.")],
    config: CurriculumConfig,
    options: Options,
    groups: Annotated[MaybePath, typer.Option("--groups", help="Groups of the round, from filter.")] = None,
    scores: Annotated[MaybePath, typer.Option("--scores", help="Scores of the round.")] = None,
    tasks: Annotated[MaybePath, typer.Option("--tasks", help="Tasks of the round, as they were rolled out.")] = None,
    rollouts: Annotated[
        MaybePath, typer.Option("--rollouts", help="Rollouts of the round, for demonstrations of its own.")
    ] = None,
    records: Annotated[
        MaybePath, typer.Option("--records", help="Records of the latest training, for --mastery loss.")
    ] = None,
    state: Annotated[MaybePath, typer.Option("--state", help="state.json of the round before.")] = None,
) -> Account:
    """Write the training batch and draw the next tasks.

    Weighs the sub-tasks of the round's rewards (OUT/batch), draws the next tasks (OUT/tasks) and keeps OUT/state.json.
    Without --groups and --scores it makes the first draw and the first state.
    """
    from toolsample_cli.curriculum.stage import Paths, run

    return run(Paths(corpus, groups, scores, tasks, state, rollouts, records), out, config, options)


@stage_command("train", TrainConfig)
def train(
    source: Annotated[Path, typer.Argument(metavar="ROLLOUTS", help="Folder of rollouts (sft: or of tasks).")],
    batch: Annotated[MaybePath, typer.Argument(help="Batch that curriculum wrote (sft: scores).")] = None,
    *,
    model: Annotated[str, typer.Option("-m", "--model", help="Model folder, checkpoint or hub id to train.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Checkpoint folder to write.")],
    tasks: Annotated[
        MaybePath,
        typer.Option("--tasks", help="Tasks: for plain prompts and to refuse test data."),
    ] = None,
    config: TrainConfig,
    options: Options,
) -> Account:
    """Train one round from stored rollouts.

    A few GRPO steps; nothing is generated. OUT is a model folder that transformers and vLLM load as it is; optimizer
    and schedule are resumed when --model is such a checkpoint. Step metrics and a record per rollout are written
    beside it as OUT.steps and OUT.records.
    """
    from toolsample_cli.train.stage import run

    return run(source, batch, model=model, out=out, config=config, options=options, tasks=tasks)


@stage_command("eval-bfcl", EvalConfig)
def eval_bfcl(
    model: Annotated[str, typer.Argument(help="Model folder, hub id, or the name a server knows it by.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for answers, verdicts and summary.")],
    config: EvalConfig,
    options: Options,
    entries: Annotated[
        MaybePath, typer.Option("--entries", help="Your own questions: a file or folder in BFCL's format.")
    ] = None,
    answers: Annotated[
        MaybePath, typer.Option("--answers", help="Their ground truth, when not in possible_answer/ beside them.")
    ] = None,
    base: Annotated[
        MaybeText,
        typer.Option("--compare", help="A base model to ask the same, for a paired test and the entries that flipped."),
    ] = None,
    base_protocol: Annotated[str, typer.Option("--compare-protocol", help="How the base model is asked.")] = "hermes",
) -> Account:
    """Score a model on BFCL by the official checker.

    Answers are greedy. The checker is installed in an environment of its own on first use. --limit takes the first
    questions of each category and marks the result as partial. A rerun resumes and asks failed questions again.
    """
    from toolsample_cli.bfcl.stage import Against, QuestionSource, run

    against = Against(base, base_protocol) if base else None
    sources = QuestionSource(entries, answers)
    return run(model, out=out, sources=sources, config=config, options=options, against=against)


def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe (TOML): [run], one table per stage, [arms.NAME.STAGE].")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the runs.")],
    arm: Annotated[str, typer.Option(help="Only these arms, comma-separated.")] = "",
    seed: Annotated[str, typer.Option(help="Only these seeds, comma-separated.")] = "",
    corpus: Annotated[MaybeText, typer.Option(help="Overrides [run] corpus.")] = None,
    model: Annotated[MaybeText, typer.Option("-m", "--model", help="Overrides [run] model.")] = None,
    rounds: Annotated[MaybeInt, typer.Option(help="Overrides [run] rounds.")] = None,
    heldout: Annotated[MaybeText, typer.Option(help="Overrides [run] heldout.")] = None,
    no_lock: Annotated[
        bool,
        typer.Option("--no-lock", help="Write without locks, on a file system that has none.", rich_help_panel=COMMON),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check inputs, packages and models, print the plan and stop.", rich_help_panel=COMMON
        ),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the closing account as JSON on stdout.", rich_help_panel=COMMON)
    ] = False,
) -> None:
    """Run whole experiments: rounds of all stages.

    Everything happens in one process, with one table of settings per stage, for several arms and seeds; each stage
    writes what the single command would write. Resumable at any moment.
    """
    began = time.monotonic()
    from toolsample_cli.experiment.recipe import parse_seeds, plans

    given = {"corpus": corpus, "model": model, "rounds": rounds, "heldout": heldout}
    arms = [part.strip() for part in arm.split(",") if part.strip()]
    planned = plans(read_recipe(recipe), given, arms, parse_seeds(seed))
    from toolsample_cli.cli.progress import Progress
    from toolsample_cli.experiment import runner

    warn_of_no_lock(Options(lock=not no_lock))
    with Progress("run") as progress:
        account = runner.run(
            planned, out, Options(dry_run=dry_run, lock=not no_lock, phase=progress.phase), progress.say
        )
    account.started = began
    finish(account, json_)


def report(
    run: Annotated[Path, typer.Argument(help="Folder that `toolsample run` or examples/round.sh filled.")],
    out: Annotated[MaybePath, typer.Option("-o", "--out", help="The page [default: RUN/report.html].")] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the table of arms as JSON on stdout.", rich_help_panel=COMMON)
    ] = False,
) -> None:
    """Draw a run's curves and compare its arms.

    The result is one HTML page without outside references.
    """
    from toolsample_cli.experiment.report import arm_table, collect, heldout_names, page
    from toolsample_cli.shards.sealed import write_atomically

    runs = collect(run)
    written = out or run / "report.html"
    write_atomically(written, page(run, runs).encode("utf-8"))
    if json_:
        print(json_line({name: arm_table(runs, name) for name in heldout_names(runs)}))
    print(one_line(f"report: {len(runs)} runs -> {written}"), file=sys.stderr)
