"""An answer as a table that fits the terminal, as JSON, as CSV, or as ids for other commands."""

from __future__ import annotations

import sys

import polars as pl
from rich.table import Table
from rich.text import Text

from toolsample_cli.errors import ConfigError
from toolsample_cli.inspection.question import AnsweredRows
from toolsample_cli.inspection.record_view import calls_text
from toolsample_cli.inspection.render import TableScreen, number
from toolsample_cli.inspection.saved_questions import SAVED
from toolsample_cli.inspection.shard_folders import ShardFolder
from toolsample_cli.terminal import json_line, one_line, printable

CELL = 400
"""Characters of a text that a cell may hold before it is cut to the terminal's width."""


def show(answer: AnsweredRows, form: str, main: ShardFolder, *, by: bool = False) -> None:
    """Print the answer in one of the forms table, json, csv, ids; what it was asked of goes to stderr."""
    rows = answer.rows
    if form == "json":
        print(json_line(rows.to_dicts()))
    elif form == "csv":
        flat = [pl.col(name).cast(pl.List(pl.String)).list.join(" ") for name, t in rows.schema.items() if t == pl.List]
        print(printable(rows.with_columns(flat).write_csv().rstrip("\n")))
    elif form == "ids":
        print("\n".join(printable(name) for name in _ids(rows)))
    else:
        screen = TableScreen()
        screen.print(_table(rows, screen.width))
        counted = (
            f"{answer.matched:,} values" if by else f"{answer.matched:,} of {main.rows():,} {main.kind or 'rows'} match"
        )
        print(f"{counted}, {rows.height:,} shown", file=sys.stderr)


def _ids(rows: pl.DataFrame) -> list[str]:
    if rows["task_id"].null_count():
        raise ConfigError("some rows have no task_id")
    return list(dict.fromkeys(rows["task_id"]))


def _table(rows: pl.DataFrame, width: int) -> Table:
    """Numbers are never cut; texts share what room is left, calls are written as a person would."""
    calls = [name for name in rows.columns if name.endswith("calls_json") or name == "gold_json"]
    rows = rows.with_columns(pl.Series(name, [calls_text(text) for text in rows[name]], pl.String) for name in calls)
    table = Table(box=None, padding=(0, 1), header_style="dim", width=width if _texts(rows) else None)
    for name, dtype in rows.schema.items():
        if dtype.is_numeric() or dtype == pl.Boolean:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            longest = max([len(name), *(len(_cell(value)) for value in rows[name])])
            ratio = min(longest, 60) if longest > 24 else None
            table.add_column(name, overflow="ellipsis", no_wrap=True, ratio=ratio, min_width=min(longest, 12))
    for row in rows.iter_rows():
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _texts(rows: pl.DataFrame) -> bool:
    return any(len(_cell(value)) > 24 for name in rows.columns for value in rows[name].head(50))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | pl.Series):
        values = list(value)
        shown = ", ".join(_cell(item) for item in values[:8])
        return f"{len(values)}: {shown}" if values else ""
    return one_line(str(value)[:CELL])


def saved_list() -> str:
    """Every saved question: its name, the rows it is about, what it finds."""
    wide = max(map(len, SAVED))
    return "\n".join(f"{name:<{wide}}  {one.kind:<8}  {one.meaning}" for name, one in SAVED.items())
