"""What JSON and shards hand us, named: the only types that say nothing about their content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Union

Json: TypeAlias = Union[bool, int, float, str, Sequence["Json"], Mapping[str, "Json"], None]  # noqa: UP007
"""Any JSON value."""

Row: TypeAlias = dict[str, Any]
"""One row of a shard or one decoded JSON object, by column or key; schema.py and the tests say what each holds."""
