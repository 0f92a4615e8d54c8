"""The forms in which trainers write rollouts, each told by its keys and read by one function."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolsample_cli.bridges.label import Label
from toolsample_cli.json_types import Row


@dataclass(frozen=True)
class Incoming:
    """One completion as a file tells it.

    `prompt` is text or messages; `prompt_ids` and `completion_ids` are token ids, `logprobs` one number per id of
    the completion; `repeated`: a log of a generation that was logged before.
    """

    text: str | None
    task_id: str | None = None
    prompt: str | Sequence[Row] | None = None
    sample: int | None = None
    finish_reason: str | None = None
    prompt_ids: Sequence[int] | None = None
    completion_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    policy: str | None = None
    repeated: bool = False


@dataclass(frozen=True)
class RolloutForm:
    """One form: rows with all these `keys` are in it. `read` may raise whatever broken rows make it raise."""

    name: str
    keys: frozenset[str]
    read: Callable[[Row], list[Incoming]]


def _label(value: object) -> str | None:
    label = Label.read(value)
    return label.task_id if label else None


def _verl(row: Row) -> list[Incoming]:
    """verl's rollout and validation dumps, old and new: input, output, and gts since 0.6; no ids, no reason."""
    return [Incoming(row["output"], _label(row.get("gts")), row["input"])]


def _trl(row: Row) -> list[Incoming]:
    """TRL's completions files; our reward logs task_id and completion_ids there."""
    completion = row["completion"]
    text = completion if isinstance(completion, str) else "".join(_content(turn) for turn in completion)
    task_id = _label(row.get("label")) or row.get("task_id")
    return [Incoming(text, task_id, row["prompt"], completion_ids=row.get("completion_ids"))]


def _traces(row: Row) -> list[Incoming]:
    """verifiers and prime-rl: an episode per line, each trace a graph of messages with the tokens that each adds.

    The first sampled message is the answer to the task; later ones belong to a loop of tools.
    """
    data = row["task"].get("data") or {}
    given = data.get("task_id", data.get("id"))
    task_id = _label(data.get("label")) or (None if given is None else str(given))
    return [one for trace in row["traces"] for one in _first_answer(trace, task_id)]


def _first_answer(trace: Row, task_id: str | None) -> list[Incoming]:
    nodes = trace["nodes"]
    first = next((at for at, node in enumerate(nodes) if node.get("sampled")), None)
    if first is None:
        return []
    path: list[Row] = []
    at = nodes[first].get("parent")
    while at is not None and len(path) <= len(nodes):
        path.insert(0, nodes[at])
        at = nodes[at].get("parent")
    node = nodes[first]
    ids, mask = node.get("token_ids") or [], node.get("mask") or []
    completion = [i for i, own in zip(ids, mask, strict=True) if own] or None
    before = [list(one.get("token_ids") or []) for one in path]
    own_prompt = [i for i, own in zip(ids, mask, strict=True) if not own]
    known = completion is not None and all(before)
    calls = trace.get("calls") or [{}]
    return [
        Incoming(
            _content(node["message"]), task_id, [one["message"] for one in path],
            finish_reason=node.get("finish_reason") or calls[0].get("finish_reason"),
            prompt_ids=[*itertools.chain(*before), *own_prompt] if known else None,
            completion_ids=completion, logprobs=node.get("logprobs") or None,
        )
    ]  # fmt: skip


def _nemo_rl(row: Row) -> list[Incoming]:
    """NeMo-RL's train_data files: one row per step with batched columns; the mask tells the completion's ids."""
    found = []
    for place, content in enumerate(row["content"]):
        ids, mask = row["token_ids"][place], row["token_loss_mask"][place]
        lengths = row.get("input_lengths")
        length = lengths[place] if lengths else len(ids)
        length = length[0] if isinstance(length, list) else length
        own = [i for i in range(min(length, len(ids))) if mask[i]]
        logprobs = row.get("generation_logprobs")
        turns = content if isinstance(content, list) else None
        found.append(
            Incoming(
                _content(turns[-1]) if turns else None, prompt=turns[:-1] if turns else None,
                prompt_ids=ids[: own[0] if own else length], completion_ids=[ids[i] for i in own],
                logprobs=[logprobs[place][i] for i in own] if logprobs else None,
            )
        )  # fmt: skip
    return found


def _openai_batch(row: Row) -> list[Incoming]:
    """OpenAI's batch output: custom_id is the task's id, with `#sample` behind it when there are several."""
    task_id, _, number = row["custom_id"].partition("#")
    body = row["response"]["body"]
    base = int(number) if number.isdigit() else None
    return [
        Incoming(
            _content(choice["message"]), task_id, sample=None if base is None else base + place,
            finish_reason=choice.get("finish_reason"), policy=body.get("model"),
        )
        for place, choice in enumerate(body["choices"])
    ]  # fmt: skip


def plain_lines(row: Row) -> list[Incoming]:
    """Plain rows {task_id or label or prompt, text, sample?, finish_reason?, completion_ids?, logprobs?}."""
    task_id = _label(row.get("label")) or row.get("task_id")
    return [
        Incoming(
            row["text"], task_id, row.get("prompt"), row.get("sample"), row.get("finish_reason"),
            row.get("prompt_ids"), row.get("completion_ids"), row.get("logprobs"), row.get("policy"),
        )
    ]  # fmt: skip


def _content(message: Mapping[str, object]) -> str:
    """A message as the text a model wrote; parsed calls go back into OpenAI's form, which protocol openai reads."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if not isinstance(calls, list) or not calls:
        return str(content or "")
    nested = [one if "function" in one else {"type": "function", "function": one} for one in calls]
    return json.dumps({"content": content, "tool_calls": nested} if content else {"tool_calls": nested})


FORMS = (
    RolloutForm("traces", frozenset({"task", "traces"}), _traces),
    RolloutForm("nemo_rl", frozenset({"content", "token_ids", "token_loss_mask"}), _nemo_rl),
    RolloutForm("openai_batch", frozenset({"custom_id", "response"}), _openai_batch),
    RolloutForm("verl", frozenset({"input", "output"}), _verl),
    RolloutForm("trl", frozenset({"prompt", "completion"}), _trl),
    RolloutForm("lines", frozenset({"text"}), plain_lines),
)
"""Most telling first."""
