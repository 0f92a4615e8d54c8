"""The condition of the self-exemplifying bonus (ToolExpander, arXiv 2510.07737; our reading, methods 2.4).

The paper's test is not public to us. Ours pays only an example that was made, not copied: a call of an offered tool
that differs from the call finally given, with at least ten words of analysis behind it.
"""

from __future__ import annotations

from toolsample_cli.toolcalls.protocols import Parsed
from toolsample_cli.toolcalls.protocols.lenient import read_payload
from toolsample_cli.toolcalls.tools import Toolbox

OPEN, CLOSE = "<example>", "</example>"
MIN_WORDS = 10


def self_example(text: str, parsed: Parsed, tools: Toolbox) -> bool:
    """Whether the thought holds a self-made example that earns the bonus; False without the right format."""
    if not parsed.format_ok or CLOSE not in text:
        return False
    start, end = text.find("<think>"), text.rfind("</think>")
    thought = text[start + 7 : end] if 0 <= start < end else ""
    *blocks, analysis = thought.split(CLOSE)
    if len(analysis.split()) < MIN_WORDS:
        return False
    return any(_is_own(block.rpartition(OPEN), parsed, tools) for block in blocks[:100])


def _is_own(block: tuple[str, str, str], parsed: Parsed, tools: Toolbox) -> bool:
    _, opening, content = block
    brace = content.find("{")
    if not opening or brace < 0:
        return False
    meant = read_payload(content[brace : content.rfind("}") + 1])
    return any(call.name in tools.names and call not in parsed.calls for call in meant.calls)
