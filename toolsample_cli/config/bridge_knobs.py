"""Knobs of the stages that meet other trainers: export, import-rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from toolsample_cli.config.settings import knob

TRAINERS = ("verl", "trl", "slime", "openrlhf", "messages")
ANSWERS = ("sft", "llamafactory", "openai")
PAIRS = ("dpo",)


@dataclass(frozen=True)
class ExportConfig:
    """`toolsample export`: tasks, right answers or pairs in another trainer's form."""

    to: str = knob(
        "verl",
        "form: tasks for verl, trl, slime, openrlhf or as messages; right answers as sft text, llamafactory or openai messages; dpo: pairs of a right and a worse answer",
        choices=(*TRAINERS, *ANSWERS, *PAIRS),
    )
    prompt: str = knob(
        "auto",
        "how tools reach the model: rendered into one text, as text in the system message, or left to a trainer that renders each row's tools; auto: what the trainer needs",
        choices=("auto", "rendered", "system", "messages"),
    )
    max_prompt_tokens: int = knob(0, "leave out prompts with more tokens, which trainers would cut; 0: none", low=0)
    where: str = knob("", "only tasks for which this SQL condition on columns of tasks and groups holds")
    per_task: int = knob(1, "right answers, or pairs, per task", low=1)
    data_source: str = knob("toolsample", "verl: the name under which it groups its metrics")
    allow_test_data: bool = knob(False, "export rows marked as benchmark test data")


@dataclass(frozen=True)
class RolloutsInConfig:
    """`toolsample import-rollouts`: another trainer's rollouts as ours."""

    form: str = knob(
        "auto",
        "form of the files; `auto` decides by the keys of each row",
        choices=("auto", "verl", "trl", "traces", "nemo_rl", "openai_batch", "lines"),
    )
    policy: str = knob("", "name of the model that answered; default: what the files say, else `unknown`")
    round: int = knob(0, "round of the loop these rollouts belong to", low=0)
    max_new_tokens: int = knob(
        0,
        "the trainer's limit on completions, by which finish reasons are told where the files have none (needs --model); 0: not known",
        low=0,
    )
    tasks_per_shard: int = knob(512, "tasks in one output shard", low=1)
