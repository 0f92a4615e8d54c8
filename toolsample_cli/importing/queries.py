"""One question with its tools and calls in a row: xLAM, Hammer's forms of it, When2Call."""

from __future__ import annotations

import re
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Format, Reject
from toolsample_cli.importing.chats import read_gold_calls, read_message

_SECTION = r"\[BEGIN OF {0}\]\s*(.*?)\s*\[END OF {0}\]"
_TOOLS, _QUERY = (re.compile(_SECTION.format(name), re.DOTALL) for name in ("AVAILABLE TOOLS", "QUERY"))
_FENCE = re.compile(r"\s*```(?:json|plaintext)?\s*(.*?)\s*```\s*", re.DOTALL)
_CUE = "Generate API Request:"


def _has(row: dict[str, Any], *keys: str) -> bool:
    return all(key in row for key in keys)


def xlam_drafts(row: dict[str, Any], context: Context) -> Drafts:
    """xLAM: `query`, `tools`, `answers`, the latter two often JSON text."""
    extra = {key: value for key, value in row.items() if key not in ("query", "tools", "answers") and value is not None}
    if not isinstance(row["query"], str):
        raise Reject("bad_message", f"the query is {type(row['query']).__name__}, expected text")
    if not row["query"].strip():
        raise Reject("no_user", "the query is blank")
    yield Draft([{"role": "user", "content": row["query"]}], row["tools"], read_gold_calls(row["answers"]), extra=extra)


XLAM = Format(
    "xlam", "xLAM: query, tools, answers",
    lambda row: _has(row, "tools", "answers") and isinstance(row.get("query"), str), xlam_drafts,
)  # fmt: skip


def hammer_drafts(row: dict[str, Any], context: Context) -> Drafts:
    """Hammer's evaluation sets: the query is a dialogue whose last turn only announces the call."""
    messages = [read_message(turn) for turn in row["query"]]
    extra: dict[str, Any] = {key: row[key] for key in row if key not in ("query", "tools", "answers")}
    if messages and messages[-1]["role"] == "assistant":
        said = messages.pop()["content"].replace(_CUE, "").strip()
        extra |= {"said_before_calls": said} if said else {}
    if not any(message["role"] == "user" for message in messages):
        raise Reject("no_user", "nothing was asked")
    yield Draft(messages, row["tools"], read_gold_calls(row["answers"]), extra=extra)


HAMMER = Format(
    "hammer", "Hammer's evaluation sets: query as a dialogue, tools, answers (benchmark)",
    lambda row: _has(row, "tools", "answers") and isinstance(row.get("query"), list), hammer_drafts, test=True,
)  # fmt: skip


def masked_drafts(row: dict[str, Any], context: Context) -> Drafts:
    """Hammer's training rows: tools and query between markers of one instruction; `[]` means that no tool fits."""
    tools, query = (pattern.search(row["instruction"]) for pattern in (_TOOLS, _QUERY))
    if not tools or not query:
        raise Reject("bad_message", "the instruction lacks its tools or its query")
    answer = str(row.get("output") or "")
    fenced = _FENCE.fullmatch(answer)
    calls = read_gold_calls(fenced[1] if fenced else answer)
    yield Draft([{"role": "user", "content": query[1]}], tools[1], calls)


MASKED = Format(
    "hammer-masked", "Hammer's training rows: tools and query between markers of an instruction",
    lambda row: "[BEGIN OF AVAILABLE TOOLS]" in str(row.get("instruction", "")), masked_drafts,
)  # fmt: skip


def when2call_drafts(row: dict[str, Any], context: Context) -> Drafts:
    """When2Call: the right class decides which of the answers is gold."""
    kind, answers = row["correct_answer"], row.get("answers")
    if not isinstance(answers, dict) or not isinstance(answers.get(kind), str):
        raise Reject("no_gold", f"no answer of the class {kind!r}")
    skip = ("question", "tools", "orig_tools", "target_tool", "answers")
    extra = {key: value for key, value in row.items() if key not in skip and value is not None}
    draft = Draft([{"role": "user", "content": row["question"]}], row["tools"], category=str(kind), extra=extra)
    if kind == "tool_call":
        draft.calls = read_gold_calls(answers[kind])
    else:
        draft.response = answers[kind].strip()
    yield draft


WHEN2CALL = Format(
    "when2call", "When2Call: question, tools, the class of the right answer (benchmark)",
    lambda row: _has(row, "question", "tools", "correct_answer"), when2call_drafts, test=True,
)  # fmt: skip
