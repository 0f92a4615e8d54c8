"""BFCL's questions with their possible answers. Benchmark data: always split `test`.

A possible answer allows several values; the first one becomes the gold, all of them stay in `extra_json`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from toolsample_cli.importing.base import Context, Draft, Drafts, Format, Reject
from toolsample_cli.importing.chats import read_message
from toolsample_cli.importing.raw_rows import raw_rows
from toolsample_cli.toolcalls.call import Call

_CATEGORY = re.compile(r"(.+?)_\d+(?:-\d+)*$")
_FILE = re.compile(r"BFCL_v\d+_(.+?)\.json.*")
_OMIT = object()


def _looks_like(row: dict[str, Any]) -> bool:
    return isinstance(row.get("question"), list) and "id" in row and ("function" in row or "initial_config" in row)


def is_answer(row: Any) -> bool:
    """Whether a row is a possible answer rather than a question."""
    return isinstance(row, dict) and "ground_truth" in row and "id" in row and "question" not in row


def answers_beside(path: Path) -> Path | None:
    """The file of possible answers that belongs to a file of questions, where BFCL keeps it."""
    for folder in (path.parent, path.parent.parent):
        found = folder / "possible_answer" / path.name
        if found.is_file() and found != path:
            return found
    return None


def read_answers(path: Path) -> dict[str, Any]:
    """{id: ground truth} of a file of possible answers."""
    return {row.value["id"]: row.value["ground_truth"] for row in raw_rows(path) if is_answer(row.value)}


def _drafts(row: dict[str, Any], context: Context) -> Drafts:
    """One draft for a single-turn question. Raises Reject for multi-turn ones and for those without an answer."""
    identity = str(row["id"])
    match = _FILE.fullmatch(context.file) or _CATEGORY.fullmatch(identity)
    category = match[1] if match else ""
    question = row["question"]
    turns = question if question and isinstance(question[0], list) else [question]
    if len(turns) != 1 or "initial_config" in row or "function" not in row:
        raise Reject("multi_turn", f"{identity}: multi-turn and agentic questions have no single gold answer")
    extra: dict[str, Any] = {"id": identity}
    draft = Draft([read_message(message) for message in turns[0]], row["function"], category=category, extra=extra)
    truth = row.get("ground_truth", context.answers.get(identity))
    if truth is None and "irrelevance" not in category:
        raise Reject("no_gold", f"{identity}: no possible answer for it (looked for possible_answer/ beside the file)")
    if truth:
        extra["possible_answer"] = truth
        draft.calls = [_call(item, identity) for item in truth]
    yield draft


def _call(item: Any, identity: str) -> Call:
    if not isinstance(item, dict) or len(item) != 1:
        raise Reject("bad_gold", f"{identity}: a possible answer is not one {{function: arguments}}")
    ((name, arguments),) = item.items()
    chosen = {key: _first(values) for key, values in (arguments or {}).items()}
    return Call(name, {key: value for key, value in chosen.items() if value is not _OMIT})


def _first(values: Any) -> Any:
    """The first allowed value; an empty text in front means that the argument may be left out, and it is."""
    if not isinstance(values, list):
        return _plain(values)
    if not values or (values[0] == "" and len(values) > 1):
        return _OMIT
    return _plain(values[0])


def _plain(value: Any) -> Any:
    """Objects inside a value hold lists of allowed values again."""
    if isinstance(value, dict):
        inner = {key: _first(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item is not _OMIT}
    return [_plain(item) if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value


FORMAT = Format("bfcl", "BFCL's questions, possible answers beside them (benchmark)", _looks_like, _drafts, test=True)
