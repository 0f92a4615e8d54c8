"""`toolsample inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.errors import ConfigError
from toolsample_cli.terminal import json_line, visible

MaybeInt = Optional[int]  # noqa: UP045  typer reads Optional on Python 3.10
MaybeText = Optional[str]  # noqa: UP045


def inspect(
    paths: Annotated[
        list[Path], typer.Argument(help="Shards or a run folder; more folders of shards are used for joins.")
    ],
    index: Annotated[MaybeInt, typer.Option("-i", "--index", help="Show row N, from 1; -1 is the last.")] = None,
    wanted: Annotated[MaybeText, typer.Option("--id", help="Show the row with this id or beginning of it.")] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Check every row; exit 3 if any fails.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Compare two scorings, OLD NEW.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out of long texts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Show what shards hold, or one record in full.

    A folder: kind, rows, lineage, statistics of every column. A record: with all that belongs to it, found in the
    folders beside it and one level up. A run folder: what is finished and what is not.
    """
    if sum((index is not None, wanted is not None, validate, diff)) > 1:
        raise ConfigError("-i, --id, --validate and --diff exclude each other")
    if diff:
        _diff(paths, as_json)
    elif validate:
        _validate(paths, as_json)
    elif index is not None or wanted is not None:
        _record(paths, index, wanted, full, as_json)
    else:
        for path in paths:
            _overview(path, as_json)


def _say(value: object) -> None:
    print(json_line(value))


def _place(path: Path) -> Any:
    from toolsample_cli.inspection.places import look

    place = look(path)
    if place is None:
        raise ConfigError(f"{path}: no shards in it", hint="give a folder of shards, such as one that a stage wrote")
    return place


def _overview(path: Path, as_json: bool) -> None:
    from toolsample_cli.inspection import folder_facts, places, render, run_tables, status

    place = places.look(path)
    if place is None:
        entries = status.status(path)
        if not entries:
            raise ConfigError(f"{path}: no shards in it and none below it")
        _say({"path": str(path), "entries": entries}) if as_json else run_tables.show_status(
            render.Screen(), str(path), entries
        )
        return
    value = folder_facts.facts(place)
    if as_json:
        _say({**value, "columns": [summary.record() for summary in value["columns"]]})
    else:
        render.show_facts(render.Screen(), value)


def _record(paths: list[Path], index: int | None, wanted: str | None, full: bool, as_json: bool) -> None:
    from toolsample_cli.inspection import places, record_view, records, render

    found = [_place(path) for path in paths]
    row = records.by_number(found[0], index) if index is not None else records.by_id(found[0], wanted or "")
    joined = records.gather(row, found[0].kind, places.companions(found))
    if as_json:
        opened = records.opened
        _say({kind: [opened(row) for row in v] if kind == "samples" else opened(v) for kind, v in joined.items()})
    else:
        record_view.show_record(render.Screen(), joined, full)


def _validate(paths: list[Path], as_json: bool) -> None:
    from toolsample_cli.inspection.validation import faults

    found = [fault for path in paths for fault in faults(_place(path))]
    if as_json:
        _say({"valid": not found, "faults": found})
    else:
        print(visible("\n".join(found)) if found else "valid")
    raise typer.Exit(3 if found else 0)


def _diff(paths: list[Path], as_json: bool) -> None:
    from toolsample_cli.inspection import render
    from toolsample_cli.inspection.changes import changes
    from toolsample_cli.inspection.run_tables import show_changes

    if len(paths) != 2:
        raise ConfigError(f"--diff compares two folders of scores, {len(paths)} given")
    found = changes(_place(paths[0]), _place(paths[1]))
    _say(found.record()) if as_json else show_changes(render.Screen(), found)
