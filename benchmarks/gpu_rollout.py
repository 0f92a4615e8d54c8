"""Rollouts on a GPU: a random 0.5B-shaped model, tokens per second, agreement of logprobs; one JSON object on stdout.

    python benchmarks/gpu_rollout.py [--tasks 128] [--n 8] [--max-new-tokens 128] [--small]

Always: our transformers engine in bfloat16 in both layouts, and float32 logprobs against a plain forward pass. With
vLLM installed: our engine against `LLM.generate` called directly on the same engine, seeds and prompts. `--small` is a
rehearsal on the CPU. Meant to end within four minutes on one H100 or H200.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
SMALL = {**SHAPE, "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def main() -> None:
    import torch

    arguments = _arguments()
    device = "cpu" if arguments.small else "cuda"
    result: dict[str, Any] = {
        "device": "cpu" if arguments.small else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "tasks": arguments.tasks,
        "n": arguments.n,
    }
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), SMALL if arguments.small else SHAPE)
        result.update(measure_transformers(model, arguments, device))
        if importlib.util.find_spec("vllm") and not arguments.small:
            torch.cuda.empty_cache()
            result.update(measure_vllm(model, arguments))
        else:
            result["vllm"] = "not installed" if not arguments.small else "left out"
    print(json.dumps(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=128)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--small", action="store_true", help="a rehearsal on the CPU")
    return parser.parse_args()


def make_model(folder: Path, shape: dict[str, int]) -> Path:
    """Random Qwen3 weights of this shape under the small policy's tokenizer, whose ids are the vocabulary's first."""
    import shutil

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    path = folder / "model"
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True, eos_token_id=2, pad_token_id=0))
    model.to(torch.bfloat16).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "fixtures" / "policy" / name, path / name)
    return path


def requests_of(arguments: argparse.Namespace) -> list[Any]:
    """Prompts of 100 to 500 tokens, whatever they say."""
    from toolsample_cli.rollout.types import Request, rollout_seed

    requests = []
    for task in range(arguments.tasks):
        prompt = [3 + (task * 31 + i * 7) % 1000 for i in range(100 + task * 37 % 400)]
        requests += [Request(f"t{task}", prompt, s, rollout_seed(0, f"t{task}", 0, s)) for s in range(arguments.n)]
    return requests


def timed(engine: Any, requests: list[Any], sampling: Any, device: str) -> tuple[float, list[Any]]:
    """Tokens a second by the wall, after a warm-up on a few rows, and the completions."""
    import torch

    list(engine.generate(requests[:8], sampling))
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    done = list(engine.generate(requests, sampling))
    return sum(len(c.completion_ids) for c in done) / (time.perf_counter() - began), done


def measure_transformers(model: Path, arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """Both layouts in the default type, then the agreement with a plain forward pass in float32."""
    from toolsample_cli.config import RolloutConfig
    from toolsample_cli.rollout.engines.kv_cache import Repeated, SharedPrompt
    from toolsample_cli.rollout.types import Sampling, open_engine

    config = RolloutConfig(max_new_tokens=arguments.max_new_tokens, device=device, batch_tokens=1 << 18)
    sampling, requests, found = Sampling.of(config), requests_of(arguments), {}
    engine = open_engine("transformers", str(model), config)
    found["layout_taken"] = engine.describe()["layout"]
    for name, layout in (("shared", SharedPrompt), ("repeated", Repeated)):
        engine.state_class = layout
        found[f"tokens_per_s_{name}"] = round(timed(engine, requests, sampling, device)[0])
    engine.close()
    exact = open_engine("transformers", str(model), RolloutConfig(max_new_tokens=32, device=device, dtype="float32"))
    for name, layout in (("shared", SharedPrompt), ("repeated", Repeated)):
        exact.state_class = layout
        found[f"float32_worst_logprob_gap_{name}"] = _worst_gap(exact, requests[: 4 * arguments.n], Sampling.of(config))
    exact.close()
    return found


def _worst_gap(engine: Any, requests: list[Any], sampling: Any) -> float:
    import torch

    from toolsample_cli.rollout.engines.token_sampling import log_distribution

    prompts, worst = {(r.key, r.sample): list(r.prompt_ids) for r in requests}, 0.0
    for c in engine.generate(requests, sampling):
        prompt = prompts[c.key, c.sample]
        ids = torch.tensor([[*prompt, *c.completion_ids]], device=engine.device)
        with torch.inference_mode():
            logp = log_distribution(engine.model(ids).logits[0, len(prompt) - 1 : -1], sampling)
        expected = logp.gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()
        worst = max(worst, float((expected - torch.tensor(c.logprobs)).abs().max()))
    return worst


def measure_vllm(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ours against `LLM.generate` on one engine, alternating, the better of two; also without seeds, for their cost."""
    from vllm import SamplingParams

    from toolsample_cli.config import RolloutConfig
    from toolsample_cli.rollout.types import Sampling, open_engine

    config = RolloutConfig(backend="vllm", max_new_tokens=arguments.max_new_tokens, gpu_memory=0.6)
    began = time.perf_counter()
    engine = open_engine("vllm", str(model), config)
    opened = time.perf_counter() - began
    requests, sampling = requests_of(arguments), Sampling.of(config)
    prompts = [{"prompt_token_ids": list(r.prompt_ids)} for r in requests]

    def direct(seeded: bool) -> float:
        params = [
            SamplingParams(max_tokens=arguments.max_new_tokens, logprobs=0, seed=r.seed if seeded else None)
            for r in requests
        ]
        start = time.perf_counter()
        outs = engine.llm.generate(prompts, params, use_tqdm=False)
        return sum(len(out.outputs[0].token_ids) for out in outs) / (time.perf_counter() - start)

    ours, theirs = [], []
    for _ in range(2):
        engine.llm.reset_prefix_cache()
        ours.append(timed(engine, requests, sampling, "cuda")[0])
        engine.llm.reset_prefix_cache()
        theirs.append(direct(True))
    engine.llm.reset_prefix_cache()
    unseeded = direct(False)
    described = dict(engine.describe())
    engine.close()
    return {
        "vllm": described["engine"],
        "vllm_open_s": round(opened, 1),
        "tokens_per_s_vllm": round(max(ours)),
        "tokens_per_s_vllm_direct": round(max(theirs)),
        "tokens_per_s_vllm_direct_unseeded": round(unseeded),
        "ratio_vs_vllm": round(max(ours) / max(theirs), 3),
    }


if __name__ == "__main__":
    main()
