"""The table of raw formats, and which of them a row is in."""

from __future__ import annotations

from typing import Any

from toolsample_cli.importing import (
    bfcl_questions,
    messages,
    own_tasks,
    queries,
    rlla_prompts,
    seal_tools,
    sharegpt,
    toolace,
)
from toolsample_cli.importing.base import Context, Draft, Format, Reject

__all__ = ["FORMATS", "Context", "Draft", "Format", "Reject", "detect"]

FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        own_tasks.FORMAT,
        rlla_prompts.FORMAT,
        rlla_prompts.API_BANK,
        messages.FORMAT,
        queries.XLAM,
        queries.HAMMER,
        queries.MASKED,
        queries.WHEN2CALL,
        toolace.FORMAT,
        sharegpt.FORMAT,
        sharegpt.GLAIVE,
        bfcl_questions.FORMAT,
        seal_tools.FORMAT,
    )
}
"""By name, in the order in which rows are tried."""


def detect(row: Any) -> Format | None:
    """The first format whose keys this row has, or None."""
    if not isinstance(row, dict):
        return None
    return next((item for item in FORMATS.values() if item.looks_like(row)), None)
