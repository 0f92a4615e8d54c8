"""What a protocol is: one way of writing tool calls as text, with its reader and its writer.

A reading is twofold. The strict one is what the trainer's own reader takes (`strict_calls`, None when it fails);
the lenient one (`calls`) is what the model meant. `status` names the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolsample_cli.toolcall import Call

GOLD_KINDS = ("calls", "response", "both", "none")


@dataclass(slots=True)
class Parsed:
    """One completion as it was read.

    `broken` lists positions in `strict_calls` that have a name but no object of arguments. `format_ok` says
    whether the whole completion has the form the protocol demands for an answer of the gold's kind.
    """

    status: str
    calls: tuple[Call, ...] = ()
    format_ok: bool = False
    response: str | None = None
    thought: str | None = None
    strict_calls: tuple[Call, ...] | None = None
    broken: tuple[int, ...] = ()


@dataclass(frozen=True)
class Protocol:
    """`parse(text, gold_kind) -> Parsed` never raises on any text; `render(calls, response, thought) -> str`.

    `tools_in_template`: the tools reach the model through the chat template; otherwise the messages carry them.
    """

    name: str
    meaning: str
    tools_in_template: bool
    parse: Callable[[str, str], Parsed]
    render: Callable[..., str]
    can_respond: bool = True


Render = Callable[[Sequence[Call], str | None, str | None], str]
