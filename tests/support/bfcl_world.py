"""A handful of questions in BFCL's format, written here, with right and wrong answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOOK = {
    "name": "rooms.book",
    "description": "Book a meeting room.",
    "parameters": {
        "type": "dict",
        "properties": {
            "room": {"type": "string", "description": "Name of the room."},
            "seats": {"type": "integer", "description": "Seats needed."},
            "hours": {"type": "float", "description": "How long, in hours."},
            "extras": {"type": "array", "items": {"type": "string"}, "description": "Equipment."},
        },
        "required": ["room", "seats"],
    },
}
MAIL = {
    "name": "send_mail",
    "description": "Send a mail.",
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "urgent": {"type": "boolean"}},
        "required": ["to"],
    },
}
BOOKED = {"rooms.book": {"room": ["Oak"], "seats": [6], "hours": [1.5, ""], "extras": [["beamer"], ""]}}
MAILED = {"send_mail": {"to": ["Ana"], "urgent": [True, ""]}}


def question(entry_id: str, text: str, functions: list[dict]) -> dict[str, Any]:
    """One row of a file of questions."""
    return {"id": entry_id, "question": [[{"role": "user", "content": text}]], "function": functions}


def write_world(folder: Path) -> Path:
    """Three files of questions with their answers in possible_answer/."""
    files = {
        "simple_python": [(question("simple_python_0", "Book Oak for 6.", [BOOK]), [BOOKED])],
        "parallel_multiple": [(question("parallel_multiple_0", "Book Oak, mail Ana.", [MAIL, BOOK]), [BOOKED, MAILED])],
        "irrelevance": [(question("irrelevance_0", "What is the capital of Peru?", [MAIL]), None)],
    }  # fmt: skip
    (folder / "possible_answer").mkdir(parents=True)
    for category, rows in files.items():
        name = f"BFCL_v4_{category}.json"
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row, _ in rows), encoding="utf-8")
        truths = [{"id": row["id"], "ground_truth": truth} for row, truth in rows if truth]
        if truths:
            text = "".join(json.dumps(truth) + "\n" for truth in truths)
            (folder / "possible_answer" / name).write_text(text, encoding="utf-8")
    return folder
