"""The tools a task offers, as validators: does a call name one of them and fit its JSON Schema?

Validators are built once a schema text and kept; building one costs a hundred times a check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from toolsample_cli.toolcall import Call, canonical


class Toolbox:
    """Offered tools by name. `problem(call)` is None for a valid call, else a one-word reason and its detail."""

    def __init__(self, tools_json: str) -> None:
        self._schemas = {
            tool["name"]: canonical(tool.get("parameters") or {"type": "object"}) for tool in json.loads(tools_json)
        }

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Toolbox:
        """From tools as objects {name, description, parameters}."""
        return toolbox(canonical(list(tools)))

    @property
    def names(self) -> frozenset[str]:
        """Names of the offered tools."""
        return frozenset(self._schemas)

    def problem(self, call: Call) -> str | None:
        """`unknown_tool`, or where and how the arguments break the schema, or None."""
        schema = self._schemas.get(call.name)
        if schema is None:
            return "unknown_tool"
        error = next(_validator(schema).iter_errors(call.arguments), None)
        if error is None:
            return None
        return f"{error.validator} at {error.json_path}: {error.message[:200]}"


@lru_cache(maxsize=4096)
def toolbox(tools_json: str) -> Toolbox:
    """A kept Toolbox for this text."""
    return Toolbox(tools_json)


@lru_cache(maxsize=65536)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))
