"""Replies to rows of entries: read by their protocol, judged by the official checker, kept with the verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.prompts import likely_calls, read_answer, too_long
from toolsample_cli.bfcl.questions import Question
from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import canonical

Answer = Row | list[list[Row]] | None
"""An answer as it was read: one, or a list of turns of steps for a dialogue, or None without one."""


class Judged(NamedTuple):
    """A row of entries and the answer as it was read."""

    row: Row
    answer: Answer


class _Step(msgspec.Struct):
    """One reply to a prompt, as the journal keeps it."""

    text: str
    finish_reason: str | None = None
    calls: list[tuple[str, Row]] | None = None
    underscores: bool = False


class _Single(_Step):
    id: str = ""
    prompt: str = ""


class _Dialogue(msgspec.Struct):
    id: str
    turns: list[list[_Step]]
    prompt: str = ""
    fault: str | None = None


class _Error(msgspec.Struct):
    id: str
    error: str
    prompt: str = ""


def judgeable(record: Row) -> bool:
    """Whether a line of the journal can be judged; one that cannot is asked again."""
    kind = _Error if record.get("error") is not None else _Dialogue if "turns" in record else _Single
    try:
        msgspec.convert(record, kind)
    except msgspec.ValidationError:
        return False
    return True


def judge_all(
    checker: Checker, questions: Iterable[Question], records: Mapping[str, Row], protocol: str
) -> list[Judged]:
    """Every question in order. One without a record, or with an error, has no verdict: it is no refusal."""
    return [
        judge(checker, question, records.get(question.id) or {"error": "not asked"}, protocol) for question in questions
    ]


def judge(checker: Checker, question: Question, record: Row, protocol: str) -> Judged:
    """One question's row and its answer as read."""
    row: Row = {
        "entry_id": question.id,
        "category": question.category,
        "prompt": storable(record.get("prompt") or ""),
        "answer": None,
        "calls_json": "[]",
        "valid": None,
        "error_type": None,
        "finish_reason": record.get("finish_reason"),
    }
    if record.get("error") is not None:
        return Judged({**row, "error_type": storable(f"inference: {record['error']}")}, None)
    turns, offered = record.get("turns"), question.all_functions
    answer: Answer
    if turns is None:
        row["answer"] = storable(record["text"])
        fault = "refused:too_long" if too_long(record) else None
        answer = None if fault else read_answer(record, protocol, offered)
        asked = {**question.request(), "answer": answer}
    else:
        row["answer"] = json.dumps([[storable(step["text"]) for step in turn] for turn in turns], ensure_ascii=False)
        row["finish_reason"] = turns[-1][-1]["finish_reason"] if turns and turns[-1] else None
        fault = record.get("fault")
        answer = None if fault else [[read_answer(step, protocol, offered) for step in turn] for turn in turns]
        asked = {**question.request(), "turns": answer}
    if fault:
        return Judged({**row, "valid": False, "error_type": fault}, None)
    verdict = checker.judge(asked)
    calls = [{"name": name, "arguments": arguments} for call in verdict["calls"] for name, arguments in call.items()]
    found = {"valid": verdict["valid"], "error_type": verdict.get("error_type"), "calls_json": canonical(calls)}
    return Judged({**row, **found}, answer)


def unread_calls(judged: Iterable[Judged], records: Mapping[str, Row], protocol: str) -> int:
    """Replies without any call to the official reader that seem to mean one, read leniently (single-turn)."""
    replies = (records[row["entry_id"]] for row, answer in judged if answer and row["calls_json"] == "[]")
    return sum(likely_calls(reply, protocol) > 0 for reply in replies if "text" in reply)


def storable(text: str) -> str:
    """The text with lone surrogates replaced, which no column can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
