"""How a question is put to a model and how its answer is read: the native template, BFCL's own prompt, or RLLA.

Native: tools through the model's chat template, names as they are (dots too), types in JSON Schema. `prompting`: the
official system prompt, calls as a Python list. Any other protocol: its own reader and, for RLLA, its own prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolsample_cli.bfcl.entries import Question
from toolsample_cli.config import nearest
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.protocols import PROTOCOLS
from toolsample_cli.toolcall import MAX_CHARS, canonical
from toolsample_cli.toolspec import Unreadable, read_tools

PROMPTING = "prompting"
"""Name of the official prompting mode beside the protocols."""


def check_protocol(name: str) -> None:
    """ConfigError for a name that is neither a protocol nor `prompting`."""
    known = [*PROTOCOLS, PROMPTING]
    if name not in known:
        raise ConfigError(f"protocol = {name!r}: not one of {', '.join(known)}", hint=nearest(name, known))


def task_row(question: Question, protocol: str, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A question as a row of tasks, which `chat.Chat` renders. Raises DataError for unreadable functions.

    Official functions keep their order of keys, as their authors wrote them; a user's own are rendered as `import`
    would store them, so that a policy meets the prompts it was trained on.
    """
    template = protocol != PROMPTING and PROTOCOLS[protocol].tools_in_template
    try:
        tools = read_tools(question.functions) if template else []
    except Unreadable as error:
        raise DataError(f"{question.id}: its functions cannot be read: {error}") from None
    return {
        "task_id": question.id,
        # messages that carry their tools themselves are rendered verbatim
        "protocol": protocol if template else "rlla",
        "messages_json": canonical(list(messages)),
        "tools_json": canonical(tools) if question.entry is not None else json.dumps(tools, ensure_ascii=False),
        "demos_json": "[]",
    }


def read_answer(text: str, protocol: str) -> dict[str, Any]:
    """An answer as the scorer wants it: {"text"} for the official decoder, {"calls"} as its protocol reads it.

    Thoughts are cut off first in prompting mode, as the official handlers of thinking models do.
    """
    if protocol == PROMPTING:
        if "</think>" in text:
            text = text.rsplit("</think>", 1)[1].lstrip("\n")
        return {"text": text}
    parsed = PROTOCOLS[protocol].parse(text, "calls")
    return {"calls": [[call.name, call.arguments] for call in parsed.calls], "status": parsed.status}


def too_long(text: str) -> bool:
    """Whether an answer is beyond what is read at all; such an answer is wrong in every category."""
    return len(text) > MAX_CHARS
