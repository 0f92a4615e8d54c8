"""Official result and score trees, which the official commands load as if they had made them.

They know registered names only, so the trees stand under one that decodes alike: `Qwen/Qwen3-8B` for prompting,
`Qwen/Qwen3-8B-FC` for calls, a GPT for calls without dots in names. Calls are written in that model's form. An answer
that was refused (it would hang or run code) becomes one that is wrong, failed inference the official error text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from toolsample_cli.bfcl.categories import PREFIX, group_of, kind_of
from toolsample_cli.bfcl.judging import Answer, Judged
from toolsample_cli.bfcl.prompts import PROMPTING
from toolsample_cli.json_types import Json, Row
from toolsample_cli.shards.sealed import write_atomically

REGISTERED = {"text": "Qwen/Qwen3-8B", "dots": "Qwen/Qwen3-8B-FC", "underscores": "gpt-4o-2024-11-20-FC"}
"""Registered name by decoding: Python text, calls with dots in names, calls with underscores for dots."""

_BLOCK = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def form_of(protocol: str, underscores: bool = False) -> str:
    """Key of REGISTERED for a run: how its answers are written in the trees."""
    return "text" if protocol == PROMPTING else "underscores" if underscores else "dots"


def folder(out: Path, kind: str, version: str, form: str, category: str) -> Path:
    """`OUT/result/<name>/<group>` as the official release lays it out (v3 has no groups)."""
    place = out / kind / REGISTERED[form].replace("/", "_")
    return place / group_of(category) if version == "v4" else place


def write(out: Path, judged: Iterable[Judged], version: str, form: str) -> None:
    """Both trees from (row of entries, what was read) pairs; one file per category and tree."""
    results: dict[str, list[Row]] = {}
    scores: dict[str, list[Row]] = {}
    for row, answer in judged:
        category = row["category"]
        results.setdefault(category, []).append({"id": row["entry_id"], "result": result_of(row, answer, form)})
        scores.setdefault(category, []).append(row)
    for category, rows in results.items():
        name = f"{PREFIX[version]}_{category}_result.json"
        _lines(folder(out, "result", version, form, category) / name, rows)
    for category, rows in scores.items():
        name = f"{PREFIX[version]}_{category}_score.json"
        _lines(folder(out, "score", version, form, category) / name, _score_rows(rows, REGISTERED[form]))


def result_of(row: Row, answer: Answer, form: str) -> Json:
    """The `result` field: a text, or a list of turns with the texts of their steps."""
    kind = kind_of(row["category"])
    if row["valid"] is None:
        return f"Error during inference: {(row['error_type'] or '').removeprefix('inference: ')}"
    if (row["error_type"] or "").startswith(("refused:", "limit:")):
        return _wrong(kind, form)
    if isinstance(answer, list):
        return [[_text(step, form) for step in turn] for turn in answer]
    return _text(answer or {}, form)


def _wrong(kind: str, form: str) -> Json:
    if kind in ("multi_turn", "memory", "web_search"):
        return []
    if kind == "relevance":
        return "refused"
    return "[refused()]" if form == "text" else _calls([["refused", {}]], form)


def _text(answer: Row, form: str) -> Json:
    if "hermes" in answer:
        return answer["hermes"]
    if form == "text":
        return answer["text"]
    if answer["calls"]:
        return _calls(answer["calls"], form)
    # text that our reader took for no call must not be one for the official pattern
    return "" if _BLOCK.search(answer["text"]) else answer["text"]


def _calls(calls: Iterable[Sequence[Any]], form: str) -> Json:
    if form == "underscores":
        return [{name: json.dumps(arguments)} for name, arguments in calls]
    texts = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


def _score_rows(rows: list[Row], model: str) -> list[Row]:
    """The summary line and then the failed entries, as the official evaluator writes them."""
    right = [row for row in rows if official_verdict(row)]
    head = {"accuracy": len(right) / len(rows), "correct_count": len(right), "total_count": len(rows)}
    failed = [
        {
            "id": row["entry_id"],
            "model_name": model.replace("/", "_"),
            "test_category": row["category"],
            "valid": False,
            "error": [row["error_type"]],
            "error_type": row["error_type"],
            "model_result_raw": row["answer"],
            "model_result_decoded": json.loads(row["calls_json"]),
        }
        for row in rows
        if not official_verdict(row)
    ]
    return [head, *failed]


def official_verdict(row: Row) -> bool:
    """The verdict with failed inference as the official evaluator counts it: no call, hence a right refusal."""
    if row["valid"] is None:
        return kind_of(row["category"]) == "irrelevance"
    return bool(row["valid"])


def _lines(path: Path, rows: list[Row]) -> None:
    write_atomically(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode("ascii"))
