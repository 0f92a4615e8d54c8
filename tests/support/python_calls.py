"""Which calls can be written as Python."""

from __future__ import annotations

import keyword

from toolsample_cli.toolcalls.call import Call


def carries(call: Call) -> bool:
    """Whether the call can be written as Python: dotted name, keyword arguments that are names."""
    parts = [*call.name.split("."), *call.arguments]
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
