"""Which split a row belongs to, as its source says: in the row, or in the name of its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from toolsample_cli.json_types import Row

_NAMES = {
    "train": "train training",
    "validation": "validation valid val dev development eval evaluation",
    "test": "test testing heldout held_out held-out",
}
_SPLIT = {word: name for name, words in _NAMES.items() for word in words.split()}
_ABOUT = ("extra_info", "metadata", "meta")
"""Where rows say something about themselves; verl's key first."""
_FILE = re.compile(r"(train|training|validation|valid|val|dev|test)(?=[-_.]|$)")


def known_split(name: object) -> str:
    """train, validation or test for a name that sources use; "" for any other."""
    return _SPLIT.get(name.strip().lower(), "") if isinstance(name, str) else ""


def split_of_row(row: Row) -> str:
    """The split that a raw row names itself, at its top or in what it says about itself; "" when it names none."""
    found = known_split(row.get("split"))
    for key in _ABOUT:
        found = found or known_split(_opened(row.get(key)).get("split"))
    return found


def _opened(value: object) -> Row:
    """An object, or the object in a JSON text, as tables store it; {} for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def split_of_file(path: Path) -> str:
    """The split in a file's name, as in `test-00000-of-00001.parquet`; "" without one."""
    match = _FILE.match(path.name.lower())
    return known_split(match[1]) if match else ""
