"""Throughput of `rollout`: tasks of the small world times samples on the small policy, one core, everything in one run.

    python benchmarks/rollout.py --json [--tasks 256] [--n 8] [--max-new-tokens 512]

`ratio_vs_generate` is our engine's tokens a CPU second over those of a plain loop over `model.generate` under the same
`batch_tokens`; `ratio_vs_vllm` ours through vLLM over `LLM.generate` called directly (by the wall; null where vLLM is
not installed). `us_per_sample_replay` is the stage's own cost of a sample with the `replay` engine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from meter import peak_mb

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    arguments = _arguments()
    if arguments.child:
        print(json.dumps(CHILDREN[arguments.child](arguments, Path(arguments.folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_tasks(Path(folder), arguments.tasks)
        _child("many", folder)
        names = [name for name in CHILDREN if name not in ("many", "vllm")]
        names += ["vllm"] if importlib.util.find_spec("vllm") else []
        result: dict[str, Any] = {
            "tasks": arguments.tasks,
            "n": arguments.n,
            "max_new_tokens": arguments.max_new_tokens,
        }
        result["ratio_vs_vllm"] = None
        for name in names:
            result.update(_child(name, folder))
    print(json.dumps(result) if arguments.json else "\n".join(f"{key:>28} {value}" for key, value in result.items()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--replay-tasks", type=int, default=5000)
    parser.add_argument("--model", default=str(ROOT / "fixtures" / "policy"))
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(name: str, folder: str) -> dict[str, Any]:
    """Each part in a fresh process, so that none inherits another's memory or threads."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", name, "--folder", folder]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def make_tasks(folder: Path, count: int) -> None:
    """Tasks of the small world as a folder of task shards."""
    raw, tasks = folder / "raw", folder / "tasks"
    script = [sys.executable, ROOT / "fixtures" / "make_tasks.py", raw, "--n", str(count), "--heldout", "1"]
    subprocess.run(script, check=True, stderr=subprocess.DEVNULL)
    command = [sys.executable, "-m", "toolsample_cli", "import", raw / "train.jsonl", "-o", tasks]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def _requests(arguments: argparse.Namespace, folder: Path, chat: Any) -> list[Any]:
    from toolsample_cli.rollout.types import Request, rollout_seed
    from toolsample_cli.shards import schema
    from toolsample_cli.shards.reading import open_folder

    requests = []
    for row in open_folder(folder / "tasks", schema.TASKS).load().iter_rows(named=True):
        prompt = chat.prompt_ids(row)
        for sample in range(arguments.n):
            requests.append(Request(row["task_id"], prompt, sample, rollout_seed(0, row["task_id"], 0, sample)))
    return requests


def measure_transformers(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Our loop against `model.generate`, alternating, the better of two runs each."""
    import torch

    from toolsample_cli.config import RolloutConfig
    from toolsample_cli.rollout.types import Sampling, open_engine

    torch.set_num_threads(1)
    started = time.process_time()
    config = RolloutConfig(n=arguments.n, max_new_tokens=arguments.max_new_tokens)
    engine = open_engine("transformers", arguments.model, config)
    opened = time.process_time() - started
    requests, sampling = _requests(arguments, folder, engine.chat), Sampling.of(config)
    ours, plain = [], []
    for _ in range(2):
        began = time.process_time()
        lengths = [len(done.completion_ids) for done in engine.generate(requests, sampling)]
        ours.append(sum(lengths) / (time.process_time() - began))
        began = time.process_time()
        plain.append(_generate_loop(engine, requests, arguments, config) / (time.process_time() - began))
    return {
        "tokens": sum(lengths),
        "mean_length": round(sum(lengths) / len(lengths), 1),
        "longest": max(lengths),
        "open_cpu_s": round(opened, 2),
        "tokens_per_cpu_s": round(max(ours)),
        "tokens_per_cpu_s_generate": round(max(plain)),
        "ratio_vs_generate": round(max(ours) / max(plain), 2),
        "peak_mb": round(peak_mb()),
    }


def _generate_loop(engine: Any, requests: list[Any], arguments: argparse.Namespace, config: Any) -> int:
    """A plain loop over transformers' own `generate`, sorted by length, n sequences a prompt; tokens generated."""
    import torch

    from toolsample_cli.rollout.engines.kv_cache import padded

    prompts = sorted((r.prompt_ids for r in requests if r.sample == 0), key=len)
    size = max(1, config.batch_tokens // (arguments.n * (len(prompts[-1]) + arguments.max_new_tokens)))
    ends, tokens = torch.tensor(engine.stop_ids), 0
    for at in range(0, len(prompts), size):
        ids, mask = padded(prompts[at : at + size], engine.pad, "cpu")
        with torch.inference_mode():
            out = engine.model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=arguments.n,
                max_new_tokens=arguments.max_new_tokens,
                eos_token_id=engine.stop_ids,
                pad_token_id=engine.pad,
                return_dict_in_generate=True,
                output_logits=True,
            )
        drawn = out.sequences[:, ids.shape[1] :]
        torch.stack(out.logits, 1).log_softmax(-1).gather(-1, drawn[..., None])  # the logprobs a trainer needs
        ended = torch.isin(drawn, ends)
        tokens += int(torch.where(ended.any(1), ended.int().argmax(1) + 1, drawn.shape[1]).sum())
    return tokens


def make_many(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`replay_tasks` tasks with messages of 1 to 8 KB."""
    from toolsample_cli.shards import schema
    from toolsample_cli.shards.reading import open_folder
    from toolsample_cli.shards.writing import Output

    row = open_folder(folder / "tasks", schema.TASKS).load().row(0, named=True)
    with Output(folder / "many", schema.TASKS, {}) as output:
        for number, at in enumerate(range(0, arguments.replay_tasks, 5000)):
            rows = []
            for i in range(at, min(at + 5000, arguments.replay_tasks)):
                messages = [{"role": "user", "content": f"{i:8d}" * (128 + i * 37 % 896)}]
                rows.append({**row, "task_id": f"t{i:07d}", "messages_json": json.dumps(messages)})
            output.write(number, schema.frame(schema.TASKS, rows))
        output.finish()
    return {}


def measure_replay(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The stage around an engine that costs nothing: CPU microseconds a sample, and peak memory over the imports."""
    from toolsample_cli.config import RolloutConfig
    from toolsample_cli.rollout.stage import run
    from toolsample_cli.stage import Options

    base = peak_mb()
    began = time.process_time()
    account = run(folder / "many", folder / "out", None, RolloutConfig(n=arguments.n, backend="replay"), Options())
    seconds = time.process_time() - began
    return {
        "us_per_sample_replay": round(1e6 * seconds / account.rows_out, 1),
        "replay_samples": account.rows_out,
        "replay_mb_above_start": round(peak_mb() - base),
    }


def measure_vllm(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Our vLLM engine against `LLM.generate` on the same engine, seeds and prompts; the better of two runs each."""
    from vllm import SamplingParams

    from toolsample_cli.config import RolloutConfig
    from toolsample_cli.rollout.types import Sampling, open_engine

    config = RolloutConfig(n=arguments.n, backend="vllm", max_new_tokens=arguments.max_new_tokens)
    engine = open_engine("vllm", arguments.model, config)
    requests, sampling = _requests(arguments, folder, engine.chat), Sampling.of(config)
    prompts = [{"prompt_token_ids": list(r.prompt_ids)} for r in requests]
    params = [
        SamplingParams(temperature=1.0, max_tokens=arguments.max_new_tokens, seed=r.seed, logprobs=0) for r in requests
    ]
    ours, direct = [], []
    for _ in range(2):
        began = time.perf_counter()
        tokens = sum(len(done.completion_ids) for done in engine.generate(requests, sampling))
        ours.append(tokens / (time.perf_counter() - began))
        began = time.perf_counter()
        tokens = sum(len(out.outputs[0].token_ids) for out in engine.llm.generate(prompts, params, use_tqdm=False))
        direct.append(tokens / (time.perf_counter() - began))
    engine.close()
    return {
        "tokens_per_s_vllm": round(max(ours)),
        "tokens_per_s_vllm_direct": round(max(direct)),
        "ratio_vs_vllm": round(max(ours) / max(direct), 3),
    }


CHILDREN = {"many": make_many, "transformers": measure_transformers, "replay": measure_replay, "vllm": measure_vllm}

if __name__ == "__main__":
    main()
