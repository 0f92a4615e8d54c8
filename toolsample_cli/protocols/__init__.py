"""The table of protocols: every way of writing tool calls that `toolsample` reads and writes."""

from __future__ import annotations

from toolsample_cli.protocols import hermes, rlla
from toolsample_cli.protocols.base import GOLD_KINDS, Parsed, Protocol

__all__ = ["GOLD_KINDS", "PROTOCOLS", "Parsed", "Protocol"]

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("rlla", "ToolRL's tags, one JSON object a line under `parameters`", False, rlla.parse, rlla.render),
        Protocol("hermes", "Hermes and Qwen: one <tool_call> block a call", True, hermes.parse, hermes.render),
    )
}
