"""A training round on a GPU: a random 0.5B-shaped model in bfloat16, ours against TRL offline. JSON on stdout.

    python benchmarks/gpu_train.py [--groups 64] [--steps 2] [--small]

Tokens a second (prompt and completion tokens of every rollout), model FLOPs utilisation, peak memory; how far packed
logprobs are from padded ones in float32; with TRL installed, its GRPOTrainer on the same shard. `--small` is a
rehearsal on the CPU. Meant to end within four minutes on one H100 or H200.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import train as cpu  # noqa: E402
from meter import peak_mb  # noqa: E402

SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SMALL = {"vocab_size": 2048, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16}
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Dense bfloat16 FLOPs a second by the makers' data sheets."""


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--shape", choices=("toolcall", "think"), default="toolcall")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    device = "cpu" if given.small else "cuda"
    cpu.SIZES["gpu"] = SMALL if given.small else SHAPE
    name = "cpu" if given.small else torch.cuda.get_device_name()
    result: dict[str, Any] = {
        "benchmark": "gpu_train",
        "device": name,
        "torch": torch.__version__,
        "shape": given.shape,
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        cpu.make(place, given.shape, "gpu", given.groups, 8)
        result["logprob_difference_packed_padded"] = agreement(place, device)
        result |= ours(place, given.steps, device)
        for key, value in PEAK_FLOPS.items():
            if key in name:
                result["mfu"] = round(result.pop("flops_per_s") / value, 4)
        if importlib.util.find_spec("trl") and not given.small:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            result |= theirs(place, given.steps)
            result["speed_ratio"] = round(result["trl_seconds"] / result["seconds"], 2)
        else:
            result["trl"] = "not installed" if not given.small else "left out"
    print(json.dumps(result))


def agreement(folder: Path, device: str) -> float:
    """Largest difference of logprobs between the two layouts on one group, float32."""
    import torch

    from toolsample_cli.train.batch import pack, pad
    from toolsample_cli.train.distributed import World
    from toolsample_cli.train.setup import load_policy, make_policy

    found, world = [], World.start(device)
    for layout, make in (("packed", pack), ("padded", pad)):
        config = cpu.settings_of(1, layout=layout, dtype="float32", device=device)
        group = cpu.read(folder, config).groups[0]
        policy = make_policy(load_policy(str(folder / "tiny"), config, world), str(folder / "tiny"), 1.0, world)
        with torch.no_grad():
            found.append(policy(make([group]).to(world.device), entropy=False)[0])
    return float((found[0] - found[1]).abs().max())


def ours(folder: Path, steps: int, device: str) -> dict[str, Any]:
    """A warm-up round (kernels are compiled in it), then the measured one."""
    import torch

    from toolsample_cli.train.checkpoint import Position
    from toolsample_cli.train.distributed import World
    from toolsample_cli.train.setup import load_policy, make_optimizer, make_policy
    from toolsample_cli.train.trainer import Run, train_round

    dtype = "bfloat16" if device == "cuda" else "float32"
    config, world = cpu.settings_of(steps, dtype=dtype, device=device), World.start(device)
    loaded = load_policy(str(folder / "tiny"), config, world)
    policy = make_policy(loaded, str(folder / "tiny"), 1.0, world)
    data = cpu.read(folder, config)
    run = Run(data, config, world, policy=policy, optimizer=make_optimizer(policy, config), position=Position())
    train_round(run)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    run.position = replace(Position(), rounds=1)
    started = time.perf_counter()
    position = train_round(run)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    tokens = sum(g.prompt_tokens + r.tokens for g in data.groups.outlines() for r in g.rollouts)
    slots = sum(value for _, _, name, value in position.metrics if name == "slots")
    body = sum(p.numel() for n, p in policy.inner.named_parameters() if "embed" not in n)
    head = policy.inner.get_output_embeddings().weight.numel()
    scored = int(data.groups.tokens_R.sum())
    flops = 6 * (body * slots + head * scored)  # attention left out, so utilisation is understated
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_mb()
    losses = [round(value, 5) for _, _, name, value in position.metrics if name == "loss"]
    return {
        "seconds": round(seconds, 2), "tokens_per_s": round(tokens / seconds), "slots_per_s": round(slots / seconds),
        "flops_per_s": flops / seconds, "peak_mb": round(peak), "loss": losses,
    }  # fmt: skip


def theirs(folder: Path, steps: int) -> dict[str, Any]:
    """TRL's trainer on the same shard and device."""
    import torch

    found = cpu.theirs(folder, steps, on_gpu=True)
    return {
        "trl_seconds": round(found["wall_s"], 2),
        "trl_peak_mb": round(torch.cuda.max_memory_allocated() / 2**20),
        "trl_loss": found["loss"],
    }


if __name__ == "__main__":
    main()
