"""A model's BFCL score: questions asked, replies kept as they come, judged by the official checker, summed up.

OUT holds `answers.jsonl` (what a killed run goes on from), `entries/` (one row per question), `result/` and `score/`
(the official trees), `summary.json`, and `base/` with the same of a model that is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from toolsample_cli.bfcl import (
    categories,
    dialogue,
    environment,
    memory_tasks,
    official_files,
    paired,
    prompts,
    results,
    toolrl_prompt,
)
from toolsample_cli.bfcl.aggregate import formats, tallies
from toolsample_cli.bfcl.answering import ask_all, check_model_settings, open_model
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.judging import Judged, judge_all, judgeable, unread_calls
from toolsample_cli.bfcl.questions import Question, official_question, read_questions
from toolsample_cli.config import EvalConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest
from toolsample_cli.json_types import Row
from toolsample_cli.models.digests import model_digest
from toolsample_cli.models.prompting import trained_prompting
from toolsample_cli.rollout.types import check_start
from toolsample_cli.shards import schema
from toolsample_cli.shards.disk import check_room
from toolsample_cli.shards.journal import Journal
from toolsample_cli.shards.locks import FolderLock
from toolsample_cli.shards.reading import refuse_nested
from toolsample_cli.shards.sealed import write_json
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options

NOT_SETTINGS = (
    *("seconds", "megabytes", "scorer_python"),
    *("base_url", "api_key_env", "concurrency", "retries", "timeout"),
)
"""Knobs that do not change an answer, so that a rerun may change them."""


@dataclass(frozen=True)
class QuestionSource:
    """Where the questions come from: the official release (`entries` None), or a user's own files."""

    entries: Path | None = None
    answers: Path | None = None


@dataclass(frozen=True)
class Against:
    """A base model to compare with, and how it is asked: natively unless told otherwise."""

    model: str
    protocol: str = "hermes"


def run(
    model: str,
    *,
    out: Path,
    sources: QuestionSource,
    config: EvalConfig,
    options: Options,
    against: Against | None = None,
) -> Account:
    """Ask and judge; see `toolsample eval-bfcl --help`."""
    out = Path(out) if Path(out).name else Path(out).resolve()
    config, system = _as_trained(model, config)
    prompts.check_protocol(config.protocol)
    if against:
        prompts.check_protocol(against.protocol)
    check_model_settings(config)
    options.refuse_slice("eval-bfcl", "name other --categories on each machine")
    refuse_nested(out)
    account = Account("eval-bfcl", wrote=None if options.dry_run else out)
    account.extra["protocol"] = config.protocol
    evaluation = Evaluation(sources, config, options, system)
    if options.dry_run:
        for name in (model, *([against.model] if against else [])):
            check_start(config.backend, name)
        account.rows_in = evaluation.planned()
        account.extra["would ask"] = f"{account.rows_in} questions"
        if not evaluation.installed:
            account.extra["would install"] = f"bfcl-eval {environment.RELEASES[config.version]}"
        return account
    with FolderLock(out, out.parent / f"{out.name}.tmp", enabled=options.lock):
        check_room(out, 0, what="an evaluation")
        return _evaluate(evaluation, model, out, config, account, against)


def _evaluate(
    evaluation: Evaluation, model: str, out: Path, config: EvalConfig, account: Account, against: Against | None
) -> Account:
    mine = evaluation.evaluate(model, out, config)
    account.rows_in, account.rows_out = len(mine.rows), mine.summary["all_entries"]["n"]
    account.dropped = {"failed inference": mine.summary["errors"]} if mine.summary["errors"] else {}
    account.report = results.evaluation_table(mine.summary)
    if against:
        base = evaluation.evaluate(against.model, out / "base", replace(config, protocol=against.protocol))
        compared = paired.compare_verdicts(mine.verdicts(), base.verdicts())
        mine.summary["compared"] = {"base": against.model, "base_protocol": against.protocol, **compared}
        write_json(out / "summary.json", mine.summary)
        account.report += "\n\n" + paired.comparison_table(mine.summary["compared"])
    account.extra.update(accuracy=mine.summary["all_entries"]["accuracy"], summary=mine.summary)
    account.exit_code = 1 if mine.rows and account.rows_out == 0 else 0
    return account


def _as_trained(model: str, config: EvalConfig) -> tuple[EvalConfig, str | None]:
    """The config with `auto` resolved, and RLLA's system prompt where the checkpoint records one to be used."""
    if config.protocol != "auto":
        return config, None
    trained = trained_prompting(model)
    if trained is None:
        return replace(config, protocol="hermes"), None
    known = replace(config, protocol=trained.protocol, self_examples=config.self_examples or trained.self_examples)
    return known, None if config.prompt_like else trained.system


class Evaluated(NamedTuple):
    """What one model's evaluation left: summary.json and the rows of entries."""

    summary: Row
    rows: list[Row]

    def verdicts(self) -> dict[str, tuple[str, bool | None]]:
        """Entry id -> (category, verdict)."""
        return {row["entry_id"]: (row["category"], row["valid"]) for row in self.rows}


class Evaluation:
    """One set of questions for one or two models; every model gets a checker process of its own."""

    def __init__(self, sources: QuestionSource, config: EvalConfig, options: Options, system: str | None) -> None:
        self.sources, self.config, self.options, self.system = sources, config, options, system
        self.ranked = sources.entries is None and "memory_kv" in self.runnable()

    @property
    def installed(self) -> bool:
        """Whether the checker's environment is there."""
        return environment.ready(self.config.version, self.config.scorer_python, self.ranked)

    def _checker(self) -> Checker:
        """A checker of this release, whose environment is made when it is not there."""
        config = self.config
        if not self.installed:
            self.options.phase("installing the checker")
        place = environment.provide(config.version, config.scorer_python, memory=self.ranked)
        return Checker(place, seconds=config.seconds, megabytes=config.megabytes)

    def planned(self) -> int:
        """How many questions would be asked, as far as that can be told without the official package."""
        if self.sources.entries is not None:
            return len(_selected(read_questions(self.sources.entries, self.sources.answers), self.options))
        if (wanted := self.options.wanted_ids()) is not None:
            return len(wanted)
        sizes = [categories.SIZES[self.config.version][name] for name in self.runnable()]
        return sum(size if self.options.limit is None else min(size, self.options.limit) for size in sizes)

    def questions(self, checker: Checker) -> list[Question]:
        """The questions of this run, in order."""
        if self.sources.entries is not None:
            questions = read_questions(self.sources.entries, self.sources.answers)
        else:
            questions = [
                official_question(name, row)
                for name in self.runnable()
                for row in checker.entries(name)
                if not memory_tasks.is_conversation(row["id"])
            ]
        return _selected(questions, self.options)

    def runnable(self) -> list[str]:
        """Selected categories that can be run here."""
        selected = categories.select(self.config.categories, self.config.version)
        return [name for name in selected if name not in self.not_run()]

    def not_run(self) -> dict[str, str]:
        """Selected categories that are not, and why."""
        if self.sources.entries is not None:
            return {}
        selected = categories.select(self.config.categories, self.config.version)
        reasons = dict(categories.NOT_RUN)
        if self.config.protocol != prompts.PROMPTING:
            reasons[categories.FORMATS] = "is about the official prompt: --protocol prompting"
        return {name: reasons[name] for name in selected if name in reasons}

    def evaluate(self, model: str, out: Path, config: EvalConfig) -> Evaluated:
        """Ask one model, judge its replies, write everything below `out`."""
        with self._checker() as checker:
            self.options.phase("reading questions")
            questions = self.questions(checker)
            self.options.expect(len(questions))
            if not checker.parsers and config.protocol == prompts.PROMPTING:
                _refuse_languages(questions)
            identity = _identity(model, questions, config, self.options)
            journal = Journal(out / "answers.jsonl", identity, overwrite=self.options.overwrite, usable=judgeable)
            with journal:
                self._ask(model, checker, questions, journal, config)
                self.options.phase("judging")
                judged = judge_all(checker, questions, journal.records, config.protocol)
                unread = unread_calls(judged, journal.records, config.protocol)
        return Evaluated(self._write(out, judged, identity, config, unread), [row for row, _ in judged])

    def _ask(
        self, model: str, checker: Checker, questions: list[Question], journal: Journal, config: EvalConfig
    ) -> None:
        if all(journal.answered(question.id) for question in questions):
            return
        rlla = self.system or toolrl_prompt.template(Path(config.prompt_like) if config.prompt_like else None)
        style = prompts.Style(config.protocol, checker.prompted, rlla)
        self.options.phase("loading the model")
        asked = open_model(model, config.protocol, config)
        self.options.phase("asking")
        try:
            single = [question for question in questions if question.kind not in ("multi_turn", "memory")]
            ask_all(
                asked, [style.prompt(q.id, style.first(q), q.functions) for q in single], journal, self.options.tick
            )
            longer = [question for question in questions if question.kind == "multi_turn"]
            constants = checker.ask("constants")
            dialogues = [dialogue.Dialogue(q, style, constants, list(q.functions)) for q in longer]
            dialogue.hold_all(asked, checker, dialogues, journal, self.options.tick)
            remembered = [question for question in questions if question.kind == "memory"]
            memory_tasks.Memories(asked, checker, style, constants, journal).hold_all(remembered, self.options.tick)
        finally:
            asked.close()

    def _write(
        self, out: Path, judged: list[Judged], identity: Mapping[str, object], config: EvalConfig, unread: int
    ) -> Row:
        frame = schema.frame(schema.ENTRIES, [row for row, _ in judged])
        counts = tallies(zip(frame["category"], frame["valid"], strict=True))
        varied = frame.filter(pl.col("category") == categories.FORMATS)
        # verdicts follow from replies, so they are written anew; the journal is what a rerun keeps
        with Output(out / "entries", schema.ENTRIES, identity, overwrite=True, lock=self.options.lock) as output:
            output.write(0, frame)
            for name, tally in counts.items():
                output.counts.update({f"{name} right": tally.right, f"{name} judged": tally.n})
            output.finish()
        form = official_files.form_of(config.protocol, config.backend == "openai" and config.dots == "underscore")
        official_files.write(out, judged, config.version, form)
        own = self.sources.entries is not None
        whole = not own and self.options.limit is None and self.options.ids is None
        facts = {
            "model": identity["model"],
            "version": config.version,
            "evaluator": f"bfcl-eval {environment.RELEASES[config.version]}",
            "protocol": config.protocol,
            "official_name": official_files.REGISTERED[form],
            "questions": identity["questions"],
            "not_run": self.not_run(),
            "unread_calls": unread,
            "format_sensitivity": formats(zip(varied["entry_id"], varied["valid"], strict=True)),
        }
        record = results.evaluation_summary(counts, config.version, complete=whole, facts=facts)
        write_json(out / "summary.json", record)
        return record


def _refuse_languages(questions: list[Question]) -> None:
    other = {question.category for question in questions if categories.language_of(question.category) != "python"}
    if other:
        raise ConfigError(
            f"{', '.join(sorted(other))}: the reader of Java and JavaScript text has no build for this Python",
            hint="--scorer-python takes a Python 3.10 to 3.12; or leave these categories out",
        )


def _selected(questions: list[Question], options: Options) -> list[Question]:
    """Those of --ids, then the first --limit of each category, so that a limit does not drop whole categories."""
    wanted = options.wanted_ids()
    if wanted is not None:
        unknown = wanted - {question.id for question in questions}
        if unknown:
            raise DataError(f"{options.ids}: no such question: {min(unknown)}", hint="ids are those of the entries")
        questions = [question for question in questions if question.id in wanted]
    if options.limit is None:
        return questions
    taken: dict[str, int] = {}
    kept = []
    for question in questions:
        taken[question.category] = taken.get(question.category, 0) + 1
        if taken[question.category] <= options.limit:
            kept.append(question)
    return kept


def _identity(model: str, questions: list[Question], config: EvalConfig, options: Options) -> Row:
    asked = digest([[q.id, q.turns, q.functions, q.truth] for q in questions])
    settings = {key: value for key, value in as_record(config).items() if key not in NOT_SETTINGS}
    weights = {} if config.backend == "openai" else {"model_digest": model_digest(model)}
    return {"model": str(model), **weights, **settings, **options.selection(), "questions": asked}
