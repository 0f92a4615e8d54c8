"""A run folder and a comparison of scores, for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolsample_cli.inspection.changes import Changes
from toolsample_cli.inspection.render import number
from toolsample_cli.inspection.status import RunEntry
from toolsample_cli.terminal import printable

_STYLE = {"complete": "green", "being written": "cyan", "not finished": "yellow", "damaged": "bold red"}


def show_status(console: Console, root: str, entries: list[RunEntry]) -> None:
    """One line for every folder of shards, model and summary."""
    console.print(Text(printable(root), style="bold"))
    table = Table(box=None, padding=(0, 1), header_style="dim")
    cells = [_cells(entry) for entry in entries]
    widths = [max([len(row[column]) for row in cells] + [5]) for column in range(4)]
    for name, width in zip(("path", "kind", "rows", "state"), widths, strict=True):
        table.add_column(name, justify="right" if name == "rows" else "left", no_wrap=True, min_width=width)
    room = console.width - sum(widths) - 10
    if room >= 12:
        table.add_column("about", no_wrap=True, style="dim")
    for row, entry in zip(cells, entries, strict=True):
        about = Text(printable(entry.about))
        about.truncate(room, overflow="ellipsis")
        table.add_row(*row[:3], Text(row[3], _STYLE.get(row[3], "")), *([about] if room >= 12 else []))
    console.print(table)
    open_ones = sum(entry.state in ("not finished", "damaged") for entry in entries)
    if open_ones:
        console.print(Text(f"{open_ones} not finished or damaged: rerun their stages", style="yellow"))


def _cells(entry: RunEntry) -> tuple[str, str, str, str]:
    rows = number(entry.rows) if entry.rows is not None else ""
    return printable(entry.path), printable(entry.kind or "?"), rows, entry.state or ""


def show_changes(console: Console, found: Changes) -> None:
    """How many rewards changed, through what, and the largest changes."""
    console.print(
        Text(f"{found.compared:,} rollouts in both", style="bold").append(
            f", {found.only_old:,} only in the old, {found.only_new:,} only in the new", style="not bold"
        )
    )
    if found.settings:
        parts = [f"{key} {_setting(old)} -> {_setting(new)}" for key, (old, new) in found.settings.items()]
        console.print(Text("settings: ", style="dim").append(printable("; ".join(parts)), style="not dim"))
    for name, old, new in (
        ("mean reward", found.mean_old, found.mean_new),
        ("exact", found.exact_old, found.exact_new),
    ):
        if old is not None and new is not None:
            console.print(f"{name}: {old:.4f} -> {new:.4f} ({new - old:+.4f})")
    console.print(
        f"reward changed: {found.changed:,} (up {found.up:,}, down {found.down:,}, "
        f"from null {found.appeared:,}, to null {found.vanished:,})"
    )
    for name, one in found.further.items():
        means = ("none" if mean is None else f"{mean:.4f}" for mean in (one.old, one.new))
        console.print(f"{printable(name)}: {' -> '.join(means)} ({one.changed:,} changed)")
    for title, counter in (("why", found.why), ("in", found.categories)):
        if counter:
            parts = [f"{printable(word)} {count:,}" for word, count in counter.most_common(8)]
            console.print(Text(f"{title}: ", style="dim").append(", ".join(parts), style="not dim"))
    if found.largest:
        console.print(_largest(found, console.width))


def _setting(value: object) -> str:
    text = "none" if value in (None, "") else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _largest(found: Changes, width: int) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("rollout_id", no_wrap=True, overflow="ellipsis", max_width=max(20, width - 62))
    for name in ("reward", "format", "name", "key", "value"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in found.largest:
        cells = [_pair(row[name]) for name in ("reward", "format", "name", "key", "value")]
        table.add_row(printable(row["rollout_id"]), *cells, printable("; ".join(row["why"])))
    return table


def _pair(values: list[float | None]) -> Text:
    old, new = values
    if old == new:
        return Text(number(old), style="dim")
    better = (new if new is not None else float("-inf")) > (old if old is not None else float("-inf"))
    return Text(f"{number(old)}>{number(new)}", style="green" if better else "red")
