"""Stop strings for an engine of tokens: a completion ends with the token that completes one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toolsample_cli.models.chat import Chat

MARGIN = 8
"""Tokens decoded beyond a string's own bytes: a text's first token may be special to it, and tokens may be empty."""


class StopStrings:
    """The ends of `rows` growing completions as text. Every token counts at least a byte, so a short tail is enough."""

    def __init__(self, strings: Sequence[str], rows: int, chat: Chat) -> None:
        self.strings = tuple(strings)
        self.size = max((len(s.encode("utf-8", "replace")) for s in strings), default=0) + MARGIN
        self.tails: list[list[int]] = [[] for _ in range(rows)] if strings else []
        self.tokenizer = chat.tokenizer

    def reached(self, rows: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Give each of these rows its next token; a bool a row: whether a stop string now stands in its text."""
        for row, token in zip(rows, tokens, strict=True):
            self.tails[row] = [*self.tails[row][1 - self.size :], token]
        texts = self.tokenizer.batch_decode(
            [self.tails[row] for row in rows], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return torch.tensor([any(s in text for s in self.strings) for text in texts], dtype=torch.bool)
