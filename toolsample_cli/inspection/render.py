"""Facts for a terminal: they fit its width, and whatever a model wrote is shown, never obeyed."""

from __future__ import annotations

import json
import os
import sys

from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from toolsample_cli.inspection.folder_facts import Facts, Summary
from toolsample_cli.json_types import Row
from toolsample_cli.terminal import printable

PIPED = 120
"""Columns where nobody watches: a pipe has no width, and numbers should not be cut for one."""
LONG = 1600
"""Characters of one text that are shown unless everything is asked for."""
_BLOCKS = " ▁▂▃▄▅▆▇█"


class TableScreen(Console):
    """stdout for tables: cells are words and not markup, and a reader that goes away (`| head`) is no failure."""

    def __init__(self) -> None:
        watched = sys.stdout.isatty() or "COLUMNS" in os.environ
        super().__init__(highlight=False, markup=False, emoji=False, width=None if watched else PIPED)

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, which ends with 0."""
        raise BrokenPipeError


def clip(text: str, full: bool, most: int = LONG) -> Text:
    """Cleaned text, its middle left out when it is long."""
    text = printable(text)
    if full or len(text) <= most:
        return Text(text)
    half = most // 2
    shown = Text(text[:half])
    shown.append(f"\n[... {len(text) - 2 * half:,} characters more, --full shows them ...]\n", style="dim italic")
    return shown.append(text[-half:])


def number(value: float | None) -> str:
    """A number in few characters."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2e}"


def show_facts(console: Console, facts: Facts) -> None:
    """Kind, rows, lineage, columns, histograms."""
    console.print(_head(facts))
    lineage = Table.grid(padding=(0, 2))
    lineage.add_column(style="dim", no_wrap=True)
    lineage.add_column(overflow="fold")
    if facts.version:
        lineage.add_row("written by", f"toolsample {facts.version}, schema {facts.schema_version}")
    for name, record in (("config", facts.config), ("inputs", facts.inputs), ("counts", facts.counts)):
        if record:
            pairs = (f"{key} {_short(value)}" for key, value in record.items() if value not in ("", None))
            lineage.add_row(name, printable(", ".join(pairs)))
    console.print(lineage)
    mixed = {"metric", "value"} if facts.metrics is not None else set()
    columns = [summary for summary in facts.columns if summary.name not in mixed]
    console.print(_columns(columns, console.width))
    if facts.metrics is not None:
        console.print(_metrics(facts.metrics, console.width))
    for summary in columns:
        if summary.words and summary.measures != "true":
            console.print(_shares(summary, console.width))
    for summary in facts.columns:
        if summary.histogram:
            console.print(_histogram(summary, console.width))


def _head(facts: Facts) -> Text:
    state = {True: "complete", False: "NOT FINISHED", None: "no manifest"}[facts.complete]
    size = facts.bytes / 1e6
    head = Text(printable(facts.path), style="bold")
    head.append(f"\n{facts.kind or 'not one of ours'}", style="bold cyan")
    if facts.meaning:
        head.append(f": {facts.meaning}", style="not bold cyan")
    head.append(f"\n{facts.rows:,} rows in {facts.shards:,} shard(s), {size:,.2f} MB, ", style="not bold")
    return head.append(state, style="not bold green" if facts.complete else "not bold yellow")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _columns(summaries: list[Summary], width: int) -> Table:
    rows = []
    for one in summaries:
        measure = {"value": _type(one.dtype), "true": "share true"}.get(one.measures, one.measures)
        cells = [number(v) for v in (one.low, one.mean, one.high, one.std)]
        rows.append((printable(one.name), measure, number(one.nulls) if one.nulls else "", *cells))
    return _table(("column", "measure", "null", "min", "mean", "max", "std"), rows, width, texts=2)


def _metrics(metrics: list[Row], width: int) -> Table:
    names = ("metric", "steps", "first", "last", "min", "mean", "max")
    rows = [(printable(one["metric"]), *(number(one[name]) for name in names[1:])) for one in metrics]
    return _table(names, rows, width, texts=1)


def _table(names: tuple[str, ...], rows: list[tuple[str, ...]], width: int, texts: int) -> Table:
    """Where there is no room the `texts` first columns are cut, numbers and headers never."""
    table = Table(box=None, padding=(0, 1), header_style="dim", width=min(width, 100))
    for at, name in enumerate(names):
        longest = max([len(name), *(len(row[at]) for row in rows)])
        floor = None if at < texts else longest
        justify: JustifyMethod = "left" if at < texts else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", min_width=floor)
    for row in rows:
        table.add_row(*row)
    return table


def _type(dtype: str) -> str:
    return dtype.lower()


def _shares(summary: Summary, width: int) -> Text:
    total = summary.rows or 1
    top = sorted(summary.words.items(), key=lambda item: (-item[1], item[0]))[:8]
    parts = [f"{printable(word)} {count:,} ({100 * count / total:.0f} %)" for word, count in top]
    rest = len(summary.words) - len(top)
    text = Text(f"{summary.name}: ", style="bold")
    text.append(", ".join(parts) + (f", {rest} more" if rest > 0 else ""), style="not bold")
    text.truncate(width * 2, overflow="ellipsis")
    return text


def _histogram(summary: Summary, width: int) -> Group:
    most = max(count for _, _, count in summary.histogram) or 1
    room = max(10, min(60, width - 34))
    lines = [Text(f"{summary.name}:", style="bold")]
    for low, high, count in summary.histogram:
        bar = "█" * int(room * count / most) or ("▏" if count else "")
        lines.append(Text(f"  {low:7.2f} to {high:6.2f} ").append(f"{bar} ", style="cyan").append(f"{count:,}"))
    return Group(*lines)
