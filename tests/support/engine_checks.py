"""What an engine must agree with: the model run plainly over the whole text."""

from __future__ import annotations

import torch

from support.tiny_model import task_row
from toolsample_cli.rollout.engines.token_sampling import log_distribution
from toolsample_cli.rollout.types import Request, rollout_seed

TOLERANCE = 2e-3


WORDS = ("weather", "alarm", "table", "stock", "mail", "city", "date", "price")


def wanted(chat, tasks: int = 12, n: int = 4) -> list[Request]:
    """Requests of very different prompt lengths."""
    requests = []
    for number in range(tasks):
        row = task_row(number, " ".join(WORDS[: 1 + number % 8] * (1 + number % 3)))
        prompt = chat.prompt_ids(row)
        requests += [
            Request(row["task_id"], prompt, s, rollout_seed(0, row["task_id"], 0, s), row["gold_text"])
            for s in range(n)
        ]
    return requests


def plain_logprobs(model, prompt, completion, sampling) -> list[float]:
    """The oracle: one forward pass of transformers over prompt and completion."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    logp = log_distribution(logits, sampling)
    return logp.gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()
