"""The table of protocols: every way of writing tool calls that `toolsample` reads and writes, and telling them apart.

transformers reads replies by a model's response schema where its template has one; that needs the tokenizer, raises
on a slip and gives no status, so scores use these readers only.
"""

from __future__ import annotations

import re

from toolsample_cli.toolcalls.protocols import bare, hermes, llama3, mistral, openai, pythonic, qwen_xml, rlla, tool_n1
from toolsample_cli.toolcalls.protocols.base import GOLD_KINDS, Parsed, Protocol, split_thought

__all__ = ["GOLD_KINDS", "PROTOCOLS", "Parsed", "Protocol", "detect"]

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("rlla", "ToolRL's tags, one JSON object per line under `parameters`", False, rlla.parse, rlla.render),
        Protocol("hermes", "Hermes and Qwen: one <tool_call> block per call", True, hermes.parse, hermes.render),
        Protocol("tool_n1", "Tool-N1: a JSON list in one <tool_call> block", False, tool_n1.parse, tool_n1.render),
        Protocol("llama3", "Llama 3: bare JSON with `parameters`", True, llama3.parse, llama3.render),
        Protocol("mistral", "Mistral: [TOOL_CALLS] and a JSON list", True, mistral.parse, mistral.render),
        Protocol("qwen_xml", "Qwen3-Coder: <function=...> tags", True, qwen_xml.parse, qwen_xml.render, typed=True),
        Protocol("pythonic", "ToolACE, BFCL: a Python list of calls", False, pythonic.parse, pythonic.render),
        Protocol("openai", "an assistant message in OpenAI's JSON", True, openai.parse, openai.render),
        Protocol("json", "bare or fenced JSON", False, bare.parse, bare.render),
    )
}

_PYTHONIC = re.compile(r"\[\s*[^()\[\]{}=,'\"\n]{1,200}\(")


def detect(text: str) -> str:
    """The protocol a completion is written in, by its marks behind the thought; `json` where there are none."""
    _, body, _ = split_thought(text[:1_000_000].strip())
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
