"""Tasks as rows of other trainers' training data: one pure function per form.

Every row carries the label (label.py) in the field that the trainer hands to the reward, and our verdict where the
form has room. Nested values travel as JSON text: Parquet structs would invent arguments that are null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolsample_cli.bridges.label import Label
from toolsample_cli.bridges.prompts import Prompt, PromptWriter
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import task_conversation

VERDICT = ("n", "n_exact", "reward_mean", "reward_var", "keep", "reason")
"""Columns of `groups` that travel with a task."""


@dataclass(frozen=True)
class Subject:
    """One task about to be written: its prompt, and the verdict of its group ({} without groups)."""

    task: Row
    prompt: Prompt
    data_source: str = "toolsample"
    verdict: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The label as text."""
        return Label.of(self.task).text

    @property
    def functions(self) -> list[Row]:
        """The tools that the chat template should render; [] when the messages hold them already."""
        return functions(self.task)

    @property
    def messages(self) -> list[Row]:
        """The prompt as messages, also when it is one text."""
        return (
            self.prompt.form if isinstance(self.prompt.form, list) else [{"role": "user", "content": self.prompt.form}]
        )


@dataclass(frozen=True)
class TaskForm:
    """How a trainer wants tasks.

    `prompt` is its default place for the tools, `places` are those it can read, `adds_special`: it tokenises a text
    prompt with the tokenizer's own start token.
    """

    name: str
    prompt: str
    places: tuple[str, ...]
    suffix: str
    row: Callable[[Subject], Row]
    adds_special: bool = False


def functions(task: Row) -> list[Row]:
    """A task's tools in OpenAI's form, as chat templates take them; [] when the messages hold them already."""
    return [{"type": "function", "function": tool} for tool in task_conversation(task).tools]


def prompt_of(task: Row, form: TaskForm, place: str, writer: PromptWriter | None) -> Prompt | None:
    """The prompt with its tools in `place`; None where the template cannot have them there.

    Without a tokenizer (allowed where nothing is to be rendered) tokens are not counted.
    """
    if writer is None:
        return Prompt([dict(turn) for turn in task_conversation(task).messages])
    if place == "messages":
        return writer.messages(task)
    return writer.rendered(task, form.adds_special) if place == "rendered" else writer.system(task)


def _verl(one: Subject) -> Row:
    """verl's RLHFDataset; `tools_json` and `messages_json` are for the agent loop of verl_agent_loop.py."""
    talk = task_conversation(one.task)
    return {
        "data_source": one.data_source,
        "prompt": [{"role": str(m["role"]), "content": str(m.get("content") or "")} for m in one.messages],
        "ability": "tool_calling",
        "reward_model": {"style": "rule", "ground_truth": one.label},
        "extra_info": {
            "index": one.task["task_id"],
            "split": one.task["split"],
            "tools_json": json.dumps(one.functions, ensure_ascii=False),
            "messages_json": json.dumps(talk.messages, ensure_ascii=False),
            **one.verdict,
        },
    }


def _trl(one: Subject) -> Row:
    return {"prompt": one.prompt.form, "label": one.label, "task_id": one.task["task_id"], **one.verdict}


def _slime(one: Subject) -> Row:
    """For --input-key prompt --label-key label --metadata-key metadata, and --tool-key tools with messages."""
    row: Row = {"prompt": one.prompt.form, "label": one.label}
    if isinstance(one.prompt.form, list):
        row["tools"] = one.functions
    return {**row, "metadata": {"task_id": one.task["task_id"], "source": one.data_source, **one.verdict}}


def _openrlhf(one: Subject) -> Row:
    """For --data.input_key input --data.label_key label, without --data.apply_chat_template."""
    return {"input": one.prompt.form, "label": one.label}


def _messages(one: Subject) -> Row:
    """For whatever reads messages: prompt, tools, the gold answer and the label side by side."""
    return {
        "task_id": one.task["task_id"],
        "messages": one.prompt.form,
        "tools": one.functions,
        "answer": list(Label.of(one.task).gold),
        "split": one.task["split"],
        "license": one.task["license"],
        "label": one.label,
        **one.verdict,
    }


TASK_FORMS = {
    form.name: form
    for form in (
        TaskForm("verl", "system", ("system", "messages"), ".parquet", _verl),
        TaskForm("trl", "rendered", ("rendered", "system"), ".jsonl", _trl, adds_special=True),
        TaskForm("slime", "messages", ("messages", "rendered", "system"), ".jsonl", _slime),
        TaskForm("openrlhf", "rendered", ("rendered",), ".jsonl", _openrlhf),
        TaskForm("messages", "messages", ("messages", "system"), ".jsonl", _messages),
    )
}
"""By name, in the order of the help."""
