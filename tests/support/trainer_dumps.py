"""Rollouts as other trainers write them: every key and type as their code writes it, filled from rollouts of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from toolsample_cli.bridges.label import Label
from toolsample_cli.models.chat import Chat, task_conversation


def _plain(chat: Chat, ids: list[int]) -> str:
    return chat.tokenizer.decode(ids, skip_special_tokens=True)


def verl_new(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """verl's v1 rollout dump."""
    return {
        "input": _plain(chat, rollout["prompt_ids"]), "output": _plain(chat, rollout["completion_ids"]),
        "gts": Label.of(task).text, "score": 1.0, "step": 3, "uid": f"0f-{number}_0_0",
    }  # fmt: skip


def verl_old(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """verl's v0 dump with the keys of the reward, without ground truth as before 0.6."""
    row = verl_new(chat, task, rollout, number)
    del row["gts"], row["uid"]
    return {**row, "acc": 1.0, "request_id": f"r{number}"}


def trl(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """TRL's completions file with what our reward logs."""
    return {
        "step": 1, "prompt": chat.prompt_text(task), "completion": _plain(chat, rollout["completion_ids"]),
        "toolsample_reward": 1.0, "task_id": task["task_id"], "exact": True,
        "completion_ids": rollout["completion_ids"], "advantage": 0.5,
    }  # fmt: skip


def trl_bare(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """TRL's completions file under another reward, with messages."""
    turns = [{"role": str(turn["role"]), "content": turn["content"]} for turn in task_conversation(task).messages]
    said = [{"role": "assistant", "content": _plain(chat, rollout["completion_ids"])}]
    return {"step": 1, "prompt": turns, "completion": said, "mine": 1.0, "advantage": 0.5}


def traces(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """An episode of verifiers 0.4 trained by tokens."""
    turns = task_conversation(task).messages
    before, own = rollout["prompt_ids"][:-3], rollout["prompt_ids"][-3:]
    nodes = [
        {"parent": at - 1 if at else None, "message": turn, "sampled": False, "token_ids": before if not at else [],
         "mask": [False] * (0 if at else len(before)), "logprobs": []}
        for at, turn in enumerate(turns)
    ]  # fmt: skip
    ids = rollout["completion_ids"]
    nodes.append(
        {"parent": len(turns) - 1, "message": {"role": "assistant", "content": rollout["text"]}, "sampled": True,
         "token_ids": [*own, *ids], "mask": [False] * 3 + [True] * len(ids), "logprobs": rollout["logprobs"]}
    )  # fmt: skip
    calls = [{"finish_reason": rollout["finish_reason"], "usage": {}, "sampling": {}}]
    trace = {"nodes": nodes, "calls": calls, "tools": [], "rewards": {}, "metrics": {}}
    data = {"id": task["task_id"], "label": Label.of(task).text}
    return {"task": {"type": "t", "data": data, "key": "0", "hash": "0"}, "ok": True, "errors": [], "traces": [trace]}


def nemo_rl(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """NeMo-RL's training data: a step of one sample, padded to the right."""
    prompt, ids = rollout["prompt_ids"], rollout["completion_ids"]
    turns = [{"role": t["role"], "content": t["content"]} for t in task_conversation(task).messages]
    return {
        "content": [[*turns, {"role": "assistant", "content": rollout["text"]}]], "rewards": [1.0],
        "token_ids": [[*prompt, *ids, 0, 0]], "token_loss_mask": [[0] * len(prompt) + [1] * len(ids) + [0, 0]],
        "generation_logprobs": [[0.0] * len(prompt) + rollout["logprobs"] + [0.0, 0.0]],
        "advantages": [[0.0]], "input_lengths": [len(prompt) + len(ids)],
    }  # fmt: skip


def openai_batch(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """OpenAI's batch output, one choice a line."""
    message = {"role": "assistant", "content": rollout["text"]}
    body = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": rollout["finish_reason"]}]}
    return {"id": f"b{number}", "custom_id": f"{task['task_id']}#{rollout['sample']}", "response": {"body": body}}


def lines(chat: Chat, task: dict, rollout: dict, number: int) -> dict:
    """Plain lines."""
    kept = ("task_id", "sample", "text", "finish_reason", "prompt_ids", "completion_ids", "logprobs")
    return {key: rollout[key] for key in kept}


DUMPS: dict[str, tuple[Callable[[Chat, dict, dict, int], dict], str]] = {
    "verl_new": (verl_new, "jsonl"),
    "verl_old": (verl_old, "jsonl"),
    "trl": (trl, "parquet"),
    "trl_bare": (trl_bare, "parquet"),
    "traces": (traces, "jsonl"),
    "nemo_rl": (nemo_rl, "jsonl"),
    "openai_batch": (openai_batch, "jsonl"),
    "lines": (lines, "jsonl"),
}


def dump(name: str, path: Path, chat: Chat, tasks: list[dict], rollouts: list[dict]) -> Path:
    """Write the rollouts in this form; `path` gets the suffix of the form."""
    write, suffix = DUMPS[name]
    by_id = {task["task_id"]: task for task in tasks}
    rows = [write(chat, by_id[one["task_id"]], one, number) for number, one in enumerate(rollouts)]
    path = path.with_suffix(f".{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == "parquet":
        pl.DataFrame(rows).write_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
