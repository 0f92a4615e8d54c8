"""One record for a terminal: prompt, tools, gold beside completion, components, and whatever else belongs to it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from toolsample_cli.inspection.argument_diff import compare
from toolsample_cli.inspection.render import clip, number
from toolsample_cli.json_types import Row
from toolsample_cli.terminal import printable

WIDE = 100
"""Columns from which gold and completion stand side by side."""


def show_record(console: Console, found: Row, full: bool) -> None:
    """One record: ids, prompt, tools, gold beside completion, components, and whatever else the row holds."""
    main = next(iter(found.values()))
    ids = "  ".join(f"{name} {main[name]}" for name in _ID_COLUMNS if main.get(name) is not None)
    console.print(Text(printable(ids), "bold"))
    task, rollout, score = found.get("tasks"), found.get("rollouts"), found.get("scores")
    if task:
        for part in _prompt(task, full):
            console.print(part)
    if task or rollout:
        console.print(_beside(console, _gold(task, full) if task else None, _completion(rollout, full)))
    if score:
        console.print(_components(score))
        if task:
            console.print(_arguments(task, score))
    if found.get("samples"):
        console.print(_samples(found["samples"], console.width))
    for kind, row in found.items():
        if kind not in ("tasks", "rollouts", "samples") and not (kind == "scores" and task):
            console.print(_row(kind, row, full))
    if task:
        console.print(_row("tasks", {k: v for k, v in task.items() if k not in _SHOWN}, full))
    if rollout:
        console.print(_row("rollouts", {k: v for k, v in rollout.items() if k not in _SHOWN}, full))


_ID_COLUMNS = ("rollout_id", "task_id", "entry_id", "file", "row")
_SHOWN = {"messages_json", "tools_json", "gold_json", "gold_text", "text", "rollout_id", "task_id", "demos_json"}
_SHOWN |= {"gold_issues_json", "gold_kind", "finish_reason"}


def _prompt(task: Row, full: bool) -> Iterator[RenderableType]:
    for demo in _rows(task.get("demos_json")):
        yield Panel(
            Group(*(_message(m, full) for m in demo.get("messages", []))), title="demonstration", title_align="left"
        )
    messages = _rows(task.get("messages_json"))
    yield Panel(Group(*(_message(m, full) for m in messages)), title="prompt", title_align="left")
    tools = Text()
    for tool in _rows(task.get("tools_json")):
        tools.append(printable(signature(tool)), style="green")
        tools.append(f"  {printable(str(tool.get('description', '')))[:160]}\n", style="dim")
    if tools:
        yield Panel(tools[:-1], title="tools", title_align="left")


def _message(message: Row, full: bool) -> Text:
    text = Text(f"{printable(str(message.get('role')))}: ", style="bold magenta")
    text.append_text(clip(str(message.get("content") or ""), full))
    for call in message.get("tool_calls") or []:
        function = call.get("function", call)
        arguments = json.dumps(function.get("arguments"), ensure_ascii=False)
        text.append(f"\n  {printable(str(function.get('name')))}({printable(arguments)})", style="yellow")
    return text


def signature(tool: Row) -> str:
    """A tool in one line: name(required: type, optional?: type)."""
    schema = tool.get("parameters") or {}
    required = set(schema.get("required") or [])
    parts = []
    properties = schema.get("properties") or {}
    for name in sorted(properties, key=lambda name: name not in required):
        inner = properties[name]
        kind = inner.get("type", "any") if isinstance(inner, dict) else "any"
        kind = "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)
        if isinstance(inner, dict) and inner.get("enum"):
            kind = "|".join(map(str, inner["enum"]))[:60]
        parts.append(f"{name}{'' if name in required else '?'}: {kind}")
    return f"{tool.get('name')}({', '.join(parts)})"


def _gold(task: Row, full: bool) -> Panel:
    text = clip(task["gold_text"] if task.get("gold_text") is not None else task.get("gold_json") or "", full)
    for doubt in _rows(task.get("gold_issues_json")):
        text.append(printable(f"\ndoubtful: {doubt.get('issue')} {doubt.get('detail', '')}"), style="yellow")
    return Panel(
        text, title=Text(printable(f"gold ({task.get('gold_kind')})")), title_align="left", border_style="green"
    )


def _completion(rollout: Row | None, full: bool) -> Panel | None:
    if rollout is None:
        return None
    if rollout.get("error") is not None:
        error = Text(printable(rollout["error"]), style="red")
        return Panel(error, title="error", title_align="left", border_style="red")
    tokens = len(rollout.get("completion_ids") or [])
    title = f"completion ({tokens} tokens, {rollout.get('finish_reason')}"
    logprobs = [value for value in rollout.get("logprobs") or [] if value is not None]
    title += f", mean logprob {sum(logprobs) / len(logprobs):.3f})" if logprobs else ")"
    shown = clip(rollout.get("text") or "", full)
    return Panel(shown, title=Text(printable(title)), title_align="left", border_style="cyan")


def _beside(console: Console, *panels: Panel | None) -> RenderableType:
    shown = [panel for panel in panels if panel is not None]
    if len(shown) < 2 or console.width < WIDE:
        return Group(*shown)
    grid = Table.grid(expand=True)
    for _ in shown:
        grid.add_column(ratio=1)
    grid.add_row(*shown)
    return grid


def _components(score: Row) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    names = ("format", "name", "key", "value")
    for name in (*names, "reward", "exact", "schema", "read as"):
        table.add_column(name, justify="right")
    earned = [f"{number(score[n])} / {number(score[f'{n}_max'])}" if score.get(n) is not None else "-" for n in names]
    bounds = f"{number(score.get('reward'))} in [{number(score['reward_min'])}, {number(score['reward_max'])}]"
    flags = [{True: "yes", False: "no", None: "-"}[score.get(name)] for name in ("exact", "schema_valid")]
    table.add_row(*earned, bounds, *flags, printable(str(score.get("parse_status"))))
    return table


def _arguments(task: Row, score: Row) -> Table | Text:
    rows = compare(_rows(task.get("gold_json")), _rows(score.get("calls_json")))
    if not rows:
        return Text("no calls in gold or completion", style="dim")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("", "call", "argument", "gold", "completion"):
        table.add_column(name, overflow="fold")
    for mark, call, argument, gold, given in rows:
        style = {"=": "green", "≠": "red", "-": "red", "+": "yellow"}[mark]
        cells = (Text(printable(cell)) for cell in (call, argument, gold[:200], given[:200]))
        table.add_row(Text(mark, style=style), *cells)
    return table


def _samples(rows: list[Row], width: int) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", title="samples", title_justify="left")
    names = ("sample", "reward", "format", "name", "key", "value", "exact")
    for name in names:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("read as", no_wrap=True)
    table.add_column("calls", no_wrap=True, overflow="ellipsis", max_width=max(12, width - 62))
    for row in rows:
        cells = [_cell(row.get(name)) for name in names]
        table.add_row(*cells, printable(str(row.get("parse_status"))), printable(calls_text(row.get("calls_json"))))
    return table


def _cell(value: bool | float | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value)


def calls_text(text: str | None) -> str:
    """Calls as a person writes them: name(argument="value"); another."""
    shown = []
    for call in _rows(text):
        pairs = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call["arguments"].items())
        shown.append(f"{call['name']}({', '.join(pairs)})")
    return "; ".join(shown)


def _row(kind: str, row: Row, full: bool) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False, title=kind, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in row.items():
        if isinstance(value, list):
            value = _listed(value, full)
        elif isinstance(value, float):
            value = f"{value:.6g}"
        if value not in (None, "", "[]", "{}"):
            table.add_row(printable(name), clip(str(value), full, 400))
    return table


def _listed(values: list[object], full: bool) -> str:
    if not values:
        return ""
    some = values if full else values[:12]
    shown = ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in some)
    return f"{len(values)}: {shown}{'' if len(some) == len(values) else ', ...'}"


def _rows(text: object) -> list[Row]:
    try:
        value = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
