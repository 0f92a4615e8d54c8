"""GRPO by TRL with our reward, and with our draw of tasks where DATA is a folder of tasks.

    python examples/trl/grpo.py run/corpus MODEL OUT --rounds 6     tasks are drawn anew before every generation
    python examples/trl/grpo.py train.jsonl MODEL OUT               one pass over `toolsample export --to trl`

OUT/completions holds every completion for `toolsample import-rollouts`. The first form runs in one process; with many
processes use the second in turns with the commands (examples/trl/round.sh), where only files are shared.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import toolsample_cli as ts
from toolsample_cli.bridges.label import Label
from toolsample_cli.bridges.trainer_reward import TrlReward


class Curriculum:
    """Draws the tasks of each round by what the rounds before earned."""

    def __init__(self, tasks: pl.DataFrame, rows: dict[str, dict], size: int, method: str) -> None:
        self.tasks, self.rows, self.size, self.method = tasks, rows, size, method
        self.round, self.groups = 0, None

    def __reduce__(self) -> tuple:
        return str, ("curriculum",)  # datasets names a cache after the pickle; a draw that lives has none to name

    def __call__(self) -> Iterator[dict]:
        """Rows without end; TRL asks for the next round when it has trained on the last."""
        while True:
            picked = ts.pick(self.tasks, self.groups, n=self.size, round=self.round, method=self.method)
            yield from (self.rows[task_id] for task_id in picked["task_id"])

    def learn(self, task_ids: list[str], texts: list[str], reasons: list[str | None]) -> None:
        """Take in one round: score, group, and let the next draw follow."""
        self.round += 1
        columns = {"task_id": task_ids, "text": texts, "finish_reason": reasons, "round": self.round}
        scores = ts.scores(self.tasks, pl.DataFrame(columns))
        self.groups = ts.groups(scores, self.groups, method=self.method)


class LearningReward(TrlReward):
    """Our reward, which also tells the curriculum."""

    def __init__(self, tokenizer, curriculum: Curriculum | None = None, **settings: str) -> None:
        super().__init__(tokenizer, **settings)
        self.curriculum = curriculum

    def __call__(self, prompts, completions, completion_ids=None, label=(), **more):
        rewards = super().__call__(prompts, completions, completion_ids, label, **more)
        if self.curriculum is not None:
            texts, reasons = self.texts(completions, completion_ids)
            self.curriculum.learn([Label.read(one).task_id for one in label], texts, reasons)
        return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO by TRL with our reward")
    parser.add_argument("data", type=Path, help="folder of tasks, or a file of `toolsample export --to trl`")
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=1, help="rounds of drawing, generating and training")
    parser.add_argument("--tasks", type=int, default=64, help="tasks per round")
    parser.add_argument("--method", default="rds", help="none: uniform draw; else a method of `toolsample filter`")
    parser.add_argument("-n", type=int, default=8, help="completions per task")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps per round; at least 2")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    curriculum = None
    if args.data.is_dir():
        tasks = ts.read(args.data, "tasks")
        with tempfile.TemporaryDirectory() as folder:
            ts.export(tasks, "trl", Path(folder) / "rows.jsonl", args.model)
            rows = [json.loads(line) for line in (Path(folder) / "rows.jsonl").open(encoding="utf-8")]
        curriculum = Curriculum(tasks, {row["task_id"]: row for row in rows}, args.tasks, args.method)
        dataset = IterableDataset.from_generator(curriculum)
    else:
        rows = [json.loads(line) for line in args.data.open(encoding="utf-8")]
        dataset = Dataset.from_list([{"prompt": row["prompt"], "label": row["label"]} for row in rows])
        args.tasks = min(args.tasks, len(rows))
        args.rounds = len(rows) // args.tasks
    config = GRPOConfig(
        output_dir=str(args.out), max_steps=args.rounds * args.steps,
        learning_rate=args.lr, lr_scheduler_type="constant",
        per_device_train_batch_size=args.tasks * args.n // args.steps, steps_per_generation=args.steps,
        gradient_accumulation_steps=1, num_generations=args.n, max_completion_length=args.max_new_tokens,
        shuffle_dataset=False, log_completions=True, num_completions_to_print=1, logging_steps=args.steps,
        gradient_checkpointing=not args.cpu, use_cpu=args.cpu, bf16=not args.cpu, report_to=[], save_strategy="no",
        disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=args.model, args=config, train_dataset=dataset, processing_class=tokenizer,
        reward_funcs=LearningReward(tokenizer, curriculum),
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(args.out))


if __name__ == "__main__":
    main()
