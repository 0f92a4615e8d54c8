"""Single-turn questions to a model, its replies to the journal; a rerun asks only what has no answer yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolsample_cli.bfcl.answering import Model
from toolsample_cli.bfcl.prompts import Prompt
from toolsample_cli.shards.journal import Journal


def ask_all(model: Model, prompts: Sequence[Prompt], journal: Journal, tick: Callable[[int], None]) -> None:
    """Fill the journal with {id, prompt, text, finish_reason} or {id, prompt, error} for every prompt."""
    for group in model.plan(prompts):
        missing = {prompt.key for prompt in group if not journal.answered(prompt.key)}
        if not missing:
            tick(len(group))
            continue
        for reply in model.answer(group):
            tick(1)
            if reply.key in missing:
                journal.add({"id": reply.key, "prompt": reply.prompt, **reply.record()})
