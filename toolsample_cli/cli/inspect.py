"""`toolsample inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from toolsample_cli.errors import ConfigError

MAYBE_INT, MAYBE_STR = Optional[int], Optional[str]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("inspect", no_args_is_help=True)
    def inspect(
        paths: Annotated[list[Path], typer.Argument(help="Shards; more folders are used for joins.")],
        index: Annotated[MAYBE_INT, typer.Option("-i", "--index", help="Show row N, from 1; -1 is the last.")] = None,
        wanted: Annotated[
            MAYBE_STR, typer.Option("--id", help="Show the row with this id, or beginning of one.")
        ] = None,
        full: Annotated[bool, typer.Option("--full", help="Leave nothing out of long texts.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    ) -> None:
        """Say what shards hold: kind, rows, lineage, statistics; or show one record with all that belongs to it.

        Tasks, completions and scores of one run find each other when they stand in the same folder or the one above.
        """
        if index is not None and wanted is not None:
            raise ConfigError("-i and --id exclude each other")
        _look(paths, index, wanted, full, as_json)


def _look(paths: list[Path], index: int | None, wanted: str | None, full: bool, as_json: bool) -> None:
    from rich.console import Console

    from toolsample_cli.inspection import facts, places, records, render

    found = [places.look(path) for path in paths]
    first = found[0]
    console = Console(highlight=False, soft_wrap=False)
    if first is None:
        raise ConfigError(f"{paths[0]}: no shards in it")
    if index is None and wanted is None:
        for place in found:
            value = facts.facts(place)
            if as_json:
                columns = [summary.record() for summary in value["columns"]]
                print(json.dumps({**value, "columns": columns}, ensure_ascii=False))
            else:
                render.show_facts(console, value)
        return
    row = records.by_number(first, index) if index is not None else records.by_id(first, wanted)
    joined = records.gather(row, first.kind, places.companions([place for place in found if place is not None]))
    if as_json:
        plain = {k: [records.opened(r) for r in v] if k == "samples" else records.opened(v) for k, v in joined.items()}
        print(json.dumps(plain, ensure_ascii=False))
    else:
        render.show_record(console, joined, full)
