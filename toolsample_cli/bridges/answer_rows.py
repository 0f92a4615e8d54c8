"""Right answers of scored rollouts as fine-tuning data, and pairs of a right and a worse answer: one function per form.

Everything is JSON lines: Parquet structs would invent null arguments. What a form cannot hold is Unfit, with a reason
that is counted, and never bent to fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolsample_cli.bridges.prompts import PromptWriter
from toolsample_cli.bridges.task_rows import functions
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import task_conversation
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.tools import toolbox


@dataclass(frozen=True)
class Answer:
    """One right answer: its task, its text and reward, and the worse answer beside it for a pair."""

    task: Row
    text: str
    reward: float
    rejected: str = ""
    rejected_reward: float = 0.0


@dataclass(frozen=True)
class Unfit:
    """Why a form cannot hold an answer, in one word."""

    reason: str


@dataclass(frozen=True)
class AnswerForm:
    """`paired`: a chosen and a rejected answer; `needs_model`: prompts are rendered by a tokenizer."""

    name: str
    paired: bool
    needs_model: bool
    row: Callable[[Answer, PromptWriter | None], Row | Unfit]


@dataclass(frozen=True)
class Said:
    """An answer taken apart: calls in the template's own place, or all of it as plain text (`calls` empty)."""

    content: str
    calls: tuple[Call, ...] = ()
    thought: str = ""


def said(answer: Answer) -> Said:
    """An answer as a turn, its arguments in the order of the model.

    Protocols that the template does not know stay text: the prompt asks for exactly that.
    """
    protocol = PROTOCOLS[answer.task["protocol"]]
    if not protocol.tools_in_template:
        return Said(answer.text)
    types = {"types": toolbox(answer.task["tools_json"]).parameter} if protocol.typed else {}
    parsed = protocol.parse(answer.text, answer.task["gold_kind"], **types)
    return Said(parsed.response or "", parsed.calls, parsed.thought or "")


def _text_pair(answer: Answer, writer: PromptWriter | None) -> tuple[Row, str]:
    """The prompt as text with the task's id, and the token that ends an answer."""
    assert writer is not None  # the stage refuses a form that needs a model without one
    prompt = writer.rendered(answer.task, adds_special=True)
    end = str(writer.chat.tokenizer.decode([writer.chat.end_of_turn]))
    return {"prompt": prompt.form, "task_id": answer.task["task_id"]}, end


def _sft(answer: Answer, writer: PromptWriter | None) -> Row | Unfit:
    """TRL's SFT and others' text form: exactly what was sampled, with the token that ends the turn."""
    row, end = _text_pair(answer, writer)
    return {**row, "completion": answer.text + end, "reward": answer.reward}


def _dpo(answer: Answer, writer: PromptWriter | None) -> Row | Unfit:
    """TRL's DPO as text; both rewards stay beside it."""
    row, end = _text_pair(answer, writer)
    texts = {"chosen": answer.text + end, "rejected": answer.rejected + end}
    return {**row, **texts, "reward_chosen": answer.reward, "reward_rejected": answer.rejected_reward}


_SHAREGPT = {"user": "human", "assistant": "gpt", "tool": "observation"}


def _llamafactory(answer: Answer, writer: PromptWriter | None) -> Row | Unfit:
    """ShareGPT turns. LLaMA-Factory skips rows whose turns do not alternate in silence: those are Unfit here."""
    del writer
    turns: list[dict[str, str]] = []
    system = ""
    for at, turn in enumerate(task_conversation(answer.task).messages):
        if turn["role"] == "system" and at == 0:
            system = str(turn["content"])
        elif turn.get("tool_calls"):
            if turn["content"]:
                return Unfit("text_beside_calls")
            turns.append(
                {"from": "function_call", "value": _calls_text([one["function"] for one in turn["tool_calls"]])}
            )
        elif turn["role"] in _SHAREGPT:
            turns.append({"from": _SHAREGPT[turn["role"]], "value": str(turn["content"])})
        else:
            return Unfit("unknown_role")
    spoken = said(answer)
    thought = f"<think>\n{spoken.thought}\n</think>\n\n" if spoken.thought else ""
    if spoken.calls and spoken.content:
        return Unfit("text_beside_calls")
    if spoken.calls:
        value = thought + _calls_text([call.record() for call in spoken.calls])
        turns.append({"from": "function_call", "value": value})
    else:
        turns.append({"from": "gpt", "value": thought + spoken.content})
    asks = [turn["from"] in ("human", "observation") for turn in turns]
    if asks != [number % 2 == 0 for number in range(len(turns))]:
        return Unfit("turns_do_not_alternate")
    tools = [tool["function"] for tool in functions(answer.task)]
    return {"conversations": turns, "system": system, "tools": json.dumps(tools, ensure_ascii=False) if tools else ""}


def _calls_text(calls: Sequence[Row]) -> str:
    plain = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return json.dumps(plain, ensure_ascii=False)


def _openai(answer: Answer, writer: PromptWriter | None) -> Row | Unfit:
    """OpenAI's fine-tuning form: arguments as text, an id per call. It has no field for a thought: Unfit with one."""
    del writer
    spoken = said(answer)
    if spoken.thought:
        return Unfit("has_a_thought")
    messages = _with_call_ids(task_conversation(answer.task).messages)
    messages.append(_assistant(spoken.content, spoken.calls, len(messages)))
    row: Row = {"messages": messages}
    tools = functions(answer.task)
    return {**row, "tools": tools, "parallel_tool_calls": True} if tools else row


def _with_call_ids(turns: Sequence[Row]) -> list[Row]:
    """History as OpenAI wants it: every call has an id, and every tool turn names the call it answers."""
    messages: list[Row] = []
    open_ids: list[str] = []
    for number, turn in enumerate(turns):
        calls = turn.get("tool_calls")
        if calls:
            made = [Call(one["function"]["name"], one["function"]["arguments"]) for one in calls]
            given = [one.get("id") for one in calls]
            message = _assistant(turn["content"], made, number, given)
            open_ids = [one["id"] for one in message["tool_calls"]]
            messages.append(message)
        elif turn["role"] == "tool":
            asked = open_ids.pop(0) if open_ids else f"call_{number}"
            messages.append(
                {"role": "tool", "tool_call_id": turn.get("tool_call_id") or asked, "content": turn["content"]}
            )
        else:
            messages.append({"role": turn["role"], "content": turn["content"]})
    return messages


def _assistant(content: str, calls: Sequence[Call], number: int, ids: Sequence[str | None] = ()) -> Row:
    if not calls:
        return {"role": "assistant", "content": content}
    written = [
        {
            "id": (ids[place] if place < len(ids) else None) or f"call_{number}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for place, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": content or None, "tool_calls": written}


ANSWER_FORMS = {
    form.name: form
    for form in (
        AnswerForm("sft", False, True, _sft),
        AnswerForm("dpo", True, True, _dpo),
        AnswerForm("llamafactory", False, False, _llamafactory),
        AnswerForm("openai", False, False, _openai),
    )
}
"""By name, in the order of the help."""
