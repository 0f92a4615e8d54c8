"""A model's BFCL score: questions asked, answers kept as they come, judged by the official checker, summed up.

OUT holds `answers.jsonl` (what a killed run goes on from), `entries/` (one row a question) and `summary.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolsample_cli import schema
from toolsample_cli.bfcl import answering, ask, categories, environment, tables
from toolsample_cli.bfcl.aggregate import tallies
from toolsample_cli.bfcl.entries import Question, official_question, read_questions
from toolsample_cli.bfcl.journal import Journal
from toolsample_cli.bfcl.judging import judge_all
from toolsample_cli.bfcl.scorer import Scorer
from toolsample_cli.config import EvalConfig, as_record, digest
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.output import Output
from toolsample_cli.shards import write_json
from toolsample_cli.stages.common import Account, Options


@dataclass(frozen=True)
class Sources:
    """Where the questions come from: the official release (`entries` None), or a user's own files."""

    entries: Path | None = None
    answers: Path | None = None


def run(model: str, *, out: Path, sources: Sources, config: EvalConfig, options: Options) -> Account:
    """Ask and judge; see `toolsample eval-bfcl --help`."""
    out = Path(out)
    ask.check_protocol(config.protocol)
    if options.part.count > 1:
        raise ConfigError("--shard is not for eval-bfcl", hint="name other --categories on each machine")
    account = Account("eval-bfcl", wrote=None if options.dry_run else out)
    place = environment.provide(config.version, config.scorer_python)
    with Scorer(place, seconds=config.seconds, megabytes=config.megabytes) as scorer:
        questions = _questions(scorer, sources, config, options)
        account.rows_in = len(questions)
        if options.dry_run:
            account.extra["would ask"] = f"{len(questions)} questions"
            return account
        identity = _identity(model, questions, config, options)
        with Journal(out / "answers.jsonl", identity, overwrite=options.overwrite) as journal:
            _answer(model, scorer, questions, journal, config, options)
            rows = judge_all(scorer, questions, journal.records, config.protocol)
    record = _write(out, rows, identity, config, options, complete=sources.entries is None)
    account.rows_out = record["all_entries"]["n"]
    account.dropped = {"failed inference": record["errors"]} if record["errors"] else {}
    account.extra.update(accuracy=record["all_entries"]["accuracy"], summary=record)
    account.report = tables.table(record)
    return account


def _questions(scorer: Scorer, sources: Sources, config: EvalConfig, options: Options) -> list[Question]:
    if sources.entries is not None:
        questions = read_questions(sources.entries, sources.answers)
    else:
        questions = [
            official_question(name, row)
            for name in categories.select(config.categories, config.version)
            for row in scorer.entries(name)
        ]
    wanted = options.wanted_ids()
    if wanted is not None:
        unknown = wanted - {question.id for question in questions}
        if unknown:
            raise DataError(f"{options.ids}: no such question: {min(unknown)}", hint="ids are those of the entries")
        questions = [question for question in questions if question.id in wanted]
    return _first(questions, options.limit)


def _first(questions: list[Question], limit: int | None) -> list[Question]:
    """The first `limit` questions of each category, so that a limit does not drop whole categories."""
    if limit is None:
        return questions
    taken: dict[str, int] = {}
    kept = []
    for question in questions:
        taken[question.category] = taken.get(question.category, 0) + 1
        if taken[question.category] <= limit:
            kept.append(question)
    return kept


def _identity(model: str, questions: list[Question], config: EvalConfig, options: Options) -> dict[str, Any]:
    asked = digest([[q.id, q.turns, q.functions, q.truth] for q in questions])
    settings = {key: value for key, value in as_record(config).items() if key not in ("seconds", "megabytes")}
    return {"model": str(model), **settings, **options.selection(), "questions": asked}


def _answer(
    model: str, scorer: Scorer, questions: list[Question], journal: Journal, config: EvalConfig, options: Options
) -> None:
    if all(journal.answered(question.id) for question in questions):
        return
    rows = []
    for question in questions:
        messages = question.turns[0]
        if config.protocol == ask.PROMPTING:
            shown = {"id": question.id, "question": question.turns, "function": question.functions}
            messages = scorer.ask("prompted", entry=shown)
        rows.append(ask.task_row(question, config.protocol, messages))
    engine = answering.open_engine(model, config)
    try:
        answering.answer_all(engine, rows, journal, config, options.tick)
    finally:
        engine.close()


def _write(
    out: Path, rows: list[dict], identity: Mapping[str, Any], config: EvalConfig, options: Options, *, complete: bool
) -> dict[str, Any]:
    frame = schema.frame(schema.ENTRIES, rows)
    # verdicts follow from answers, so they are written anew; the journal is what a rerun keeps
    with Output(out / "entries", schema.ENTRIES, identity, overwrite=True) as output:
        output.write(0, frame)
        counts = tallies(zip(frame["category"], frame["valid"], strict=True))
        for name, tally in counts.items():
            output.counts.update({f"{name} right": tally.right, f"{name} judged": tally.n})
        output.finish()
    whole = complete and options.limit is None and options.ids is None
    facts = {
        "model": identity["model"],
        "version": config.version,
        "evaluator": f"bfcl-eval {environment.RELEASES[config.version]}",
        "protocol": config.protocol,
        "questions": identity["questions"],
    }
    record = tables.summary(counts, config.version, complete=whole, facts=facts)
    write_json(out / "summary.json", record)
    return record
