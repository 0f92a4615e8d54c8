"""The reference page of all kinds and columns."""

from __future__ import annotations

import polars as pl

from toolsample_cli.shards.schema import BOOL, F64, I32, I64, IDS, KINDS, LOGPS, STR, Column


def column_table() -> str:
    """Markdown tables of every kind; a test holds page and code together."""
    lines: list[str] = []
    for kind in KINDS.values():
        lines += [f"**`{kind.name}`**: {kind.meaning}.", "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{c.name}` | {_type_name(c)} | {c.meaning} |" for c in kind.columns]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _type_name(column: Column) -> str:
    names = {STR: "text", I32: "int32", I64: "int64", F64: "float64", BOOL: "bool"}
    inner = {IDS: "list of int32", LOGPS: "list of float32", pl.List(STR): "list of text"}
    name = next((text for dtype, text in [*names.items(), *inner.items()] if column.dtype == dtype), str(column.dtype))
    return f"{name}, may be null" if column.null else name
