"""`export`: tasks, right answers or pairs as another trainer reads them, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from toolsample_cli.bridges.answer_rows import ANSWER_FORMS, AnswerForm, Unfit
from toolsample_cli.bridges.answers import Sources, answers
from toolsample_cli.bridges.prompts import PromptWriter, refuse_without_tools
from toolsample_cli.bridges.task_rows import TASK_FORMS, VERDICT, Subject, TaskForm, prompt_of
from toolsample_cli.config.bridge_knobs import ExportConfig
from toolsample_cli.errors import ConfigError, DataError, StageFailure, location
from toolsample_cli.inspection.row_expression import first_line, row_expression
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat, tools_in_template
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import in_words
from toolsample_cli.shards.reading import Folder, open_folder
from toolsample_cli.shards.sealed import sync_folder
from toolsample_cli.stage import Account, Options

SHOWN = 3
"""Ids of differing prompts that the closing line names."""
PART = 4096
"""Rows of a Parquet file that are put together at a time."""


@dataclass(frozen=True)
class Paths:
    """Folders to read; groups give the verdicts, rollouts and scores the answers."""

    tasks: Path
    groups: Path | None = None
    rollouts: Path | None = None
    scores: Path | None = None


@dataclass
class Checked:
    """The prompts compared with ours, and the ids of those that the trainer would tokenise otherwise."""

    prompts: int = 0
    differing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Run:
    """What all rows of one export share; `counts` gets `in` and everything left out, by reason."""

    tasks: Folder
    writer: PromptWriter | None
    verdicts: dict[str, Row]
    wanted: frozenset[str] | None
    config: ExportConfig
    limit: int | None
    counts: Counter[str]
    checked: Checked


def run(paths: Paths, out: Path, model: str | None, config: ExportConfig, options: Options) -> Account:
    """Write `out` in the form `config.to`; see `toolsample export --help`.

    Raises ConfigError for a place of the tools that the form cannot read, DataError for rows marked as test data.
    """
    options.refuse_slice("export", "export the whole folder")
    account = Account("export", wrote=None if options.dry_run else Path(out))
    tasks = open_folder(paths.tasks, schema.TASKS)
    options.expect(tasks.rows)
    groups = open_folder(paths.groups, schema.GROUPS) if paths.groups else None
    form = TASK_FORMS.get(config.to) or ANSWER_FORMS[config.to]
    place = _place(form, config)
    shared = _Run(
        tasks, _writer(tasks, place, model, config), _verdicts(groups), _wanted(tasks, groups, config, options),
        config, options.limit, Counter(), Checked(),
    )  # fmt: skip
    if isinstance(form, TaskForm):
        rows = _task_rows(form, place, shared, options)
    else:
        rows = _answer_rows(form, _sources(paths, tasks), shared)
    suffix = form.suffix if isinstance(form, TaskForm) else ".jsonl"
    target = _target(Path(out), suffix, options)
    account.rows_out = sum(1 for _ in rows) if options.dry_run else _write(target, rows)
    _tell(account, shared)
    return account


def _tell(account: Account, shared: _Run) -> None:
    counts, checked, config = shared.counts, shared.checked, shared.config
    account.rows_in = counts.pop("in", 0)
    account.dropped = {reason: count for reason, count in counts.items() if count}
    account.extra["form"] = config.to
    if checked.prompts:
        account.extra["prompts equal to ours"] = f"{checked.prompts - len(checked.differing)} of {checked.prompts}"
    if checked.differing:
        more = " ..." if checked.differing[SHOWN:] else ""
        account.extra["prompts that would differ"] = ", ".join(checked.differing[:SHOWN]) + more
    if config.to == "verl" and shared.writer is not None:
        lost = [name for name in _protocols(shared.tasks) if not shared.writer.keeps_calls(name)]
        if lost:
            account.extra["special tokens"] = (
                f"verl's decoding loses the calls of {', '.join(lost)}; use verl_reward_manager.py"
            )


def _place(form: TaskForm | AnswerForm, config: ExportConfig) -> str:
    if isinstance(form, AnswerForm):
        if config.prompt != "auto":
            raise ConfigError(f"--prompt is not for {form.name}", hint="right answers have one place for the tools")
        return "rendered" if form.needs_model else "messages"
    place = form.prompt if config.prompt == "auto" else config.prompt
    if place not in form.places:
        raise ConfigError(
            f"prompt = {config.prompt!r}: {form.name} cannot read tools there", hint=f"one of {', '.join(form.places)}"
        )
    return place


def _protocols(tasks: Folder) -> list[str]:
    return sorted(tasks.load(["protocol"])["protocol"].unique())


def _writer(tasks: Folder, place: str, model: str | None, config: ExportConfig) -> PromptWriter | None:
    """The tokenizer that renders or counts prompts; None where nothing is to be rendered."""
    by_template = [name for name in _protocols(tasks) if tools_in_template(name)]
    if model is None:
        if place == "rendered" or (place == "system" and by_template):
            raise ConfigError(
                f"--to {config.to} with the tools {place} needs --model: the chat template decides how they look",
                hint="give the model that will be trained; its tokenizer is enough",
            )
        if config.max_prompt_tokens:
            raise ConfigError("--max-prompt-tokens needs --model", hint="its tokenizer counts the tokens")
        return None
    chat = Chat.load(model)
    if by_template:
        refuse_without_tools(chat)
    return PromptWriter(chat)


def _verdicts(groups: Folder | None) -> dict[str, Row]:
    if groups is None:
        return {}
    frame = groups.load(["slot_id", *VERDICT])
    return {row.pop("slot_id"): row for row in frame.iter_rows(named=True)}


def _wanted(tasks: Folder, groups: Folder | None, config: ExportConfig, options: Options) -> frozenset[str] | None:
    """Ids that --ids and --where choose; None for all. A condition sees a task's columns and those of its group."""
    listed = options.wanted_ids()
    if not config.where:
        return listed
    condition = row_expression(config.where, "--where")
    verdicts = groups.load() if groups else None
    chosen: set[str] = set()
    for _, frame in tasks.frames():
        joined = frame.with_columns(slot_id=pl.coalesce("parent_task_id", "task_id"))
        if verdicts is not None:
            fresh = ["slot_id", *(name for name in verdicts.columns if name not in joined.columns)]
            joined = joined.join(verdicts.select(fresh), on="slot_id", how="left", maintain_order="left")
        try:
            chosen.update(joined.filter(condition)["task_id"])
        except pl.exceptions.PolarsError as error:
            hint = None if groups else "--groups adds the columns of groups"
            raise ConfigError(f"--where: {first_line(error)}", hint=hint) from None
    return frozenset(chosen) if listed is None else listed & chosen


def _sources(paths: Paths, tasks: Folder) -> Sources:
    if paths.rollouts is None or paths.scores is None:
        raise ConfigError("right answers come from --rollouts and --scores", hint="give both, of the same round")
    return Sources(tasks, open_folder(paths.rollouts, schema.ROLLOUTS), open_folder(paths.scores, schema.SCORES))


def _task_rows(form: TaskForm, place: str, shared: _Run, options: Options) -> Iterator[Row]:
    counts, config, written = shared.counts, shared.config, 0
    for shard, frame in shared.tasks.frames():
        for number, task in enumerate(frame.iter_rows(named=True), 1):
            if shared.limit is not None and written >= shared.limit:
                return
            options.tick(1)
            if shared.wanted is not None and task["task_id"] not in shared.wanted:
                continue
            counts["in"] += 1
            if task["split"] == "test" and not config.allow_test_data:
                raise DataError(
                    f"{location(shard.path, row=number, task=task['task_id'])}: benchmark test data",
                    hint="--allow-test-data exports it all the same, or import it with another --split",
                )
            prompt = prompt_of(task, form, place, shared.writer)
            if prompt is None:
                counts["no_place_for_tools"] += 1
            elif config.max_prompt_tokens and prompt.tokens > config.max_prompt_tokens:
                counts["prompt_too_long"] += 1
            else:
                if shared.writer is not None:
                    shared.checked.prompts += 1
                    shared.checked.differing.extend([] if prompt.same else [task["task_id"]])
                verdict = shared.verdicts.get(task["parent_task_id"] or task["task_id"])
                if shared.verdicts and verdict is None:
                    verdict = dict.fromkeys(VERDICT)
                yield form.row(Subject(task, prompt, config.data_source, verdict or {}))
                written += 1


def _answer_rows(form: AnswerForm, sources: Sources, shared: _Run) -> Iterator[Row]:
    limit, written, writer = shared.config.max_prompt_tokens, 0, shared.writer
    for answer in answers(sources, form.paired, shared.config, shared.wanted, shared.counts):
        if shared.limit is not None and written >= shared.limit:
            return
        if limit and writer is not None and len(writer.chat.prompt_ids(answer.task)) > limit:
            shared.counts["prompt_too_long"] += 1
            continue
        row = form.row(answer, writer)
        if isinstance(row, Unfit):
            shared.counts[row.reason] += 1
            continue
        yield row
        written += 1


def _target(out: Path, suffix: str, options: Options) -> Path:
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder", hint=f"give a file, as in {out / ('train' + suffix)}")
    if out.suffix not in {suffix, ".jsonl"}:
        hint = "Parquet would invent null arguments in nested values" if out.suffix == ".parquet" else None
        raise ConfigError(f"{out}: this form is written as {suffix}", hint=hint)
    if out.exists() and not (options.overwrite or options.dry_run):
        raise ConfigError(f"{out}: already exists", hint="--overwrite replaces it")
    return out


def _write(out: Path, rows: Iterator[Row]) -> int:
    """All rows into one file, which appears only when it is complete."""
    beside = out.parent / f".{out.name}.tmp"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        count = _parquet(beside, rows) if out.suffix == ".parquet" else _lines(beside, rows)
        with beside.open("rb") as handle:
            os.fsync(handle.fileno())
        beside.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise StageFailure(f"{out}: could not be written: {in_words(error, out.parent)}") from error
    finally:
        beside.unlink(missing_ok=True)
    return count


def _lines(file: Path, rows: Iterator[Row]) -> int:
    count = 0
    with file.open("w", encoding="utf-8") as handle:
        for row in rows:
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            handle.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
            count += 1
    return count


def _parquet(file: Path, rows: Iterator[Row]) -> int:
    """Rows whose values are texts and flat structs of fixed keys; `vertical_relaxed` joins parts that are all null."""
    frames: list[pl.DataFrame] = []
    part: list[Row] = []
    for row in rows:
        part.append(row)
        if len(part) == PART:
            frames.append(pl.DataFrame(part, infer_schema_length=None))
            part = []
    if part or not frames:
        frames.append(pl.DataFrame(part, infer_schema_length=None))
    whole = pl.concat(frames, how="vertical_relaxed")
    whole.write_parquet(file, compression="zstd")
    return whole.height
