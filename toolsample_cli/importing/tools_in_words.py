"""Prompts for protocols that no chat template knows: the tools and the way of calling, in words, as the system turn.

The protocol's own writer makes the example, so that what is asked for is what is read.
"""

from __future__ import annotations

from typing import Any

from toolsample_cli.toolcalls.call import Call, as_written
from toolsample_cli.toolcalls.protocols import PROTOCOLS

_EXAMPLE = [Call("first_tool", {"parameter": "value"}), Call("second_tool", {"number": 1, "list": ["a", "b"]})]


def with_tools_in_words(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], protocol: str
) -> list[dict[str, Any]]:
    """The messages with a system turn that lists the tools and shows how to call them."""
    write = PROTOCOLS[protocol].render
    parts = [
        "You can use tools. Each line describes one of them:",
        "\n".join(as_written(tool) for tool in tools) or "(no tools)",
        "To call tools, answer in exactly this form, with as many calls as the request needs:",
        write(_EXAMPLE, None, "why these calls are right"),
        "If no tool fits, answer in this form:",
        write([], "the answer", "why no tool fits"),
    ]
    head, rest = "", messages
    if messages and messages[0].get("role") == "system":
        head, rest = f"{messages[0].get('content', '')}\n\n", messages[1:]
    return [{"role": "system", "content": head + "\n\n".join(parts)}, *rest]
