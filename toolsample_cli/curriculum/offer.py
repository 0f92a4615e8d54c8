"""Which tools a demonstration calls that its task does not offer, and how a protocol adds them to the offer.

Where the chat template writes the tools, they are added to the list it is given; in ToolRL's layout (rlla) they are
numbered on in the list of the system prompt. A protocol that does neither cannot show another tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from toolsample_cli.curriculum.example import Example
from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import as_written
from toolsample_cli.toolcalls.protocols import PROTOCOLS

_LIST = re.compile(r"^\*\*Available Tools\*\*.*?(?=\n\n\*\*|\Z)", re.DOTALL | re.MULTILINE)


def added_tools(task: Example, example: Example) -> dict[str, Row] | None:
    """Tools by name that must be added to the offer of `task` before `example` may stand there.

    None where no addition helps: the example calls a tool whose schema it does not have, or with parameters that the
    tool does not have, as those of another tool of the same name.
    """
    added: dict[str, Row] = {}
    for name, arguments in example.uses.items():
        tool = task.tools.get(name) or example.tools.get(name)
        if tool is None or not arguments <= _parameters(tool, arguments):
            return None
        if name not in task.tools:
            added[name] = tool
    return added


def _parameters(tool: Row, otherwise: frozenset[str]) -> frozenset[str]:
    """Names of the parameters a tool has; `otherwise` where its schema does not list them."""
    listed = (tool.get("parameters") or {}).get("properties")
    return frozenset(listed) if listed else (frozenset() if listed == {} else otherwise)


def can_add(task: Example) -> bool:
    """Whether the prompt of `task` has a place where its protocol writes further tools."""
    return PROTOCOLS[task.protocol].tools_in_template or _LIST.search(task.system) is not None


def with_tools(row: Row, tools: Iterable[Row]) -> Row:
    """A row of `tasks` with these tools added to what it offers."""
    more = list(tools)
    if not more:
        return row
    offered: list[Row] = json.loads(row["tools_json"])
    changed = {**row, "tools_json": as_written([*offered, *more])}
    if PROTOCOLS[row["protocol"]].tools_in_template:
        return changed
    messages: list[Row] = json.loads(row["messages_json"])
    listed = "".join(f"\n{_item(number, tool)}" for number, tool in enumerate(more, len(offered) + 1))
    text = _LIST.sub(lambda found: found[0].rstrip() + listed, messages[0]["content"], count=1)
    return {**changed, "messages_json": as_written([{**messages[0], "content": text}, *messages[1:]])}


def _item(number: int, tool: Row) -> str:
    """One entry of ToolRL's list of tools."""
    parameters = json.dumps((tool.get("parameters") or {}).get("properties", {}), ensure_ascii=False)
    return f"{number}. Name: {tool['name']}\nDescription: {tool.get('description') or ''}\nParameters: {parameters}"
