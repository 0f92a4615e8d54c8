"""verl's reward manager with special tokens kept, for policies whose calls are marked by one (Mistral's [TOOL_CALLS]).

    reward.reward_manager.source=importlib reward.reward_manager.name=SpecialTokenManager
    reward.reward_manager.module.path=THIS FILE

verl's own managers decode answers without special tokens, so that every right answer of such a policy scores as wrong.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from toolsample_cli.models.chat import Chat


class WholeDecoder:
    """A tokenizer that decodes an answer as `toolsample` does: special tokens kept, the end token dropped."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._chat = tokenizer, Chat(tokenizer)

    def decode(self, ids: Any, **_: Any) -> str:
        """The answer's text; `ids` are a list or a tensor."""
        return self._chat.text([int(one) for one in ids])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class SpecialTokenManager(NaiveRewardManager):
    """The naive manager over a WholeDecoder."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, *more: Any, **named: Any) -> None:
        super().__init__(config, WholeDecoder(tokenizer), compute_score, *more, **named)
