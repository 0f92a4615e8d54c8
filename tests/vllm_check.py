"""Runs in an interpreter that has vLLM: prints what test_backends_vllm.py asserts, as one JSON object.

    python tests/vllm_check.py MODEL OTHER_MODEL [BASE_URL]

Without a URL vLLM runs in this process; with one, through the openai engine.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

SAMPLINGS = {
    "T=1": {},
    "T=0.7": {"temperature": 0.7},
    "top-p": {"top_p": 0.8},
    "top-k, min-p": {"top_k": 20, "min_p": 0.05},
}


def main() -> None:
    import torch
    from test_backends import plain_logprobs, wanted

    from toolsample_cli.backends import Sampling, open_backend
    from toolsample_cli.backends.transformers import TransformersBackend
    from toolsample_cli.config import RolloutConfig

    model, other, url = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    torch.set_num_threads(1)
    config = RolloutConfig(max_new_tokens=32, concurrency=16)
    plain = TransformersBackend(model, config)
    requests = wanted(plain.chat, tasks=25, n=4)
    began = time.time()
    if url:
        config = dataclasses.replace(config, backend="openai", base_url=url, tokenizer=model)
    engine = open_backend("openai" if url else "vllm", model, config)
    found: dict[str, Any] = {"describe": dict(engine.describe()), "open_s": time.time() - began, "worst": {}}

    def worst(done: list, network: Any, sampling: Any) -> float:
        prompts = {(r.key, r.sample): list(r.prompt_ids) for r in requests}
        assert {(c.key, c.sample) for c in done} == set(prompts) and all(c.error is None for c in done), done[:3]
        gaps = []
        for c in done:
            expected = plain_logprobs(network, prompts[c.key, c.sample], list(c.completion_ids), sampling)
            gaps += [abs(a - b) for a, b in zip(expected, c.logprobs, strict=True)]
        return max(gaps)

    for name, knobs in SAMPLINGS.items():
        sampling = dataclasses.replace(Sampling.of(config), **knobs)
        done = list(engine.generate(requests, sampling))
        found["worst"][name] = worst(done, plain.model, sampling)
        if name == "T=1":
            found["reasons"] = sorted({c.finish_reason for c in done})
            again = {(c.key, c.sample): c.completion_ids for c in engine.generate(requests, sampling)}
            found["same_again"] = sum(list(again[c.key, c.sample]) == list(c.completion_ids) for c in done)
    greedy = dataclasses.replace(Sampling.of(config), temperature=0.0)
    ours = {(c.key, c.sample): c for c in plain.generate(requests, greedy)}
    theirs = {(c.key, c.sample): c for c in engine.generate(requests, greedy)}
    found["greedy"] = [_first_gap(plain, requests, key, ours[key], theirs[key]) for key in ours]
    if not url:
        engine.load_weights(other)
        swapped = TransformersBackend(other, config)
        found["swapped"] = worst(
            list(engine.generate(requests, Sampling.of(config))), swapped.model, Sampling.of(config)
        )
        found["digests_equal"] = engine.digest == swapped.digest
        engine.load_weights(plain.model.state_dict())
        found["swapped_back"] = worst(
            list(engine.generate(requests, Sampling.of(config))), plain.model, Sampling.of(config)
        )
    engine.close()
    print("\n" + json.dumps(found))


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
