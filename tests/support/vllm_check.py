"""Runs in an interpreter that has vLLM: prints what test_backends_vllm.py asserts, as one JSON object.

    python tests/vllm_check.py MODEL OTHER_MODEL [BASE_URL]
    python tests/vllm_check.py MODEL

Without a URL vLLM runs in this process; with one, through the openai engine. With one model alone: an adapter, and an
engine that is killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SAMPLINGS = {
    "T=1": {},
    "T=0.7": {"temperature": 0.7},
    "top-p": {"top_p": 0.8},
    "top-k, min-p": {"top_k": 20, "min_p": 0.05},
}


def main() -> None:
    import torch

    from support.engine_checks import wanted
    from toolsample_cli.config import RolloutConfig
    from toolsample_cli.rollout.engines.transformers import TransformersEngine
    from toolsample_cli.rollout.types import Sampling, open_engine

    model, other, url = (*sys.argv[1:], None, None)[:3]
    torch.set_num_threads(1)
    config = RolloutConfig(max_new_tokens=32, concurrency=16)
    plain = TransformersEngine(model, config)
    requests = wanted(plain.chat, tasks=25, n=4)
    if other is None:
        print("\n" + json.dumps(adapted(plain, model, config, requests)))
        return
    began = time.time()
    if url:
        config = dataclasses.replace(config, backend="openai", base_url=url, tokenizer=model)
    engine = open_engine("openai" if url else "vllm", model, config)
    found: dict[str, Any] = {"describe": dict(engine.describe()), "open_s": time.time() - began, "worst": {}}

    for name, knobs in SAMPLINGS.items():
        sampling = dataclasses.replace(Sampling.of(config), **knobs)
        done = list(engine.generate(requests, sampling))
        found["worst"][name] = worst(requests, done, plain.model, sampling)
        if name == "T=1":
            found["reasons"] = sorted({c.finish_reason for c in done})
            again = {(c.key, c.sample): c.completion_ids for c in engine.generate(requests, sampling)}
            found["same_again"] = sum(list(again[c.key, c.sample]) == list(c.completion_ids) for c in done)
    greedy = dataclasses.replace(Sampling.of(config), temperature=0.0)
    ours = {(c.key, c.sample): c for c in plain.generate(requests, greedy)}
    theirs = {(c.key, c.sample): c for c in engine.generate(requests, greedy)}
    found["greedy"] = [_first_gap(plain, requests, key, ours[key], theirs[key]) for key in ours]
    found["stage"] = staged(engine, plain, config)
    found["stopped"] = stopped(engine, plain, requests, Sampling.of(config))
    if not url:
        engine.load_weights(other)
        swapped = TransformersEngine(other, config)
        found["swapped"] = worst(
            requests, list(engine.generate(requests, Sampling.of(config))), swapped.model, Sampling.of(config)
        )
        found["digests_equal"] = engine.digest == swapped.digest
        engine.load_weights(plain.model.state_dict())
        found["swapped_back"] = worst(
            requests, list(engine.generate(requests, Sampling.of(config))), plain.model, Sampling.of(config)
        )
    engine.close()
    print("\n" + json.dumps(found))


def worst(requests: list, done: list, network: Any, sampling: Any) -> float:
    """The largest gap of a logprob to a plain forward pass; every request must have its completion."""
    from support.engine_checks import plain_logprobs

    prompts = {(r.key, r.sample): list(r.prompt_ids) for r in requests}
    assert {(c.key, c.sample) for c in done} == set(prompts) and all(c.error is None for c in done), done[:3]
    gaps = []
    for c in done:
        expected = plain_logprobs(network, prompts[c.key, c.sample], list(c.completion_ids), sampling)
        gaps += [abs(a - b) for a, b in zip(expected, c.logprobs, strict=True)]
    return max(gaps)


def staged(engine: Any, plain: Any, config: Any) -> dict[str, Any]:
    """What stands in the shards, held to the conformance of every engine."""
    from support.conformance import confirmed
    from support.rollout_world import write_tasks
    from support.tiny_model import task_row
    from toolsample_cli.rollout.stage import run
    from toolsample_cli.rollout.types import Sampling
    from toolsample_cli.stage import Options

    with tempfile.TemporaryDirectory() as name:
        tasks = write_tasks(Path(name) / "tasks", [task_row(i, "weather " * (1 + i % 7)) for i in range(20)])
        run(tasks, Path(name) / "out", sys.argv[1], config, Options(), engine=engine)
        return confirmed(tasks, Path(name) / "out", plain.model, plain.chat, Sampling.of(config))


def stopped(engine: Any, plain: Any, requests: list, sampling: Any) -> dict[str, Any]:
    """With stop strings: how many completions hold one, how many of those end elsewhere than where it is whole."""
    strings = ("pro", "on", "at")
    sampling = dataclasses.replace(sampling, stop=strings)
    done, hits, late = list(engine.generate(requests, sampling)), 0, 0
    for completion in done:
        ids = list(completion.completion_ids)
        if any(s in plain.chat.text(ids) for s in strings):
            hits += 1
            late += completion.finish_reason != "stop" or any(s in plain.chat.text(ids[:-1]) for s in strings)
    return {"hits": hits, "late": late, "worst": worst(requests, done, plain.model, sampling)}


def adapted(plain: Any, model: str, config: Any, requests: list) -> dict[str, Any]:
    """With an adapter; then the engine's process is killed while it generates."""
    from support.lora import merge_by_hand, write_adapter
    from toolsample_cli.errors import StageFailure
    from toolsample_cli.rollout.types import Sampling, open_engine

    with tempfile.TemporaryDirectory() as name:
        adapter = write_adapter(Path(name) / "adapter", plain.model)
        engine = open_engine("vllm", model, dataclasses.replace(config, adapter=str(adapter)))
        done = list(engine.generate(requests, Sampling.of(config)))
    found = {"unadapted": worst(requests, done, plain.model, Sampling.of(config))}
    merge_by_hand(plain.model)
    found |= {"adapted": worst(requests, done, plain.model, Sampling.of(config)), "digest": engine.digest}
    (process,) = engine.llm.llm_engine.engine_core.resources.engine_manager.processes
    sampling = dataclasses.replace(Sampling.of(config), max_new_tokens=1000)
    try:
        for number, _ in enumerate(engine.generate(requests, sampling)):
            if number == 3:
                os.kill(process.pid, signal.SIGKILL)
    except StageFailure as error:
        found["killed"] = str(error)
    engine.close()
    return found


def _first_gap(plain: Any, requests: list, key: tuple, ours: Any, theirs: Any) -> float:
    """0 for equal completions, else how far apart the model holds the two first differing tokens."""
    import torch

    one, two = list(ours.completion_ids), list(theirs.completion_ids)
    if one == two:
        return 0.0
    at = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    prompt = next(list(r.prompt_ids) for r in requests if (r.key, r.sample) == key)
    with torch.no_grad():
        logits = plain.model(torch.tensor([[*prompt, *one[:at]]])).logits[0, -1]
    return abs(float(logits[one[at]] - logits[two[at]]))


if __name__ == "__main__":
    main()
