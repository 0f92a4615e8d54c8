"""Answers to rows of entries: read by its protocol, judged by the official checker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from toolsample_cli.bfcl.ask import read_answer, too_long
from toolsample_cli.bfcl.entries import Question
from toolsample_cli.bfcl.scorer import Scorer
from toolsample_cli.toolcall import canonical


def judge_all(
    scorer: Scorer,
    questions: Iterable[Question],
    records: dict[str, dict[str, Any]],
    protocol: str,
    tick: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """One row of entries a question, in order. A question without a record, or with an error, has no verdict."""
    rows = []
    for question in questions:
        record = records.get(question.id) or {"error": "not asked"}
        row = {
            "entry_id": question.id,
            "category": question.category,
            "prompt": _storable(record.get("prompt") or ""),
            "answer": None,
            "calls_json": "[]",
            "finish_reason": record.get("finish_reason"),
        }
        if record.get("error") is not None:
            row |= {"valid": None, "error_type": _storable(f"inference: {record['error']}")}
        else:
            row |= _verdict(scorer, question, record["answer"], protocol)
            row["answer"] = _storable(record["answer"])
        rows.append(row)
        tick(1)
    return rows


def _verdict(scorer: Scorer, question: Question, text: str, protocol: str) -> dict[str, Any]:
    if too_long(text):
        return {"valid": False, "error_type": "refused:too_long"}
    verdict = scorer.judge({**question.request(), "answer": read_answer(text, protocol)})
    calls = [{"name": name, "arguments": arguments} for call in verdict["calls"] for name, arguments in call.items()]
    return {"valid": verdict["valid"], "error_type": verdict.get("error_type"), "calls_json": canonical(calls)}


def _storable(text: str) -> str:
    """The text with lone surrogates replaced, which no column can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
