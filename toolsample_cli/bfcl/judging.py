"""Replies to rows of entries: read by their protocol, judged by the official checker, kept with the verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from toolsample_cli.bfcl.checker import Scorer
from toolsample_cli.bfcl.prompts import meant_calls, read_answer, too_long
from toolsample_cli.bfcl.questions import Question
from toolsample_cli.toolcalls.call import canonical

Judged = tuple[dict[str, Any], Any]
"""A row of entries and the answer as it was read (a list of turns for a dialogue, None without one)."""


def judge_all(
    scorer: Scorer, questions: Iterable[Question], records: Mapping[str, dict[str, Any]], protocol: str
) -> list[Judged]:
    """Every question in order. One without a record, or with an error, has no verdict: it is no refusal."""
    return [
        judge(scorer, question, records.get(question.id) or {"error": "not asked"}, protocol) for question in questions
    ]


def judge(scorer: Scorer, question: Question, record: Mapping[str, Any], protocol: str) -> Judged:
    """One question's row and its answer as read."""
    row = {
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
        return {**row, "error_type": storable(f"inference: {record['error']}")}, None
    turns, offered = record.get("turns"), question.all_functions
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
        return {**row, "valid": False, "error_type": fault}, None
    verdict = scorer.judge(asked)
    calls = [{"name": name, "arguments": arguments} for call in verdict["calls"] for name, arguments in call.items()]
    found = {"valid": verdict["valid"], "error_type": verdict.get("error_type"), "calls_json": canonical(calls)}
    return {**row, **found}, answer


def unread_calls(judged: Iterable[Judged], records: Mapping[str, dict[str, Any]], protocol: str) -> int:
    """Replies without any call to the official reader that seem to mean one, read leniently (single-turn)."""
    replies = (records[row["entry_id"]] for row, answer in judged if answer and row["calls_json"] == "[]")
    return sum(meant_calls(reply, protocol) > 0 for reply in replies if "text" in reply)


def storable(text: str) -> str:
    """The text with lone surrogates replaced, which no column can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
