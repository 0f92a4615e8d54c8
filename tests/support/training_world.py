"""A tiny model and random rollouts of it as shards on disk, for the tests of training."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from support.tiny_model import tiny_model
from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options


def load(path: Path, attention: str = "eager"):
    """The model in float32 for plain use."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)


def plain_logprobs(model, prompt, completion, temperature: float = 1.0) -> np.ndarray:
    """Logprob of each completion token, one sequence at a time, by the model's own forward: the slowest oracle."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].float() / temperature
    logp = logits.log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
    return np.array([logp[at, token].item() for at, token in zip(places, completion, strict=True)], dtype=np.float32)


def stopped_at(step: int) -> Options:
    """Options under which Ctrl-C comes after so many optimizer steps."""
    seen = itertools.count(1)

    def tick(rows: int) -> None:
        if next(seen) == step:
            raise KeyboardInterrupt

    return Options(tick=tick)


def rollout_rows(model, *, groups: int, samples: int, seed: int = 0, noise: float = 0.0, vocabulary: int = 400):
    """Random prompts and completions with the model's own logprobs (plus noise: off-policy)."""
    random = np.random.default_rng(seed)
    rows = []
    for task in range(groups):
        prompt = random.integers(0, vocabulary, random.integers(3, 40)).tolist()
        for sample in range(samples):
            completion = random.integers(0, vocabulary, random.integers(1, 30)).tolist()
            logprobs = plain_logprobs(model, prompt, completion) + random.normal(0, noise, len(completion))
            rows.append(
                {
                    "rollout_id": f"t{task:03d}/0/{sample}",
                    "task_id": f"t{task:03d}",
                    "round": 0,
                    "sample": sample,
                    "policy": "tiny",
                    "backend": "test",
                    "seed": sample,
                    "prompt_ids": prompt,
                    "completion_ids": completion,
                    "logprobs": logprobs.astype(np.float32).tolist(),
                    "finish_reason": "stop",
                    "ids_from_text": False,
                    "text": "",
                    "error": None,
                }
            )
    return rows


def batch_rows(rollouts: list[dict], seed: int = 1) -> list[dict]:
    """A reward for each rollout, components that fit it, no bonus."""
    random = np.random.default_rng(seed)
    rows = []
    for rollout in rollouts:
        name, key, value = random.random(3)
        rows.append(
            {
                "rollout_id": rollout["rollout_id"],
                "task_id": rollout["task_id"],
                "reward": 1 - 3 + 6 * (name + key + value) / 3,
                "base_reward": 1 - 3 + 6 * (name + key + value) / 3,
                "bonus": 0.0,
                "format": 1.0,
                "name": name,
                "key": key,
                "value": value,
                "exact": bool(random.random() < 0.3),
                "weight_name": 1.0,
                "weight_key": 1.0,
                "weight_value": 1.0,
            }
        )
    return rows


def write(folder: Path, kind: schema.Kind, rows: list[dict], *, shards: int = 1, config: dict | None = None) -> Path:
    """Rows as a finished folder of shards, whole groups a shard."""
    with Output(folder, kind, config or {"temperature": 1.0, "max_new_tokens": 32}) as output:
        tasks = sorted({row["task_id"] for row in rows})
        for number in range(shards):
            mine = set(tasks[number::shards])
            output.write(number, schema.frame(kind, [row for row in rows if row["task_id"] in mine]))
        output.finish()
    return folder


def world(folder: Path, *, groups: int = 6, samples: int = 4, noise: float = 0.0, **overrides):
    """Model, rollouts and batch on disk; returns their paths."""
    path = tiny_model(folder, **overrides)
    rows = rollout_rows(load(path), groups=groups, samples=samples, noise=noise)
    rollouts = write(folder / "rollouts", schema.ROLLOUTS, rows, shards=2)
    batch = write(folder / "batch", schema.BATCH, batch_rows(rows))
    return path, rollouts, batch
