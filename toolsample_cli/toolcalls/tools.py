"""The tools a task offers: does a call name one of them and fit its JSON Schema?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from toolsample_cli.json_types import Row
from toolsample_cli.toolcalls.call import Call, canonical
from toolsample_cli.toolcalls.schema_check import UnusableSchema, inlined, schema_check

MAX_CALLS = 100
"""More calls than that in one answer are not checked one by one but called invalid."""


class Toolbox:
    """Offered tools by name. `problem(call)` is None for a valid call, else what is wrong with it.

    ValueError when the text is no list of {name, parameters}.
    """

    def __init__(self, tools_json: str) -> None:
        try:
            self.tools: list[Row] = json.loads(tools_json)
        except RecursionError:
            raise ValueError("tools_json is nested too deeply") from None
        if not isinstance(self.tools, list) or not all(map(_is_tool, self.tools)):
            raise ValueError("tools_json is not a list of {name, parameters}")
        self._schemas: dict[str, Row] = {
            tool["name"]: tool.get("parameters") or {"type": "object"} for tool in self.tools
        }
        self._checks = {name: schema_check(canonical(schema)) for name, schema in self._schemas.items()}
        self._fast = {name: check.fast for name, check in self._checks.items() if check.fast is not None}
        self.names = frozenset(self._schemas)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, object]]) -> Toolbox:
        """From tools as objects {name, description, parameters}."""
        return toolbox(canonical(list(tools)))

    def valid(self, calls: Sequence[Call]) -> bool | None:
        """Whether every call is; None without a call."""
        if not calls:
            return None
        if len(calls) > MAX_CALLS:
            return False
        checks, fast = self._checks, self._fast
        for call in calls:
            try:
                if not fast[call.name](call.arguments):
                    return False
            except (KeyError, ValueError):  # no such tool, no quick check, or text that it does not take
                check = checks.get(call.name)
                if check is None or not check.fits(call.arguments):
                    return False
        return True

    def problem(self, call: Call) -> str | None:
        """`unknown_tool`, or where and how the arguments break the schema, or None."""
        check = self._checks.get(call.name)
        if check is None:
            return "unknown_tool"
        try:
            fault = next(check.faults(call.arguments), None)
        except UnusableSchema as error:
            return f"the schema itself cannot be used: {error}"
        return None if fault is None else f"{fault.validator} at {fault.json_path}: {fault.message[:200]}"

    def parameter(self, tool: str, name: str) -> Row | None:
        """The schema of one parameter, None when the tool or the parameter is unknown or unconstrained.

        References in it are replaced by what they lead to, as far as types can tell.
        """
        whole = self._schemas.get(tool, {})
        properties = whole.get("properties")
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        return inlined(schema, whole) if isinstance(schema, dict) else None


def _is_tool(tool: object) -> bool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return False
    return isinstance(tool.get("parameters") or {}, dict)


@lru_cache(maxsize=8192)
def toolbox(tools_json: str) -> Toolbox:
    """A kept Toolbox for this text."""
    return Toolbox(tools_json)
