"""Scored rollouts of the small world with answers of every kind, and tokenizers with the habits that trip trainers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from support.tiny_model import task_row
from toolsample_cli.config import ScoreConfig
from toolsample_cli.models.chat import Chat
from toolsample_cli.score.stage import run as run_score
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options
from toolsample_cli.toolcalls.call import read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "fixtures" / "policy"
TOOLS = [
    {
        "name": "find_hotel",
        "description": "find a hotel",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "nights": {"type": "integer"},
                "near": {"type": "object", "properties": {"street": {"type": "string"}, "comment": {"type": "string"}}},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
    {
        "name": "cancel_hotel",
        "description": "cancel a hotel",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
]


@dataclass(frozen=True)
class World:
    """Folders of tasks, rollouts and scores of one round, all of the same tasks."""

    tasks: Path
    rollouts: Path
    scores: Path

    def load(self, kind: str) -> pl.DataFrame:
        return open_folder(getattr(self, kind), schema.KINDS[kind]).load()


def call(name: str, **arguments: object) -> dict:
    return {"name": name, "arguments": arguments}


def world_task(number: int, protocol: str = "hermes", **overrides: object) -> dict:
    """A task of the small world: one call, several, nested values, or none, by its number."""
    golds = [
        [call("find_hotel", nights=number, city="Porto")],
        [call("find_hotel", city="Riga", near={"street": "Elm Road"}, tags=["quiet", "cheap"])],
        [call("cancel_hotel", code=f"B{number}"), call("find_hotel", city="Oslo")],
        [],
    ]
    gold = golds[number % len(golds)]
    kind = "calls" if gold else "response"
    answer = PROTOCOLS[protocol].render(read_calls(json.dumps(gold)), None if gold else "I cannot do that.")
    row = task_row(
        number, f"please do number {number}", protocol=protocol, tools_json=json.dumps(TOOLS), source="bridge",
        gold_json=json.dumps(gold), gold_kind=kind, gold_text=answer, license="Apache-2.0",
    )  # fmt: skip
    return {**row, **overrides}


def answers_of(task: dict) -> list[tuple[str, str | None]]:
    """Eight (text, finish reason): right ones, and faults of form, name, key, value, length."""
    gold = task["gold_text"]
    return [
        (gold, "stop"),
        (gold.replace("Porto", "Lisbon").replace("B", "C").replace("Riga", "Kiev"), "stop"),
        (gold.replace("hotel", "hostel"), "stop"),
        (gold[: len(gold) * 2 // 3], "length"),
        (gold.replace('{"city"', '{"city": "Porto", "city"').replace('{"nights"', '{"nights": 1, "nights"'), "stop"),
        (f"<think>\nthis is it\n</think>\n\n{gold}", "stop"),
        ("", "stop"),
        (f"well, {gold}\n", "stop"),
    ]


def write(path: Path, kind: schema.Kind, rows: list[dict], per_shard: int = 64) -> Path:
    with Output(path, kind, {}) as output:
        for number, at in enumerate(range(0, len(rows), per_shard)):
            output.write(number, schema.frame(kind, rows[at : at + per_shard]))
        output.finish()
    return path


def bridge_world(folder: Path, tasks: list[dict], model: Path = POLICY) -> World:
    """Rollouts of `answers_of` with real ids and logprobs, scored by the stage itself."""
    chat = Chat.load(model)
    rollouts = []
    for task in tasks:
        for sample, (text, reason) in enumerate(answers_of(task)):
            ids = chat.completion_ids(text) if reason == "stop" else chat.encode(text)
            rollouts.append(
                {
                    "rollout_id": f"{task['task_id']}/0/{sample}", "task_id": task["task_id"], "round": 0,
                    "sample": sample, "policy": "p", "backend": "replay", "seed": 0,
                    "prompt_ids": chat.prompt_ids(task), "completion_ids": ids,
                    "logprobs": [-0.5] * len(ids), "finish_reason": reason, "ids_from_text": False,
                    "text": chat.text(ids), "error": None,
                }
            )  # fmt: skip
    made = World(folder / "tasks", folder / "rollouts", folder / "scores")
    write(made.tasks, schema.TASKS, tasks)
    write(made.rollouts, schema.ROLLOUTS, rollouts, 8 * 64)
    run_score(made.tasks, made.rollouts, out=made.scores, config=ScoreConfig(), options=Options())
    return made


def special_tokenizer(folder: Path, *, start: bool = False, special: tuple[str, ...] = ()) -> Path:
    """The small policy's tokenizer, which then puts a start token before any text, or has further special tokens."""
    from tokenizers import processors
    from transformers import AutoTokenizer

    shutil.copytree(POLICY, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*special, *(["<s>"] if start else [])]})
    if start:
        pair = ("<s>", tokenizer.convert_tokens_to_ids("<s>"))
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[pair])
        tokenizer.chat_template = "{{- '<s>' }}" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return folder
