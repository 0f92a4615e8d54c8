"""A model's answers to single-turn questions: prompts through the chat template, greedy, batch by batch, resumable.

The engine is the one `rollout` uses. Batches are cut over all questions, so that a rerun generates an unfinished batch
anew with the same neighbours and gets the same bits. A failed inference is an error, never an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from toolsample_cli.backends import Request, Sampling, open_backend
from toolsample_cli.bfcl.journal import Journal
from toolsample_cli.config import EvalConfig, RolloutConfig


def open_engine(model: str, config: EvalConfig) -> Any:
    """The engine that answers, at temperature 0."""
    settings = RolloutConfig(
        n=1,
        temperature=0.0,
        max_new_tokens=config.max_new_tokens,
        dtype=config.dtype,
        device=config.device,
        batch_tokens=config.batch_tokens,
    )
    return open_backend(config.backend, model, settings)


def answer_all(
    engine: Any, rows: Iterable[dict[str, Any]], journal: Journal, config: EvalConfig, tick: Callable[[int], None]
) -> None:
    """Fill the journal with {id, prompt, answer, finish_reason} or {id, prompt, error} for every row of tasks."""
    chat = engine.chat
    prompts = {row["task_id"]: chat.prompt_text(row) for row in rows}
    requests, longest = [], engine.max_prompt_tokens
    for entry_id, prompt in prompts.items():
        ids = chat.encode(prompt)
        if longest is not None and len(ids) > longest:
            if not journal.answered(entry_id):
                why = f"prompt of {len(ids)} tokens, the model takes {longest}"
                journal.add({"id": entry_id, "prompt": prompt, "error": f"too_long: {why}"})
                tick(1)
        else:
            requests.append(Request(entry_id, ids, 0, 0))
    sampling = Sampling(temperature=0.0, max_new_tokens=config.max_new_tokens, stop_ids=chat.end_ids)
    batches = engine.batches(requests, sampling) if hasattr(engine, "batches") else [requests]
    for batch in batches:
        missing = {request.key for request in batch if not journal.answered(request.key)}
        if not missing:
            tick(len(batch))
            continue
        for done in engine.generate(batch, sampling):
            tick(1)
            if done.key in missing:
                journal.add(_record(done, prompts[done.key], chat))


def _record(done: Any, prompt: str, chat: Any) -> dict[str, Any]:
    if done.error is not None:
        return {"id": done.key, "prompt": prompt, "error": done.error}
    text = done.text if done.text is not None else chat.text(list(done.completion_ids))
    return {"id": done.key, "prompt": prompt, "answer": text, "finish_reason": done.finish_reason}
