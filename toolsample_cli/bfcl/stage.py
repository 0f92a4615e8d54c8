"""A model's BFCL score: questions asked, replies kept as they come, judged by the official checker, summed up.

OUT holds `answers.jsonl` (what a killed run goes on from), `entries/` (one row a question), `result/` and `score/` (the
official trees), `summary.json`, and `base/` with the same of a model that is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    single_turn,
    toolrl_prompt,
)
from toolsample_cli.bfcl.aggregate import formats, tallies
from toolsample_cli.bfcl.answering import open_model
from toolsample_cli.bfcl.checker import Scorer
from toolsample_cli.bfcl.judging import Judged, judge_all, unread_calls
from toolsample_cli.bfcl.questions import Question, official_question, read_questions
from toolsample_cli.config import EvalConfig
from toolsample_cli.config.settings import as_record
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.hashing import digest
from toolsample_cli.rollout.types import check_start
from toolsample_cli.shards import schema
from toolsample_cli.shards.journal import Journal
from toolsample_cli.shards.reading import refuse_nested, write_json
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Account, Options

NOT_SETTINGS = ("seconds", "megabytes", "concurrency", "scorer_python")
"""Knobs that do not change an answer, so that a rerun may change them."""


@dataclass(frozen=True)
class Sources:
    """Where the questions come from: the official release (`entries` None), or a user's own files."""

    entries: Path | None = None
    answers: Path | None = None


@dataclass(frozen=True)
class Against:
    """A base model to compare with, and how it is asked: natively unless told otherwise."""

    model: str
    protocol: str = "hermes"


def run(
    model: str, *, out: Path, sources: Sources, config: EvalConfig, options: Options, against: Against | None = None
) -> Account:
    """Ask and judge; see `toolsample eval-bfcl --help`."""
    out = Path(out)
    prompts.check_protocol(config.protocol)
    if against:
        prompts.check_protocol(against.protocol)
    options.refuse_slice("eval-bfcl", "name other --categories on each machine")
    refuse_nested(out)
    account = Account("eval-bfcl", wrote=None if options.dry_run else out)
    evaluation = Evaluation(sources, config, options)
    if options.dry_run:
        for name in (model, *([against.model] if against else [])):
            check_start(config.backend, name)
        account.rows_in = len(evaluation.questions())
        account.extra["would ask"] = f"{account.rows_in} questions"
        return account
    record, rows = evaluation.evaluate(model, out, config)
    account.rows_in, account.rows_out = len(rows), record["all_entries"]["n"]
    account.dropped = {"failed inference": record["errors"]} if record["errors"] else {}
    account.report = results.table(record)
    if against:
        _, base = evaluation.evaluate(against.model, out / "base", replace(config, protocol=against.protocol))
        record["compared"] = {"base": against.model, "base_protocol": against.protocol, **_compared(rows, base)}
        write_json(out / "summary.json", record)
        account.report += "\n\n" + paired.table(record["compared"])
    account.extra.update(accuracy=record["all_entries"]["accuracy"], summary=record)
    return account


def _compared(rows: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    mine, theirs = ({row["entry_id"]: (row["category"], row["valid"]) for row in some} for some in (rows, base))
    return paired.compare(mine, theirs)


class Evaluation:
    """One set of questions for one or two models; every model gets a scorer process of its own."""

    def __init__(self, sources: Sources, config: EvalConfig, options: Options) -> None:
        self.sources, self.config, self.options = sources, config, options
        ranked = sources.entries is None and "memory_kv" in self.runnable()
        self.place = environment.provide(config.version, config.scorer_python, memory=ranked)

    def _scorer(self) -> Scorer:
        return Scorer(self.place, seconds=self.config.seconds, megabytes=self.config.megabytes)

    def questions(self, scorer: Scorer | None = None) -> list[Question]:
        """The questions of this run, in order."""
        if scorer is None:
            with self._scorer() as own:
                return self.questions(own)
        if self.sources.entries is not None:
            questions = read_questions(self.sources.entries, self.sources.answers)
        else:
            questions = [
                official_question(name, row)
                for name in self.runnable()
                for row in scorer.entries(name)
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

    def evaluate(self, model: str, out: Path, config: EvalConfig) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Ask one model, judge its replies, write everything below `out`: (summary, rows of entries)."""
        with self._scorer() as scorer:
            self.options.phase("reading questions")
            questions = self.questions(scorer)
            self.options.expect(len(questions))
            if not scorer.parsers and config.protocol == prompts.PROMPTING:
                _refuse_languages(questions)
            identity = _identity(model, questions, config, self.options)
            with Journal(out / "answers.jsonl", identity, overwrite=self.options.overwrite) as journal:
                self._ask(model, scorer, questions, journal, config)
                self.options.phase("judging")
                judged = judge_all(scorer, questions, journal.records, config.protocol)
                unread = unread_calls(judged, journal.records, config.protocol)
        return self._write(out, judged, identity, config, unread), [row for row, _ in judged]

    def _ask(self, model: str, scorer: Scorer, questions: list[Question], journal: Journal, config: EvalConfig) -> None:
        if all(journal.answered(question.id) for question in questions):
            return
        like = Path(config.prompt_like) if config.prompt_like else None
        style = prompts.Style(
            config.protocol, lambda question: _prompted(scorer, question), toolrl_prompt.template(like)
        )
        self.options.phase("loading the model")
        asked = open_model(model, config.protocol, config)
        self.options.phase("asking")
        try:
            single = [question for question in questions if question.kind not in ("multi_turn", "memory")]
            asked_of = [style.prompt(q.id, style.first(q), q.functions) for q in single]
            single_turn.ask_all(asked, asked_of, journal, self.options.tick)
            longer = [question for question in questions if question.kind == "multi_turn"]
            constants = scorer.ask("constants")
            dialogues = [dialogue.Dialogue(q, style, constants, list(q.functions)) for q in longer]
            dialogue.hold_all(asked, scorer, dialogues, journal, self.options.tick)
            remembered = [question for question in questions if question.kind == "memory"]
            memory_tasks.Memories(asked, scorer, style, constants, journal).hold_all(remembered, self.options.tick)
        finally:
            asked.close()

    def _write(
        self, out: Path, judged: list[Judged], identity: Mapping[str, Any], config: EvalConfig, unread: int
    ) -> dict[str, Any]:
        frame = schema.frame(schema.ENTRIES, [row for row, _ in judged])
        counts = tallies(zip(frame["category"], frame["valid"], strict=True))
        varied = frame.filter(pl.col("category") == categories.FORMATS)
        # verdicts follow from replies, so they are written anew; the journal is what a rerun keeps
        with Output(out / "entries", schema.ENTRIES, identity, overwrite=True) as output:
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
        record = results.summary(counts, config.version, complete=whole, facts=facts)
        write_json(out / "summary.json", record)
        return record


def _prompted(scorer: Scorer, question: Question) -> list[dict[str, Any]]:
    shown = {"id": question.id, "question": question.turns, "function": question.functions}
    return scorer.ask("prompted", entry=shown)


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


def _identity(model: str, questions: list[Question], config: EvalConfig, options: Options) -> dict[str, Any]:
    asked = digest([[q.id, q.turns, q.functions, q.truth] for q in questions])
    settings = {key: value for key, value in as_record(config).items() if key not in NOT_SETTINGS}
    return {"model": str(model), **settings, **options.selection(), "questions": asked}
