"""Questions in BFCL's format, from the official release or from a user's own files, ready to be asked and judged.

Own files: one JSON object per line (or one JSON list) with `id`, `question`, `function`; answers beside them in
`possible_answer/`, in another file, or as `ground_truth` in the row. The category is the file's name, else the id's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolsample_cli.bfcl.categories import category_of_file, category_of_id, kind_of, language_of
from toolsample_cli.errors import DataError, location
from toolsample_cli.json_types import Json, Row

CHECKER_TYPES = {
    "object": "dict", "number": "float", "double": "float", "str": "string", "int": "integer", "bool": "boolean",
    "list": "array",
}  # fmt: skip
"""JSON Schema's and Python's names in the words of the official checker."""

KNOWN_TYPES = ("string", "integer", "float", "boolean", "array", "tuple", "dict", "any")


@dataclass(frozen=True)
class Question:
    """One entry: `turns` are lists of messages, `functions` what the model is shown.

    `entry` and `truth` are None for official questions, which the scorer knows by category and id.
    """

    id: str
    category: str
    turns: list[list[Row]]
    functions: list[Row]
    entry: Row | None = None
    truth: Json = None
    official: Row = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """See `categories.kind_of`."""
        return kind_of(self.category)

    @property
    def all_functions(self) -> list[Row]:
        """Functions offered at any time of a dialogue."""
        held = self.official.get("missed_function", {}).values()
        return [*self.functions, *(function for functions in held for function in functions)]

    def request(self) -> Row:
        """What the scorer needs to know besides the answer."""
        request: Row = {
            "id": self.id,
            "category": self.category,
            "kind": self.kind,
            "language": language_of(self.category),
        }
        if self.entry is not None:
            request |= {"entry": self.entry, "truth": self.truth}
        return request


def official_question(category: str, row: Row) -> Question:
    """A question as the scorer's `entries` gives it."""
    return Question(row["id"], category, row["question"], row["function"], official=row)


def read_questions(path: Path, answers: Path | None = None) -> list[Question]:
    """Questions of a file, or of all files of a folder, in order; DataError names file and row.

    `answers`: file or folder with the ground truth, when it is not in `possible_answer/` beside the questions.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder", hint="--entries takes a file or folder in BFCL's format")
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in (".json", ".jsonl"))
    if not files:
        raise DataError(f"{path}: no .json or .jsonl file in it", hint="expected files such as BFCL_v4_multiple.json")
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for file in files:
        truths = _truths(file, answers)
        for row, value in _rows(file):
            question = _question(value, truths, file, row)
            if question.id in seen:
                raise DataError(f"{location(file, row=row)}: id {question.id!r} already occurs in {seen[question.id]}")
            seen[question.id] = location(file, row=row)
            questions.append(question)
    if not questions:
        raise DataError(f"{path}: no questions in it")
    return questions


def _rows(file: Path) -> Iterator[tuple[int, Row]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise DataError(f"{file}: not valid JSON: {error}") from None
        numbered = list(enumerate(values, 1))
    else:
        numbered = []
        for row, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    numbered.append((row, json.loads(line)))
                except ValueError as error:
                    raise DataError(f"{location(file, row=row)}: not valid JSON: {error}") from None
    for row, value in numbered:
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise DataError(f"{location(file, row=row)}: expected an object with an id", hint="is it in BFCL's format?")
        yield row, value


def _truths(file: Path, answers: Path | None) -> Row:
    """Id -> ground truth from the file of answers that belongs to a file of questions; {} when there is none."""
    if answers is not None and not answers.exists():
        raise DataError(
            f"{answers}: no such file or folder", hint="--answers takes the folder possible_answer or a file"
        )
    if answers is None:
        place = file.parent / "possible_answer" / file.name
    else:
        place = answers / file.name if answers.is_dir() else answers
    if not place.is_file():
        return {}
    truths = {}
    for row, value in _rows(place):
        if not isinstance(value.get("ground_truth"), list):
            raise DataError(f"{location(place, row=row, task=value['id'])}: no list `ground_truth`")
        truths[value["id"]] = value["ground_truth"]
    return truths


def _question(value: Row, truths: Row, file: Path, row: int) -> Question:
    where = location(file, row=row, task=value["id"])
    category = category_of_file(file.name) or category_of_id(value["id"])
    if category is None:
        raise DataError(
            f"{where}: neither the file's name nor the id gives its category",
            hint="name the file BFCL_v4_<category>.json or the ids <category>_<number>",
        )
    kind = kind_of(category)
    if kind not in ("ast", "relevance", "irrelevance"):
        raise DataError(f"{where}: {category} needs the official release's simulated tools, not --entries")
    turns, functions = value.get("question"), value.get("function")
    if isinstance(functions, dict):
        functions = [functions]
    if turns is None or not _is_turns(turns):
        raise DataError(f"{where}: `question` must be a list of turns, each a list of {{role, content}}")
    if not isinstance(functions, list) or not all(isinstance(f, dict) and f.get("name") for f in functions):
        raise DataError(f"{where}: `function` must be a list of {{name, description, parameters}}")
    truth = value.get("ground_truth", truths.get(value["id"]))
    if kind == "ast" and not _is_truth(truth):
        raise DataError(
            f"{where}: no ground truth [{{function: {{parameter: [accepted values]}}}}]",
            hint=f"expected possible_answer/{file.name} beside it, or --answers",
        )
    checked = [] if kind != "ast" else [_checker_form(function, where) for function in functions]
    return Question(value["id"], category, turns, functions, {"id": value["id"], "function": checked}, truth)


def _is_turns(turns: Json) -> bool:
    return (
        isinstance(turns, list)
        and bool(turns)
        and all(isinstance(turn, list) for turn in turns)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) for turn in turns for m in turn)
    )


def _is_truth(truth: Json) -> bool:
    return (
        isinstance(truth, list)
        and bool(truth)
        and all(isinstance(call, dict) and len(call) == 1 for call in truth)
        and all(isinstance(v, dict) and all(isinstance(o, list) for o in v.values()) for c in truth for v in c.values())
    )


def _checker_form(function: Row, where: str) -> Row:
    """The function in the words of the official checker, which stumbles over other words outside its own data."""
    parameters = deepcopy(function.get("parameters") or {})
    parameters.setdefault("properties", {})
    parameters.setdefault("required", [])
    for name, schema in parameters["properties"].items():
        label = f"{where}: parameter {name} of {function['name']}"
        _checker_type(schema, label)
        if schema["type"] in ("array", "tuple"):
            if not isinstance(schema.get("items"), dict):
                raise DataError(f"{label} is an array without `items`, which the official checker cannot judge")
            _checker_type(schema["items"], f"{label} (items)")
    return {**function, "parameters": parameters}


def _checker_type(schema: Any, label: str) -> None:
    named = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(named, str):
        named = CHECKER_TYPES.get(named, named)
    if named not in KNOWN_TYPES:
        raise DataError(f"{label} has the type {named!r}", hint=f"the official checker knows {', '.join(KNOWN_TYPES)}")
    schema["type"] = named
