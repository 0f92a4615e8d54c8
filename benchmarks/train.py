"""Our training round against TRL's GRPOTrainer driven offline: CPU seconds, peak memory, losses digit for digit.

`python benchmarks/train.py --json [--shape toolcall|think] [--size 1m|17m] [--trl-python PYTHON]`. Same shard, model,
optimizer steps and one thread, each side in a process of its own. They take turns, as a shared machine changes its
speed within a minute: before each step of TRL's our whole round runs once, and once more after the last. `cpu_ratio`
is TRL's CPU seconds over the mean of ours for the steps themselves (imports and model loading left out), `peak_ratio`
our peak memory over TRL's. `--scaling` measures ours from 1,000 rollouts to 50 times as many, `--head` the
language-model head at 151,936 tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from meter import peak_mb

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

SIZES = {
    "1m": {"hidden_size": 128, "num_hidden_layers": 6, "head_dim": 32, "vocab_size": 1600},
    "17m": {"hidden_size": 384, "num_hidden_layers": 8, "head_dim": 96, "vocab_size": 8192},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 512},
}
LR = 1e-4
TURN = "turn"
"""What the slower side writes when the other may run."""


def lengths(shape: str, random: Any) -> tuple[int, Any]:
    """Prompt length of a group and a draw of completion lengths (engines measured in the field look like this)."""
    if shape == "toolcall":  # long schemas, short calls
        return int(random.integers(300, 901)), lambda: int(min(max(random.lognormal(4.2, 0.4), 8), 400))
    if shape == "think":  # short questions, long-tailed thoughts
        return int(random.integers(60, 201)), lambda: int(min(max(random.lognormal(4.79, 0.9), 8), 1024))
    return int(random.integers(30, 60)), lambda: int(random.integers(20, 60))


def make(folder: Path, shape: str, size: str, groups: int, samples: int) -> None:
    """Model, rollouts and batch; stored logprobs scatter around those of a random model, so some ratios are clipped."""
    import numpy as np
    from support.tiny_model import tiny_model
    from support.training_world import batch_rows, write

    from toolsample_cli.shards import schema

    settings = SIZES[size]
    vocabulary = settings["vocab_size"]
    tiny_model(folder, intermediate_size=3 * settings["hidden_size"], max_position_embeddings=4096, **settings)
    random = np.random.default_rng(0)
    rows = []
    for task in range(groups):
        prompt_length, draw = lengths(shape, random)
        prompt = random.integers(0, vocabulary, prompt_length).tolist()
        for sample in range(samples):
            length = draw()
            logprobs = random.normal(-np.log(vocabulary), 0.4, length).astype(np.float32)
            rows.append(
                {
                    "rollout_id": f"t{task:06d}/0/{sample}", "task_id": f"t{task:06d}", "round": 0, "sample": sample,
                    "policy": "random", "backend": "none", "seed": sample, "prompt_ids": prompt,
                    "completion_ids": random.integers(0, vocabulary, length).tolist(), "logprobs": logprobs.tolist(),
                    "finish_reason": "stop", "ids_from_text": False, "text": "", "error": None,
                }
            )  # fmt: skip
    write(folder / "rollouts", schema.ROLLOUTS, rows, shards=-(-groups // 512))  # as many as `rollout` would write
    write(folder / "batch", schema.BATCH, batch_rows(rows))


def settings_of(steps: int, **more: Any) -> Any:
    """The same settings on both sides; TRL has neither a dual clip nor shares of the loss by sub-task."""
    from toolsample_cli.config import TrainConfig

    return TrainConfig(lr=LR, lr_schedule="constant", steps=steps, dual_clip=0.0, subtasks=False, **more)


def read(folder: Path, config: Any) -> Any:
    """The shard as both sides use it."""
    from toolsample_cli.shards import schema
    from toolsample_cli.shards.reading import open_folder
    from toolsample_cli.train.data import scored_rollouts

    batch = open_folder(folder / "batch", schema.BATCH).load()
    return scored_rollouts(open_folder(folder / "rollouts", schema.ROLLOUTS), batch, config, 1 << 30)


def ours(folder: Path, steps: int) -> dict[str, Any]:
    """One round by our loop, reading included."""
    import torch

    torch.set_num_threads(1)
    from toolsample_cli.train.checkpoint import Position
    from toolsample_cli.train.distributed import World
    from toolsample_cli.train.setup import load_policy, make_optimizer, make_policy
    from toolsample_cli.train.trainer import Run, train_round

    config, world = settings_of(steps), World()
    loaded = load_policy(str(folder / "tiny"), config, world)
    policy = make_policy(loaded, str(folder / "tiny"), 1.0, world)
    read(folder, config)  # loads what reading imports, as the other side does before its clock starts
    started = time.process_time()
    data = read(folder, config)
    run = Run(data, config, world, policy=policy, optimizer=make_optimizer(policy, config), position=Position())
    position = train_round(run)
    seconds = time.process_time() - started
    values = {name: [v for _, _, n, v in position.metrics if n == name] for name in ("loss", "grad_norm", "slots")}
    tokens = sum(g.prompt_tokens + r.tokens for g in data.groups.outlines() for r in g.rollouts)
    return {"cpu_s": seconds, "peak_mb": peak_mb(), "tokens": tokens, **values, "move": move(policy.inner, folder)}


def move(model: Any, folder: Path) -> float:
    """Sum of the absolute change of all parameters: one number that two equal trainings share."""
    from safetensors.torch import load_file

    before = load_file(folder / "tiny" / "model.safetensors")
    return sum((p.detach() - before[n]).abs().double().sum().item() for n, p in model.named_parameters())


def theirs(folder: Path, steps: int, *, on_gpu: bool = False, take_turns: bool = False) -> dict[str, Any]:
    """The same steps by GRPOTrainer; generation and scoring are replaced by the shard."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    from datasets import Dataset
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoTokenizer, TrainerCallback, logging
    from trl import GRPOConfig, GRPOTrainer

    from toolsample_cli.train.trainer import step_order

    logging.disable_progress_bar()
    config = settings_of(steps)
    data = read(folder, config)
    order = [number for part in step_order(len(data.groups), config, 0) for number in part]
    samples = len(data.groups[0].rollouts)
    per_step = len(data.groups) * samples // steps

    def left(rows: list[np.ndarray]) -> torch.Tensor:
        return pad_sequence([torch.from_numpy(row[::-1].copy()).long() for row in rows], batch_first=True).flip(1)

    def right(rows: list[np.ndarray]) -> torch.Tensor:
        return pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)

    class Offline(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: list[dict]) -> dict[str, Any]:
            groups = [data.groups[entry["group"]] for entry in inputs[::samples]]
            rollouts = [(group.prompt, rollout) for group in groups for rollout in group.rollouts]
            mask = right([np.ones(len(rollout.completion), np.int64) for _, rollout in rollouts])
            found = {
                "prompt_ids": left([prompt for prompt, _ in rollouts]),
                "prompt_mask": left([np.ones(len(prompt), np.int64) for prompt, _ in rollouts]),
                "completion_ids": right([rollout.completion for _, rollout in rollouts]).long(),
                "completion_mask": mask,
                "advantages": torch.tensor([rollout.advantage for _, rollout in rollouts]),
                "old_per_token_logps": right([rollout.logprobs for _, rollout in rollouts]),
                "num_items_in_batch": mask.sum(),
            }
            return {name: tensor.to(self.accelerator.device) for name, tensor in found.items()}

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            print(TURN, flush=True)
            sys.stdin.readline()

    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=8, gradient_accumulation_steps=per_step // 8,
        num_generations=samples, max_completion_length=1024, beta=0.0, loss_type="dapo", epsilon=0.2, epsilon_high=0.28,
        learning_rate=LR, lr_scheduler_type="constant", max_grad_norm=1.0, weight_decay=0.0,
        use_cpu=not on_gpu, bf16=on_gpu, gradient_checkpointing=False, logging_steps=1, save_strategy="no",
        report_to="none", shuffle_dataset=False, max_steps=steps, disable_tqdm=True, temperature=1.0,
    )  # fmt: skip
    trainer = Offline(
        model=str(folder / "tiny"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "-", "group": int(number)} for number in order]),
        processing_class=AutoTokenizer.from_pretrained(folder / "tiny"),
        callbacks=[Turns()] if take_turns else None,
    )
    started, clock = time.process_time(), time.perf_counter()
    trainer.train()
    seconds, wall = time.process_time() - started, time.perf_counter() - clock
    logged = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    losses = {"loss": [e["loss"] for e in logged], "grad_norm": [e["grad_norm"] for e in logged]}
    moved = {} if on_gpu else {"move": move(trainer.model, folder)}
    return {"cpu_s": seconds, "wall_s": wall, "peak_mb": peak_mb(), **losses, **moved}


def head() -> dict[str, Any]:
    """Forward and backward of the head at Qwen's vocabulary: 2,048 positions of which 512 are scored."""
    import torch

    torch.set_num_threads(1)
    from toolsample_cli.train.policy import TokenScores

    hidden = torch.randn(512, 128, requires_grad=True)
    weight = (torch.randn(151_936, 128) * 0.02).requires_grad_()
    target = torch.randint(0, 151_936, (512,))
    before, started = peak_mb(), time.process_time()
    logp, _ = TokenScores.apply(hidden, weight, target, 1.0, True)
    logp.sum().backward()
    return {"cpu_s": time.process_time() - started, "extra_peak_mb": peak_mb() - before}


WORKERS = {"ours": ours, "theirs": partial(theirs, take_turns=True)}


def start(python: str, *arguments: str) -> subprocess.Popen[str]:
    """One side in a process of its own."""
    command = [python, __file__, "--worker", *arguments]
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(Path.home())}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str], turn: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
    """Its record, after `turn()` each time it waits for one; None when it failed (its packages are not there)."""
    assert process.stdin and process.stdout
    last = ""
    for last in process.stdout:
        if last.strip() == TURN:
            turn()
            process.stdin.write("\n")
            process.stdin.flush()
    return None if process.wait() else json.loads(last)


def worker(python: str, *arguments: str) -> dict[str, Any]:
    """Run one side that must not fail."""
    found = finish(start(python, *arguments))
    assert found is not None
    return found


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Both sides on one shard, in turns."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, given.shape, given.size, given.groups, 8)

        def run_ours() -> None:
            runs.append(worker(sys.executable, "ours", str(folder), str(given.steps)))

        trl = finish(start(given.trl_python, "theirs", str(folder), str(given.steps)), run_ours)
        run_ours()
    mine = runs[0]
    assert all(run["loss"] == mine["loss"] and run["move"] == mine["move"] for run in runs)
    seconds = [run["cpu_s"] for run in runs]
    mean = sum(seconds) / len(seconds)
    record = {"shape": given.shape, "size": given.size, "rollouts": given.groups * 8, "steps": given.steps}
    record |= {"tokens": mine["tokens"], "slots": int(sum(mine["slots"]))}
    record |= {"cpu_s": round(mean, 2), "cpu_s_runs": [round(value, 2) for value in seconds]}
    record |= {"tokens_per_cpu_s": round(mine["tokens"] / mean)}
    peak = max(run["peak_mb"] for run in runs)
    record |= {"peak_mb": round(peak), "loss": [round(v, 6) for v in mine["loss"]]}
    if trl is None:
        return record | {"trl": None}
    record |= {"trl_cpu_s": round(trl["cpu_s"], 2), "cpu_ratio": round(trl["cpu_s"] / mean, 2)}
    record |= {"trl_peak_mb": round(trl["peak_mb"]), "peak_ratio": round(peak / trl["peak_mb"], 3)}
    for key in ("loss", "grad_norm"):
        record[f"{key}_difference"] = max(abs(a - b) for a, b in zip(mine[key], trl[key], strict=True))
    record["trl_loss"] = trl["loss"]
    record["move_difference"] = abs(mine["move"] / trl["move"] - 1)
    return record


def scaling(given: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds per token and peak memory of our loop, 1,000 rollouts against `--times` as many."""
    record: dict[str, Any] = {}
    for label, groups in (("small", 125), ("large", 125 * given.times)):
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), "short", "tiny", groups, 8)
            found = worker(sys.executable, "ours", name, str(max(groups // 125, 1)))
        record |= {f"rollouts_{label}": groups * 8, f"tokens_{label}": found["tokens"]}
        record |= {f"us_per_token_{label}": round(1e6 * found["cpu_s"] / found["tokens"], 2)}
        record |= {f"peak_mb_{label}": round(found["peak_mb"])}
    record["cost_growth"] = round(record["us_per_token_large"] / record["us_per_token_small"], 3)
    return record


def main() -> None:
    """Print one record."""
    if sys.argv[1:2] == ["--worker"]:
        kind, *rest = sys.argv[2:]
        print(json.dumps(head() if kind == "head" else WORKERS[kind](Path(rest[0]), int(rest[1]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--shape", choices=("toolcall", "think"), default="toolcall")
    parser.add_argument("--size", choices=("1m", "17m"), default="1m")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has trl and datasets")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--head", action="store_true")
    given = parser.parse_args()
    if given.head:
        record = worker(sys.executable, "head")
    else:
        record = scaling(given) if given.scaling else compare(given)
    record = {"benchmark": "train", **record}
    if given.json:
        print(json.dumps(record))
        return
    for key, value in record.items():
        print(f"{key:>20}  {value}")


if __name__ == "__main__":
    main()
