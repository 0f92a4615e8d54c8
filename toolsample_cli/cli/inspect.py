"""`toolsample inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Optional

import typer

from toolsample_cli.cli.help import COMMON
from toolsample_cli.errors import ConfigError
from toolsample_cli.terminal import json_line, printable

if TYPE_CHECKING:
    from toolsample_cli.inspection.shard_folders import ShardFolder

MaybeInt = Optional[int]  # noqa: UP045  typer reads Optional on Python 3.10
MaybeText = Optional[str]  # noqa: UP045
MaybePaths = Optional[list[Path]]  # noqa: UP045


def _saved(incomplete: str) -> list[str]:
    from toolsample_cli.inspection.saved_questions import SAVED

    return [name for name in [*SAVED, "list"] if name.startswith(incomplete)]


LOOK, ASK = "Looking", "Asking: which rows, in which order, which columns"
TABLE_ROWS = 20
"""Rows of a table unless --limit asks for more."""


Where = Annotated[
    MaybeText, typer.Option("--where", help="SQL condition on one row: reward < 1 and not exact.", rich_help_panel=ASK)
]
Sort = Annotated[MaybeText, typer.Option("--sort", help="Column or SQL expression to sort by.", rich_help_panel=ASK)]
Desc = Annotated[bool, typer.Option("--desc", help="Largest first.", rich_help_panel=ASK)]
Columns = Annotated[
    MaybeText, typer.Option("--columns", help="Columns to show, comma-separated; `all`.", rich_help_panel=ASK)
]
By = Annotated[MaybeText, typer.Option("--by", help="Count rows and take means by this column.", rich_help_panel=ASK)]
Limit = Annotated[
    MaybeInt,
    typer.Option("--limit", min=1, help=f"At most N rows (default: {TABLE_ROWS} in a table).", rich_help_panel=ASK),
]
Ask = Annotated[
    MaybeText,
    typer.Option(
        "--ask", help="A saved question by name; `list` names them all.", rich_help_panel=ASK, autocompletion=_saved
    ),
]
AsIds = Annotated[
    bool, typer.Option("--ids", help="Print the task ids alone, for --ids of other commands.", rich_help_panel=ASK)
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.", rich_help_panel=ASK)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.", rich_help_panel=COMMON)]
Index = Annotated[
    MaybeInt, typer.Option("-i", "--index", help="Show row N, from 1; -1 is the last.", rich_help_panel=LOOK)
]
RowId = Annotated[
    MaybeText, typer.Option("--id", help="Show the row whose id is or begins with this.", rich_help_panel=LOOK)
]
Full = Annotated[bool, typer.Option("--full", help="Leave nothing out of long texts.", rich_help_panel=LOOK)]
Diff = Annotated[bool, typer.Option("--diff", help="Compare two scorings, OLD NEW.", rich_help_panel=LOOK)]
Validate = Annotated[
    bool, typer.Option("--validate", help="Check every row; exit 3 if any fails.", rich_help_panel=LOOK)
]
Lineage = Annotated[
    bool, typer.Option("--lineage", help="Tell what made it; exit 3 if a link is broken.", rich_help_panel=LOOK)
]
Paths = Annotated[
    MaybePaths, typer.Argument(help="Shards, a round or a run; more folders of shards are used for joins.")
]


def inspect(
    paths: Paths = None,
    index: Index = None,
    row_id: RowId = None,
    full: Full = False,
    diff: Diff = False,
    validate: Validate = False,
    lineage: Lineage = False,
    ask: Ask = None,
    where: Where = None,
    sort: Sort = None,
    desc: Desc = False,
    columns: Columns = None,
    by: By = None,
    limit: Limit = None,
    as_ids: AsIds = False,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """Show what shards hold, one record, or an answer.

    A folder: kind, rows, lineage, statistics of every column. A record: with all that belongs to it, found in the
    folders beside it and one level up. A run folder: what is finished and what is not. A question: the rows of a
    folder, a round or a run, with the columns of tasks, rollouts, scores and groups that belong to them.
    """
    if ask == "list":
        _list_questions()
        return
    if not paths:
        raise ConfigError("inspect what?", hint="toolsample inspect FOLDER, or --ask list")
    asking = any((ask, where, sort, desc, columns, by, limit, as_ids, as_csv))
    if sum((index is not None, row_id is not None, validate, diff, lineage, asking)) > 1:
        raise ConfigError("-i, --id, --validate, --diff, --lineage and questions exclude each other")
    if asking:
        asked = Asked(ask, where, sort, desc, columns, by, limit)
        _answer(paths, asked, "ids" if as_ids else "csv" if as_csv else "json" if as_json else "table")
    elif diff:
        _diff(paths, as_json)
    elif lineage:
        _lineage(paths, as_json)
    elif validate:
        _validate(paths, as_json)
    elif index is not None or row_id is not None:
        _record(paths, index, row_id, full, as_json)
    else:
        for path in paths:
            _overview(path, as_json)


class Asked(NamedTuple):
    """The parts of a question as they were typed."""

    ask: str | None
    where: str | None
    sort: str | None
    desc: bool
    columns: str | None
    by: str | None
    limit: int | None


def _list_questions() -> None:
    from toolsample_cli.inspection.answer_tables import saved_list

    print(saved_list())


def _answer(paths: list[Path], asked: Asked, form: str) -> None:
    from toolsample_cli.inspection import answer_tables, question, saved_questions, views

    known = saved_questions.saved(asked.ask) if asked.ask else None
    view = views.open_view(paths, known.kind if known else None)
    basis = known.question if known else question.ShardQuestion()
    where = " and ".join(f"({text})" for text in (basis.where, asked.where) if text)
    names = (
        view.columns if asked.columns == "all" else [n.strip() for n in (asked.columns or "").split(",") if n.strip()]
    )
    limit = asked.limit or (TABLE_ROWS if form == "table" else None)
    shown = ["task_id"] if form == "ids" else names or ([] if asked.by else basis.columns)
    plain = question.ShardQuestion(
        where or None,
        asked.sort or (None if asked.by else basis.sort),
        asked.desc if asked.sort else basis.desc,
        tuple(shown),
        asked.by,
        limit,
    )
    answer_tables.show(question.ask(view, plain), form, view.main, by=asked.by is not None)


def _say(value: object) -> None:
    print(json_line(value))


def _place(path: Path) -> ShardFolder:
    from toolsample_cli.inspection.shard_folders import look

    place = look(path)
    if place is None:
        raise ConfigError(f"{path}: no shards in it", hint="give a folder of shards, such as one that a stage wrote")
    return place


def _overview(path: Path, as_json: bool) -> None:
    from toolsample_cli.inspection import folder_facts, render, run_tables, shard_folders, status

    place = shard_folders.look(path)
    if place is None:
        entries = status.status(path)
        if not entries:
            raise ConfigError(f"{path}: no shards in it and none below it")
        if as_json:
            _say({"path": str(path), "entries": [entry.record() for entry in entries]})
        else:
            run_tables.show_status(render.TableScreen(), str(path), entries)
        return
    value = folder_facts.facts(place)
    if as_json:
        _say(value.record())
    else:
        render.show_facts(render.TableScreen(), value)


def _record(paths: list[Path], index: int | None, wanted: str | None, full: bool, as_json: bool) -> None:
    from toolsample_cli.inspection import record_view, records, render, shard_folders

    found = [_place(path) for path in paths]
    row = records.by_number(found[0], index) if index is not None else records.by_id(found[0], wanted or "")
    joined = records.related(row, found[0].kind, shard_folders.companions(found))
    if as_json:
        opened = records.opened
        _say({kind: [opened(row) for row in v] if kind == "samples" else opened(v) for kind, v in joined.items()})
    else:
        record_view.show_record(render.TableScreen(), joined, full)


def _validate(paths: list[Path], as_json: bool) -> None:
    from toolsample_cli.inspection.shard_folders import look
    from toolsample_cli.inspection.validation import faults, run_faults

    found: list[str] = []
    for path in paths:
        place = look(path)
        found += faults(place) if place is not None else run_faults(path)
    if as_json:
        _say({"valid": not found, "faults": found})
    else:
        print(printable("\n".join(found)) if found else "valid")
    raise typer.Exit(3 if found else 0)


def _lineage(paths: list[Path], as_json: bool) -> None:
    from toolsample_cli.inspection.lineage import trace

    links = [trace(path) for path in paths]
    broken = [link for one in links for link in one.broken()]
    if as_json:
        _say([link.record() for link in links])
    else:
        print(printable("\n".join(line for link in links for line in link.lines())))
    raise typer.Exit(3 if broken else 0)


def _diff(paths: list[Path], as_json: bool) -> None:
    from toolsample_cli.inspection import render
    from toolsample_cli.inspection.changes import changes
    from toolsample_cli.inspection.run_tables import show_changes

    if len(paths) != 2:
        raise ConfigError(f"--diff compares two folders of scores, {len(paths)} given")
    found = changes(_place(paths[0]), _place(paths[1]))
    _say(found.record()) if as_json else show_changes(render.TableScreen(), found)
