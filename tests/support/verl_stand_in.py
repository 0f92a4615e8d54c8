"""Stands in for verl's trainer in rehearsals: reads its settings and data and writes its files, without a model.

Answers are drawn from each row's gold, more often right in later steps. The state of its loader behaves as verl's does:
where `data.pt` is found in the checkpoint that is resumed, that many batches of the new file are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path

import polars as pl
from transformers import AutoTokenizer

from toolsample_cli.bridges.label import Label
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS


def answer(label: Label, right: bool) -> str:
    calls = [Call(one["name"] if right else one["name"] + "_x", one["arguments"]) for one in label.gold]
    return PROTOCOLS[label.protocol].render(calls, None if calls else "I cannot do that.")


def main() -> None:
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    n, batch = int(given["actor_rollout_ref.rollout.n"]), int(given["data.train_batch_size"])
    spec = importlib.util.spec_from_file_location("custom_module", given["reward.custom_reward_function.path"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tokenizer = AutoTokenizer.from_pretrained(given["actor_rollout_ref.model.path"])
    rows = pl.read_parquet(given["data.train_files"]).to_dicts()
    checkpoints, dump = Path(given["trainer.default_local_dir"]), Path(given["trainer.rollout_data_dir"])
    tracker, step, used = checkpoints / "latest_checkpointed_iteration.txt", 0, 0
    if tracker.exists():
        step = int(tracker.read_text())
        state = checkpoints / f"global_step_{step}" / "data.pt"
        used = int(state.read_text()) if state.exists() else 0
    last, every = int(given["trainer.total_training_steps"]), int(given["trainer.save_freq"])
    batches = [rows[at : at + batch] for at in range(0, len(rows) - batch + 1, batch)][used:]
    dump.mkdir(parents=True, exist_ok=True)
    while step < last and batches:
        step += 1
        dice, lines = random.Random(step), []
        for number, row in enumerate(batches.pop(0)):
            label = row["reward_model"]["ground_truth"]
            options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
            prompt = tokenizer.apply_chat_template(row["prompt"], **options)
            for sample in range(n):
                text = answer(Label.read(label), dice.random() < 0.2 + 0.1 * step)
                found = module.compute_score(
                    data_source=row["data_source"], solution_str=text, ground_truth=label, extra_info=row["extra_info"]
                )
                lines.append(
                    {"input": tokenizer.decode(prompt, skip_special_tokens=True), "output": text, "gts": label,
                     "score": found["score"], "step": step, "uid": f"{number:032x}_{sample}_0"}
                )  # fmt: skip
        (dump / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        if step % every == 0 or step == last:
            folder = checkpoints / f"global_step_{step}"
            (folder / "actor").mkdir(parents=True, exist_ok=True)
            (folder / "data.pt").write_text(str(len(rows) // batch - len(batches)))
            tracker.write_text(str(step))


if __name__ == "__main__":
    main()
