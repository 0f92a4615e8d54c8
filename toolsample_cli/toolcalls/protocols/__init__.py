"""The table of protocols: every way of writing tool calls that `toolsample` reads and writes, and telling them apart.

transformers reads replies by a model's response schema where its template has one; that needs the tokenizer, raises
on a fault and gives no status, so scores use these readers only.
"""

from __future__ import annotations

import re

from toolsample_cli.toolcalls.protocols import bare, hermes, llama3, mistral, openai, pythonic, qwen_xml, rlla, tool_n1
from toolsample_cli.toolcalls.protocols.base import GOLD_KINDS, Parsed, Protocol, thought_apart

__all__ = ["GOLD_KINDS", "PROTOCOLS", "Parsed", "Protocol", "protocol_of"]

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        rlla.PROTOCOL, hermes.PROTOCOL, tool_n1.PROTOCOL, llama3.PROTOCOL, mistral.PROTOCOL, qwen_xml.PROTOCOL,
        pythonic.PROTOCOL, openai.PROTOCOL, bare.PROTOCOL,
    )
}  # fmt: skip

_PYTHONIC = re.compile(r"\[\s*[^()\[\]{}=,'\"\n]{1,200}\(")


def protocol_of(text: str) -> str:
    """The protocol a completion is written in, by its marks behind the thought; `json` where there are none."""
    _, body, _ = thought_apart(text[:1_000_000].strip())
    if mistral.TAG in body:
        return "mistral"
    if "<function=" in body:
        return "qwen_xml" if "<parameter=" in body or "</function>\n</tool_call>" in body else "llama3"
    if llama3.TAG in body:
        return "llama3"
    tag = body.find("<tool_call>")
    if tag >= 0:
        payload = body[tag + 11 : tag + 4000].lstrip()
        if payload.startswith("["):
            return "tool_n1"
        return "rlla" if '"parameters"' in payload and '"arguments"' not in payload else "hermes"
    if "<response>" in body:
        return "rlla"
    if body[:1] in ("{", "["):
        if '"tool_calls"' in body or '"function"' in body:
            return "openai"
        if _PYTHONIC.match(body):
            return "pythonic"
        return "llama3" if '"parameters"' in body and '"arguments"' not in body else "json"
    return "json"
