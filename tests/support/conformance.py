"""What every engine owes, read from the shards that the stage wrote with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from toolsample_cli.rollout.engines.token_sampling import log_distribution
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder

TOLERANCE = 2e-3
SAMPLINGS = {"T=1": {}, "T=0.7": {"temperature": 0.7}, "top-p": {"top_p": 0.8}}


def plain_logprobs(model: Any, prompt: list[int], completion: list[int], sampling: Any) -> list[float]:
    """The oracle: one forward pass of transformers over prompt and completion."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    logp = log_distribution(logits, sampling)
    return logp.gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()


def confirmed(tasks: Path, rollouts: Path, network: Any, chat: Any, sampling: Any) -> dict[str, Any]:
    """Asserts that prompt ids are the template's and that ids decode to the text; the largest gap of a logprob.

    `gap` is None when no row has logprobs; `exact` counts rows whose ids are the engine's own.
    """
    wanted = {row["task_id"]: row for row in open_folder(tasks, schema.TASKS).load().iter_rows(named=True)}
    folder = open_folder(rollouts, schema.ROLLOUTS)
    gaps, exact, rows = [], 0, list(folder.load().iter_rows(named=True))
    assert rows and {row["task_id"] for row in rows} == set(wanted)
    for row in rows:
        assert row["error"] is None, row["error"]
        assert row["prompt_ids"] == chat.prompt_ids(wanted[row["task_id"]])
        ids = row["completion_ids"]
        assert chat.text(ids) == row["text"], (chat.text(ids), row["text"])
        exact += not row["ids_from_text"]
        if row["logprobs"] is not None:
            expected = plain_logprobs(network, row["prompt_ids"], ids, sampling)
            gaps.append(max(abs(a - b) for a, b in zip(expected, row["logprobs"], strict=True)))
    reasons = sorted({row["finish_reason"] for row in rows})
    return {"gap": max(gaps, default=None), "with_logprobs": len(gaps), "exact": exact, "rows": len(rows),
            "reasons": reasons, "convention": folder.config["logprobs"]}  # fmt: skip
