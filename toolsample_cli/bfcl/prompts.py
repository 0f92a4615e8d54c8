"""How a question is put to a model and how its answer is read: the native template, BFCL's own prompt, or RLLA.

Native: tools through the model's chat template, names as they are (dots too), types in JSON Schema. `prompting`: the
official system prompt, calls as a Python list. RLLA carries its tools in its own system prompt (see `rlla_prompt`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from toolsample_cli.bfcl import toolrl_prompt
from toolsample_cli.bfcl.questions import Question
from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import MAX_CHARS, as_written
from toolsample_cli.toolcalls.protocols import PROTOCOLS, Parsed
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_tools

PROMPTING = "prompting"
"""Name of the official prompting mode beside the protocols."""

VERBATIM = "rlla"
"""A protocol whose messages `chat.Chat` renders as they are."""


def check_protocol(name: str) -> None:
    """ConfigError for a name that is neither a protocol nor `prompting`, or whose prompt is not known."""
    known = [*PROTOCOLS, PROMPTING]
    if name not in known:
        raise ConfigError(f"protocol = {name!r}: not one of {', '.join(known)}", hint=nearest(name, known))
    if name not in (PROMPTING, VERBATIM) and not PROTOCOLS[name].tools_in_template:
        able = [known for known, protocol in PROTOCOLS.items() if protocol.tools_in_template]
        raise ConfigError(
            f"protocol = {name!r}: its tools are in a prompt of its own, which eval-bfcl does not know",
            hint=f"one of {', '.join([PROMPTING, VERBATIM, *able])}",
        )


def through_template(protocol: str) -> bool:
    """Whether the tools go through the chat template (or a server's `tools`) rather than stand in the messages."""
    return protocol != PROMPTING and PROTOCOLS[protocol].tools_in_template


class Style:
    """How questions of one run are put: which messages open a question, and what is sent for a history.

    `prompted(question)` gives the official prompting mode's first turn; `rlla` is a template with `{tools}`.
    """

    def __init__(self, protocol: str, prompted: Callable[[Question], list[Row]], rlla: str = toolrl_prompt.OWN) -> None:
        self.protocol = protocol
        self._prompted = prompted
        self._rlla = rlla

    def first(self, question: Question) -> list[Row]:
        """The first turn's messages."""
        return self._prompted(question) if self.protocol == PROMPTING else deepcopy(question.turns[0])

    def prompt(self, key: str, history: Sequence[Row], functions: Sequence[Row]) -> Prompt:
        """What is sent for a history of messages."""
        sent = list(history)
        if self.protocol == VERBATIM:
            sent = toolrl_prompt.messages(self._rlla, tools_for(functions, key), history)
        return Prompt(key, sent, list(functions))


@dataclass(frozen=True)
class Prompt:
    """One question or one step of a dialogue."""

    key: str
    messages: Sequence[Row]
    functions: Sequence[Row]


def tools_for(functions: Sequence[Row], where: str) -> list[Row]:
    """Functions as tools in JSON Schema; DataError when one cannot be read."""
    try:
        return read_tools(list(functions))
    except Unreadable as error:
        raise DataError(f"{where}: its functions cannot be read: {error}") from None


def task_row(prompt: Prompt, protocol: str) -> Row:
    """A prompt as a row of tasks, which `chat.Chat` renders; keys stay in the order of their author, as in `import`."""
    template = through_template(protocol)
    tools = tools_for(prompt.functions, prompt.key) if template else []
    return {
        "task_id": prompt.key,
        "protocol": protocol if template else VERBATIM,
        "messages_json": as_written(list(prompt.messages)),
        "tools_json": as_written(tools),
        "demos_json": "[]",
    }


def read_answer(reply: Row, protocol: str, functions: Sequence[Row] = ()) -> Row:
    """A reply as the scorer wants it, to be read as strictly as the official handlers do, so that numbers are equal.

    {"text"} is read by the official rules of the prompting mode, {"hermes"} by those for Qwen; {"calls", "text"} by the
    strict reader of another protocol. Thoughts are cut off first, as the official handlers of thinking models do. Calls
    that a server gave ready are taken as they are. `functions` give the types to a protocol whose text has none.
    """
    text = without_thought(reply["text"])
    if reply.get("calls") is not None:
        return {"calls": reply["calls"], "text": text, "underscores": reply.get("underscores", False)}
    if protocol == PROMPTING:
        return {"text": text}
    if protocol == "hermes":
        return {"hermes": text}
    if protocol == "rlla":
        return {"calls": toolrl_prompt.toolrl_calls(text), "text": text}
    strict = parsed_reply(reply["text"], protocol, functions).strict_calls or ()
    return {"calls": [[call.name, call.arguments] for call in strict], "text": text}


def likely_calls(reply: Row, protocol: str, functions: Sequence[Row] = ()) -> int:
    """How many calls a lenient reader sees in a reply; official readers may see none of them."""
    if reply.get("calls") is not None or protocol == PROMPTING:
        return len(reply.get("calls") or ())
    return len(parsed_reply(reply["text"], protocol, functions).calls)


def parsed_reply(text: str, protocol: str, functions: Sequence[Row]) -> Parsed:
    """The reply as its protocol reads it."""
    if not PROTOCOLS[protocol].typed:
        return PROTOCOLS[protocol].parse(text, "calls")
    known = {tool["name"]: tool["parameters"].get("properties", {}) for tool in tools_for(functions, "this question")}
    return PROTOCOLS[protocol].parse(text, "calls", types=lambda tool, name: known.get(tool, {}).get(name, {}))


def without_thought(text: str) -> str:
    """The text after the last closing thought tag."""
    return text.rsplit("</think>", 1)[1].lstrip("\n") if "</think>" in text else text


def too_long(reply: Row) -> bool:
    """Whether a reply is beyond what is read at all; such an answer is wrong in every category."""
    return len(reply["text"]) > MAX_CHARS
