"""Every command but `inspect`: what it takes, and the stage that does it. No rule of the method lives here.

Stages are imported when their command runs, so that `--help` stays instant.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from toolsample_cli.cli.command import stage_command
from toolsample_cli.config import (
    CurriculumConfig,
    EvalConfig,
    FilterConfig,
    ImportConfig,
    RolloutConfig,
    RunConfig,
    ScoreConfig,
    TrainConfig,
    read_recipe,
)
from toolsample_cli.stage import Account, Options

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
    """Turn raw tool-calling data into tasks, checking that every gold answer earns its own full reward.

    Rows that cannot become a task go to OUT.rejects with the reason; doubtful golds are kept and flagged.
    """
    from toolsample_cli.importing.stage import run

    return run(raw, out, config, options)


@stage_command("rollout", RolloutConfig)
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
    """Sample n completions of every task, with token ids and logprobs as they were drawn.

    Rerunning goes on where it stopped: finished samples are kept, errored ones made again, a larger -n tops up.
    """
    from toolsample_cli.rollout.stage import run

    return run(tasks, out, model, config, options)


@stage_command("score", ScoreConfig)
def score(
    tasks: Annotated[Path, typer.Argument(help="folder of tasks the rollouts were made from")],
    rollouts: Annotated[Path, typer.Argument(help="folder of rollouts")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of scores to write")],
    config: ScoreConfig,
    options: Options,
) -> Account:
    """Score every completion: what was called, what was right, what it earns. Needs no model, so rescoring is free.

    ToolRL's reward by default, in the four parts format, name, key and value. An errored rollout is kept with a
    null reward.

    Rewards for --rewards: toolrl, toolrl_coarse, toolrl_intermediate, toolrl_strict_lists, toolrl_equal_max,
    toolrl_two_stage, toolrl_smooth, toolrl_length, toolrl_length_dynamic, dscl_literal, tool_n1, bfcl, schema,
    irrelevance, overlong, self_example.

    Quirks for --lift: first_tag, one_line, parameters_only, all_or_nothing (reading); ungated_format,
    free_response (paying).

    Protocols: rlla, hermes, tool_n1, llama3, mistral, qwen_xml, pythonic, openai, json.
    """
    from toolsample_cli.score.stage import run

    return run(tasks, rollouts, out=out, config=config, options=options)


@stage_command("filter", FilterConfig)
def filter(
    scores: Annotated[Path, typer.Argument(help="folder of scores of one round")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of groups to write")],
    config: FilterConfig,
    options: Options,
    history: Annotated[
        MaybePath, typer.Option("--history", help="groups of the round before; tasks not visited keep their statistics")
    ] = None,
) -> Account:
    """Turn the scores of one round into groups: statistics, importance, keep and reason, one row a task."""
    from toolsample_cli.filter.stage import run

    return run(scores, history, out, config, options)


@stage_command("curriculum", CurriculumConfig)
def curriculum(
    corpus: Annotated[Path, typer.Argument(help="all tasks of the run, zero-shot")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write batch, tasks and state.json in")],
    config: CurriculumConfig,
    options: Options,
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
) -> Account:
    """Weigh the sub-tasks of a round's rewards (OUT/batch), draw the next tasks (OUT/tasks), keep OUT/state.json.

    Without --groups and --scores it makes the first draw and the first state.
    """
    from toolsample_cli.curriculum.stage import Paths, run

    return run(Paths(corpus, groups, scores, tasks, state, rollouts, records), out, config, options)


@stage_command("train", TrainConfig)
def train(
    source: Annotated[Path, typer.Argument(metavar="ROLLOUTS", help="folder of rollouts (sft: of tasks)")],
    batch: Annotated[MaybePath, typer.Argument(help="folder of the batch that curriculum wrote")] = None,
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="model folder, checkpoint or hub id to go on from")],
    out: Annotated[Path, typer.Option("--out", "-o", help="checkpoint folder to write")],
    tasks: Annotated[
        MaybePath, typer.Option("--tasks", help="tasks of the rollouts, to refuse benchmark test data here too")
    ] = None,
    config: TrainConfig,
    options: Options,
) -> Account:
    """Train one round: a few GRPO steps from stored rollouts, nothing is generated.

    OUT is a model folder that transformers and vLLM load as it is; optimizer and schedule go on when --model is
    such a checkpoint. Step metrics and a record per rollout are written beside it as OUT.steps and OUT.records.
    """
    from toolsample_cli.train.stage import run

    account = run(source, batch, model=model, out=out, config=config, options=options, tasks=tasks)
    if int(os.environ.get("RANK", "0")):  # under torchrun one process speaks for all
        raise typer.Exit
    return account


@stage_command("eval-bfcl", EvalConfig)
def eval_bfcl(
    model: Annotated[
        str, typer.Argument(help="checkpoint: a model folder, a hub id, or the name a server knows it by")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write answers, verdicts and summary to")],
    config: EvalConfig,
    options: Options,
    entries: Annotated[
        MaybePath, typer.Option("--entries", help="your own questions: a file or folder in BFCL's format")
    ] = None,
    answers: Annotated[
        MaybePath, typer.Option("--answers", help="their ground truth, when not in possible_answer/ beside them")
    ] = None,
    base: Annotated[
        MaybeText,
        typer.Option("--compare", help="a base model to ask the same, for a paired test and the entries that flipped"),
    ] = None,
    base_protocol: Annotated[
        str, typer.Option("--compare-protocol", help="how the base model is asked (default: its native template)")
    ] = "hermes",
) -> Account:
    """Score a model on BFCL, greedily, by the official checker, which is installed apart on first use.

    --limit takes the first questions of each category and marks the result as partial. A rerun goes on where the
    last one stopped and asks failed questions again.
    """
    from toolsample_cli.bfcl.stage import Against, Sources, run

    against = Against(base, base_protocol) if base else None
    sources = Sources(entries, answers)
    return run(model, out=out, sources=sources, config=config, options=options, against=against)


def run(
    recipe: Annotated[Path, typer.Argument(help="recipe (TOML): [run], a table a stage, [arms.NAME.STAGE]")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of the run(s)")],
    arm: Annotated[str, typer.Option(help="only these arms, comma-separated")] = "",
    seed: Annotated[str, typer.Option(help="only these seeds, comma-separated")] = "",
    corpus: Annotated[MaybeText, typer.Option(help="overrides [run] corpus")] = None,
    model: Annotated[MaybeText, typer.Option(help="overrides [run] model")] = None,
    rounds: Annotated[MaybeInt, typer.Option(help="overrides [run] rounds")] = None,
    heldout: Annotated[MaybeText, typer.Option(help="overrides [run] heldout")] = None,
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
    from toolsample_cli.experiment import runner

    account = runner.run(planned, out, Options(dry_run=dry_run), lambda line: print(line, file=sys.stderr, flush=True))
    print(account.line(), file=sys.stderr)
    if json_ or dry_run:
        print(json.dumps(account.record(), indent=2 if dry_run else None, ensure_ascii=False))


def report(
    run: Annotated[Path, typer.Argument(help="folder that `toolsample run` or examples/round.sh filled")],
    out: Annotated[MaybePath, typer.Option("--out", "-o", help="the page [default: RUN/report.html]")] = None,
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
