"""Runs under an interpreter that has verl: our exports through verl's own dataset, agent loops, managers and dumps.

python verl_check.py FOLDER     reads FOLDER/job.json, writes FOLDER/found.json and FOLDER/dump/
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from toolsample_cli.bridges import trainer_reward, verl_reward_manager
from toolsample_cli.bridges.verl_agent_loop import ToolsampleAgentLoop

LENGTH = 512


class Replay:
    """A server that answers with recorded tokens and notes what it was asked."""

    def __init__(self) -> None:
        self.next: list[int] = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        return SimpleNamespace(
            token_ids=self.next, log_probs=None, routed_experts=None, num_preempted=0, extra_fields={}, stop_reason=None
        )


def dataset(file: str, tokenizer) -> RLHFDataset:
    config = {"max_prompt_length": 1024, "filter_overlong_prompts": True, "prompt_key": "prompt"}
    return RLHFDataset([file], tokenizer, OmegaConf.create(config))


async def prompts(cls, rows: RLHFDataset, rollouts: list[dict], tokenizer) -> list[list[list[int]]]:
    """(prompt ids, response ids) of every row through a loop of verl."""
    config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"prompt_length": 1024, "response_length": LENGTH}}, "data": {}}
    )
    server, found = Replay(), []
    for at, rollout in enumerate(rollouts):
        server.next = rollout["completion_ids"]
        loop = cls(
            trainer_config=DictConfigWrap(config), server_manager=server, tokenizer=tokenizer, processor=None,
            dataset_cls=RLHFDataset, data_config=DictConfigWrap(config.data),
        )  # fmt: skip
        row = {key: value[0] for key, value in collate_fn([rows[at]]).items() if key != "dummy_tensor"}
        output = await loop.run({}, **row)
        found.append([list(output.prompt_ids), list(output.response_ids)])
    return found


def batch(rows: list[dict], tokenizer) -> list[DataProto]:
    pad, made = tokenizer.pad_token_id, []
    for row in rows:
        ids = row["completion_ids"]
        tensors = {
            "prompts": torch.tensor([row["prompt_ids"]]),
            "responses": torch.tensor([[*ids, *[pad] * (LENGTH - len(ids))]]),
            "attention_mask": torch.tensor([[1] * (len(row["prompt_ids"]) + len(ids)) + [0] * (LENGTH - len(ids))]),
        }
        others = {
            "data_source": np.array(["toolsample"], dtype=object),
            "reward_model": np.array([{"style": "rule", "ground_truth": row["label"]}], dtype=object),
            "extra_info": np.array([{"index": row["task_id"]}], dtype=object),
        }
        made.append(DataProto.from_dict(tensors=tensors, non_tensors=others))
    return made


async def rewards(rows: list[dict], tokenizer, whole: bool) -> list[dict]:
    manager = {"source": "register", "name": "naive", "module": None}
    if whole:
        module = {"path": verl_reward_manager.__file__, "name": "x"}
        manager = {"source": "importlib", "name": "SpecialTokenManager", "module": module}
    function = {"path": trainer_reward.__file__, "name": "compute_score", "reward_kwargs": {}}
    config = {"reward": {"custom_reward_function": function, "reward_manager": manager, "reward_kwargs": {}}}
    made = load_reward_manager(OmegaConf.create(config), tokenizer)
    return list(await asyncio.gather(*(made.run_single(one) for one in batch(rows, tokenizer))))


def dump(rows: list[dict], scores: list[dict], tokenizer, folder: Path) -> None:
    """verl's own writer, with what its trainers hand to it."""
    from verl.trainer.ppo.v1 import trainer_base

    writers = [value for value in vars(trainer_base).values() if hasattr(value, "_write_generations")]
    decode = tokenizer.batch_decode
    for step in range(2):
        some, found = rows[step::2], scores[step::2]
        writers[0]._write_generations(
            decode([row["prompt_ids"] for row in some], skip_special_tokens=True),
            decode([row["completion_ids"] for row in some], skip_special_tokens=True),
            [row["label"] for row in some], [one["reward_score"] for one in found],
            {"uid": [f"u{at}_0_0" for at in range(len(some))]}, str(folder), 9 + step,
        )  # fmt: skip


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    special = AutoTokenizer.from_pretrained(job["special_model"])
    system, messages = (dataset(job[name], tokenizer) for name in ("system", "messages"))
    found = {
        "rows": [len(system), len(messages)],
        "system": asyncio.run(prompts(SingleTurnAgentLoop, system, job["per_task"], tokenizer)),
        "messages": asyncio.run(prompts(ToolsampleAgentLoop, messages, job["per_task"], tokenizer)),
        "rewards": asyncio.run(rewards(job["rollouts"], tokenizer, False)),
        "whole_rewards": asyncio.run(rewards(job["rollouts"], tokenizer, True)),
        "special_naive": asyncio.run(rewards(job["special"], special, False)),
        "special_whole": asyncio.run(rewards(job["special"], special, True)),
    }
    dump(job["rollouts"], found["rewards"], tokenizer, folder / "dump")
    (folder / "found.json").write_text(json.dumps(found, default=float), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
