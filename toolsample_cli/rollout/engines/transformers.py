"""The embedded engine: a causal model of transformers with our own sampling loop, on CPU, CUDA or MPS.

Batches are cut by length and token budget, a task's prompt is run once for all its samples, finished rows leave.
The same requests in the same batches give the same bits; other batches move logprobs in their last bits only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.models.chat import Chat
from toolsample_cli.models.digests import model_digest
from toolsample_cli.models.loading import (
    load_for_inference,
    pick_device,
    pick_dtype,
    set_threads,
    tensor_digest,
    with_adapter,
)
from toolsample_cli.models.out_of_memory import within_memory
from toolsample_cli.models.tokenizer_files import remember_fingerprint
from toolsample_cli.rollout.engines.kv_cache import Repeated, SharedPrompt
from toolsample_cli.rollout.engines.layouts import choose_layout
from toolsample_cli.rollout.engines.stop_strings import StopStrings
from toolsample_cli.rollout.engines.token_sampling import draw, token_uniforms
from toolsample_cli.rollout.types import PROCESSED, Completion, Engine, Request, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPACT_AT = 0.125
"""Share of finished rows at which they are dropped from the batch: copying costs, so do dead rows."""

_BLOCK = 64  # steps for which uniforms are drawn at once


class TransformersEngine(Engine):
    """One model in this process; `chat` is made from the model's tokenizer when absent."""

    name = "transformers"
    batched = True
    chat: Chat

    def __init__(self, model: str | Path, config: RolloutConfig, *, chat: Chat | None = None) -> None:
        self.policy = str(model)
        self.chat = chat or Chat.load(model, self_examples=config.self_examples)
        remember_fingerprint(self.policy, self.chat)
        self.device = pick_device(config.device)
        self.dtype = pick_dtype(config.dtype, self.device)
        self.model = load_for_inference(self.policy, self.dtype, self.device)
        self.digest = model_digest(self.policy, config.adapter)
        if config.adapter:
            self.model = with_adapter(self.model, config.adapter)
        positions = getattr(self.model.config, "max_position_embeddings", None)
        self.max_prompt_tokens = None if positions is None else positions - 1  # at least one token can follow
        parameters = sum(weights.numel() for weights in self.model.parameters())
        set_threads(config.threads, parameters, self.device)
        self.batch_tokens = batch_tokens(config.batch_tokens, parameters, self.device)
        self.pad = self.model.config.pad_token_id or 0
        self.stop_ids = _stop_ids(self.chat, self.model)
        self.state_class = choose_layout(self.model, self.pad)

    def describe(self) -> Mapping[str, object]:
        """What generates: model digest, dtype, device kind, attention layout, logprob convention, hashes."""
        return {
            "model_digest": self.digest,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "layout": "shared prompt" if self.state_class.shares else "repeated prompt",
            "logprobs": PROCESSED,
            "stop_ids": list(self.stop_ids),
            "batch_tokens": self.batch_tokens,
            **self.chat.fingerprint,
        }

    def batches(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Request]]:
        """Requests cut into the batches that `generate` runs: whole tasks, by prompt length, within batch_tokens.

        A batch generated anew gives the same bits, which is what resuming relies on.
        """
        tasks = [list(group) for _, group in groupby(requests, key=lambda r: r.key)]
        tasks = [part for task in tasks for part in self._parts(task, sampling)]
        tasks.sort(key=lambda task: (len(task[0].prompt_ids), task[0].key, task[0].sample))
        batches: list[list[Request]] = []
        prompts = rows = 0
        for task in tasks:
            width = len(task[0].prompt_ids)
            copies = prompts + 1 if self.state_class.shares else rows + len(task)
            tokens = copies * width + (rows + len(task)) * sampling.max_new_tokens
            if not batches or tokens > self.batch_tokens:
                batches.append([])
                prompts = rows = 0
            batches[-1] += task
            prompts, rows = prompts + 1, rows + len(task)
        return batches

    def _parts(self, task: list[Request], sampling: Sampling) -> list[list[Request]]:
        size = max(1, (self.batch_tokens - len(task[0].prompt_ids)) // sampling.max_new_tokens)
        return [task[i : i + size] for i in range(0, len(task), size)]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """One completion per request, batch by batch; within a batch in the order of the requests."""
        for batch in self.batches(requests, sampling):
            yield from self._batch(batch, sampling.with_stop(*self.stop_ids))

    def load_weights(self, weights: str | Path | Mapping[str, torch.Tensor]) -> None:
        """Take the weights of a model folder of the same shape, or a state dict, in place."""
        if isinstance(weights, str | Path):
            fresh = load_for_inference(str(weights), self.dtype, torch.device("cpu"))
            self._copy(fresh.state_dict(), str(weights))
            self.policy, self.digest = str(weights), model_digest(str(weights))
        else:
            self._copy(weights, "state dict")
            self.digest = tensor_digest(self.model.state_dict())

    def _copy(self, weights: Mapping[str, torch.Tensor], what: str) -> None:
        mine = self.model.state_dict()
        odd = [k for k in weights if k not in mine or mine[k].shape != weights[k].shape]
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        missing = [k for k in mine if k not in weights and k not in tied]
        if odd or missing:
            raise ConfigError(f"{what}: not weights of this model: {', '.join((odd + missing)[:5])} differ")
        with torch.no_grad():
            for key, tensor in weights.items():
                mine[key].copy_(tensor)

    def close(self) -> None:
        """Free the model's memory."""
        del self.model
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _batch(self, batch: list[Request], sampling: Sampling) -> Iterator[Completion]:
        tasks = [list(group) for _, group in groupby(batch, key=lambda r: r.key)]
        prompts = [task[0].prompt_ids for task in tasks]
        task_R = torch.tensor([i for i, task in enumerate(tasks) for _ in task], device=self.device)
        hint = f"lower batch_tokens (now {self.batch_tokens}) or max_new_tokens, or take dtype = bfloat16"
        with within_memory(f"generating {len(batch)} completions together on {self.device.type}", hint):
            state = self.state_class(self.model, prompts, task_R, self.pad)
            tokens, logps, lengths, stopped = self._decode(state, batch, sampling)
        for row, request in enumerate(batch):
            size = int(lengths[row])
            row_logps = logps[row, :size]
            if not np.isfinite(row_logps).all():
                yield Completion(request.key, request.sample, error="engine: the model's logits are not finite")
                continue
            reason = "stop" if stopped[row] else "length"
            yield Completion(request.key, request.sample, tokens[row, :size].tolist(), row_logps.tolist(), reason)

    def _decode(
        self, state: Repeated | SharedPrompt, batch: list[Request], sampling: Sampling
    ) -> tuple[np.ndarray, ...]:
        """Sample every row to its end: tokens [R, T], logprobs [R, T], lengths [R], stopped [R]."""
        rows, device = len(batch), self.device
        most = self.max_prompt_tokens
        room = [sampling.max_new_tokens if most is None else most + 1 - len(r.prompt_ids) for r in batch]
        limit_R = torch.tensor([min(sampling.max_new_tokens, x) for x in room], device=device)
        seeds = np.array([r.seed for r in batch], dtype=np.uint64)
        stop, strings = torch.tensor(sampling.stop_ids, device=device), StopStrings(sampling.stop, rows, self.chat)
        columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        length_R = torch.zeros(rows, dtype=torch.long, device=device)
        stopped_R = torch.zeros(rows, dtype=torch.bool, device=device)
        alive = torch.arange(rows, device=device)  # row of the batch behind each row of the state
        live = torch.ones(rows, dtype=torch.bool, device=device)  # among those, the unfinished
        logits = state.logits_RV
        for step in range(int(limit_R.max())):
            if step % _BLOCK == 0:
                block = torch.from_numpy(
                    token_uniforms(seeds, step, _BLOCK).astype(np.float32 if device.type == "mps" else np.float64)
                ).to(device)
            token, logp = draw(logits, block[alive, step % _BLOCK], sampling)
            columns.append((alive[live], token[live], logp[live]))
            length_R[alive[live]] = step + 1
            ended = torch.isin(token, stop)
            if sampling.stop:
                ended[live.clone()] |= strings.reached(alive[live].tolist(), token[live].tolist()).to(device)
            stopped_R[alive[live & ended]] = True
            live &= ~(ended | (step + 1 >= limit_R[alive]) | ~torch.isfinite(logp))
            left = int(live.sum())
            if left == 0:
                break
            if left <= (1 - COMPACT_AT) * len(live):
                kept = live.nonzero()[:, 0]
                state.keep(kept)
                alive, token, live = alive[kept], token[kept], live[kept]
            logits = state.step(token)
        return _table(columns, rows, length_R, stopped_R)


def _table(columns: list, rows: int, length_R: torch.Tensor, stopped_R: torch.Tensor) -> tuple[np.ndarray, ...]:
    tokens = np.zeros((rows, len(columns)), dtype=np.int64)
    logps = np.zeros((rows, len(columns)), dtype=np.float32)
    for step, (row, token, logp) in enumerate(columns):
        row = row.cpu().numpy()
        tokens[row, step], logps[row, step] = token.cpu().numpy(), logp.float().cpu().numpy()
    return tokens, logps, length_R.cpu().numpy(), stopped_R.cpu().numpy()


CPU_BATCH = 2.4e12
"""Tokens of a batch on a CPU times parameters of the model: some four minutes of one core at its longest."""
CPU_LEAST = 4096


def batch_tokens(asked: int, parameters: int, device: torch.device) -> int:
    """Tokens generated together: as asked, on a CPU fewer for a large model, so that every batch ends in minutes."""
    if device.type != "cpu":
        return asked
    return min(asked, max(CPU_LEAST, int(CPU_BATCH / max(parameters, 1))))


def _stop_ids(chat: Chat, model: PreTrainedModel) -> tuple[int, ...]:
    declared = getattr(model.generation_config, "eos_token_id", None)
    declared = declared if isinstance(declared, list) else [] if declared is None else [declared]
    ids = {*chat.end_ids, *declared}
    vocabulary = len(model.get_input_embeddings().state_dict()["weight"])
    if max(chat.end_ids) >= vocabulary:
        raise StageFailure(f"the tokenizer's end token {max(chat.end_ids)} is outside the model's {vocabulary} tokens")
    return tuple(sorted(ids))
