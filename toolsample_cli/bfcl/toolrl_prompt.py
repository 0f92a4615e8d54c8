"""Questions in ToolRL's layout: tools numbered in the system prompt, the whole history in one user message.

The system prompt is taken from tasks that the policy was trained on (`prompt_like`), with their tools replaced by the
question's, so that it is theirs to the letter. Without such tasks our own wording of the same layout is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolsample_cli.errors import ConfigError
from toolsample_cli.json_types import Row
from toolsample_cli.models.prompting import SLOT, rlla_system
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.toolcalls.call import loads

OWN = """\
You answer a user over several turns and may call tools to do so.

**Available Tools**
You can call the tools of this list:
{tools}

**What to do in each turn**
1. **Think:** go over the history and say what the user wants now.
2. **Call:** where a tool helps, name it and give its parameters.
3. **Answer:** where words are wanted, answer the user.

**Output Format**
```plaintext
<think> your thoughts </think>
<tool_call>
{"name": "name of a tool", "parameters": {"name of a parameter": "its value"}}
{"name": "name of another tool", "parameters": {}}
</tool_call>
<response> your answer to the user </response>
```

**Rules**
1. Always write `<think>`. After it comes `<tool_call>`, `<response>`, or both.
2. One call is one JSON object on a line of its own, with "name" and "parameters"; several lines are several calls.
3. The history holds what the user said, your earlier calls and answers, and results of tools as `<obs>`.
"""
"""System prompt in ToolRL's layout, worded here."""


def template(tasks: Path | None) -> str:
    """A system prompt with `{tools}` where the tools go; ConfigError when the tasks hold no RLLA prompt."""
    if tasks is None:
        return OWN
    for _, frame in open_folder(tasks, schema.TASKS).frames(["protocol", "messages_json"]):
        if (found := rlla_system(frame)) is not None:
            return found
    raise ConfigError(f"{tasks}: no task with an RLLA system prompt", hint="--prompt-like takes imported RLLA tasks")


def system(text: str, functions: Sequence[Row]) -> str:
    """The template with these tools, numbered from 1."""
    listed = "\n".join(
        f"{number}. Name: {function['name']}\nDescription: {function.get('description', '')}\n"
        f"Parameters: {json.dumps((function.get('parameters') or {}).get('properties', {}), ensure_ascii=False)}"
        for number, function in enumerate(functions, 1)
    )
    return text.replace(SLOT, listed, 1)


def messages(text: str, functions: Sequence[Row], turns: Sequence[Row]) -> list[Row]:
    """System and user message for a history of turns {role, content} (user, assistant, tool, system)."""
    own = [turn["content"] for turn in turns if turn["role"] == "system"]
    parts: list[str] = []
    observed: list[Row] = []
    for turn in turns:
        if turn["role"] == "tool":
            observed.append({"name": turn.get("name", ""), "results": turn["content"]})
            continue
        if observed:
            parts[-1] += f"\n{_obs(observed)}"
            observed = []
        if turn["role"] == "user":
            parts.append(f"<user> {turn['content']} </user>")
        elif turn["role"] == "assistant":
            parts.append(str(turn["content"]))
    if observed:
        parts[-1] += f"\n{_obs(observed)}"
    history = "**Dialogue Records History**\n" + "\n\n".join(parts)
    prompt = "\n\n".join([system(text, functions), *own])
    return [{"role": "system", "content": prompt}, {"role": "user", "content": history}]


def toolrl_calls(text: str) -> list[list[Any]]:
    """[[name, arguments]] as ToolRL's own BFCL handler reads a reply: lines after the last tag, broken ones dropped."""
    if "<tool_call>" not in text:
        return []
    found = []
    for line in text.rsplit("<tool_call>", 1)[1].split("</tool_call>", 1)[0].strip().split("\n"):
        try:
            value = loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"] != "None":
            arguments = value.get("parameters")
            found += [[value["name"], arguments]] if isinstance(arguments, dict) else []
    return found


def _obs(results: list[Row]) -> str:
    return f"<obs> {json.dumps(results, ensure_ascii=False)} </obs>"
