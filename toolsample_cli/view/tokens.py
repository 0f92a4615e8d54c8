"""A completion token by token, with the logprob that it was drawn at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from toolsample_cli.errors import ToolsampleError
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat

STEPS = (-0.01, -0.1, -0.5, -1.5, -3.0)
"""Logprobs below which a token gets the next darker shade."""


def coloured_tokens(rollout: Row, folders: Sequence[Path]) -> list[Row]:
    """[{text, logprob, shade 0 to 5}] of a row of rollouts; empty without a tokenizer that gives its very text.

    The tokenizer is that of its policy, or of one of `folders`: models of the same run, since a policy may be pruned.
    """
    ids, logprobs = rollout["completion_ids"], rollout["logprobs"]
    if not ids or logprobs is None or len(logprobs) != len(ids):
        return []
    chats = (_chat(str(folder)) for folder in (rollout["policy"], *folders))
    chat = next((one for one in chats if one is not None and one.text(list(ids)) == rollout["text"]), None)
    if chat is None:
        return []
    pieces = _pieces(chat, list(ids))
    return [
        {"text": text, "logprob": f"{value:.3f}", "shade": sum(value < step for step in STEPS)}
        for text, value in zip(pieces, logprobs, strict=True)
    ]


def _pieces(chat: Chat, ids: list[int]) -> list[str]:
    """The text that each token adds; a character of several tokens stands at its last one."""
    pieces, before = [], ""
    for end in range(1, len(ids) + 1):
        text = str(chat.tokenizer.decode(ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if text.endswith("\ufffd"):
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        before = text
    return pieces


@lru_cache(maxsize=4)
def _chat(policy: str) -> Chat | None:
    if not Path(policy).is_dir():  # a hub id would be looked up over the network
        return None
    try:
        return Chat.load(policy)
    except ToolsampleError:
        return None
