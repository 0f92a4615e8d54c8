"""Turns a stage function into a command: its own arguments, its config's knobs and the options all stages share.

The knobs come from the stage's dataclass, so a flag, its help and its recipe key cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer

from toolsample_cli.cli.help import COMMON
from toolsample_cli.config import read_recipe
from toolsample_cli.config.settings import resolve
from toolsample_cli.json_types import Row
from toolsample_cli.stage import Account, Options
from toolsample_cli.terminal import json_line, one_line, printable

SHORT = {"n": "-n"}
NAMED = {
    "format": "toolsample_cli.importing.formats:FORMATS",
    "lift": "toolsample_cli.score.scorer:QUIRKS",
    "protocol": "toolsample_cli.toolcalls.protocols:PROTOCOLS",
    "rewards": "toolsample_cli.score.rewards:REWARDS",
}
"""Knobs that take names of a table in the code (docs/names.md), for completion in the shell."""


def stage_command(name: str, config_class: type, *, sliced: bool = False) -> Callable[..., Callable[..., None]]:
    """Give `function(..., config, options) -> Account` the command line of `name`.

    The function's other parameters become arguments and options as typer reads them; `config` is an instance
    of `config_class` and `options` a `toolsample_cli.stage.Options`. `sliced`: its work can be cut with --slice.
    """

    def dress(function: Callable[..., Account]) -> Callable[..., None]:
        own = [p for p in inspect.signature(function).parameters.values() if p.name not in ("config", "options")]
        knobs = _knob_parameters(name, config_class, {p.name for p in own})
        common = _common_parameters(sliced)

        def command(**given: object) -> None:
            _run(function, name, config_class, [p.name for p in own], given)

        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own] + knobs + common
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = function.__doc__
        return command

    return dress


def warn_of_no_lock(options: Options) -> None:
    """Without locks nothing keeps a second process out."""
    if not options.lock:
        print("toolsample: warning: --no-lock: nothing else may write this output meanwhile", file=sys.stderr)


def finish(account: Account, as_json: bool) -> None:
    """The closing line on stderr, and on stdout the account as JSON or what the user came for; then exit."""
    print(one_line(account.line()), file=sys.stderr)
    if as_json:
        print(json_line(account.record()))
    elif account.report:
        print(printable(account.report))
    raise typer.Exit(account.exit_code)


def _knob_parameters(stage: str, config_class: type, taken: set[str]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(config_class)
    parameters, group = [], f"Settings (also keys of [{stage}] in a recipe)"
    for item in dataclasses.fields(config_class):
        group = item.metadata["group"] or group
        if item.name in taken:
            continue
        flag = "--" + item.name.replace("_", "-")
        names = [SHORT[item.name], flag] if item.name in SHORT else [flag]
        if hints[item.name] is bool:
            names = [f"{flag}/--no-{flag[2:]}"]
        choices = item.metadata["choices"] or NAMED.get(item.name)
        option = typer.Option(
            *names,
            help=knob_help(item),
            rich_help_panel=group,
            show_default=False,
            autocompletion=_completer(choices) if choices else None,
        )
        parameters.append(_parameter(item.name, Annotated[Optional[hints[item.name]], option], None))  # noqa: UP045
    return parameters


def knob_help(item: dataclasses.Field[object]) -> str:
    """Meaning, choices and default of one knob."""
    choices, default = item.metadata["choices"], item.default
    listed = f" ({', '.join(choices)})" if choices else ""
    if default in ("", None):
        return f"{item.metadata['help']}{listed}"
    if isinstance(default, bool):
        shown = "on" if default else "off"
    else:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{item.metadata['help']}{listed} [default: {shown}]"


def _completer(choices: tuple[str, ...] | str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        if isinstance(choices, str):
            module, _, table = choices.partition(":")
            names = list(getattr(importlib.import_module(module), table))
        else:
            names = list(choices)
        done, comma, last = incomplete.rpartition(",")  # some knobs take several names
        return [f"{done}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def _common_parameters(sliced: bool) -> list[inspect.Parameter]:
    def option(kind: object, default: object, *names: str, help: str, low: int | None = None) -> tuple[object, object]:
        made = typer.Option(*names, rich_help_panel=COMMON, show_default=False, help=help, min=low)
        return Annotated[kind, made], default

    maybe_path, maybe_int, maybe_str = Optional[Path], Optional[int], Optional[str]  # noqa: UP045
    table = {
        "recipe_": option(maybe_path, None, "--config", help="recipe (TOML) with settings; flags win over it"),
        "limit_": option(maybe_int, None, "--limit", low=1, help="only the first N rows"),
        "ids_": option(maybe_path, None, "--ids", help="only the task ids in this file, one per line"),
        "slice_": option(maybe_str, None, "--slice", "--shard", help="only part i of n, as in 0/3, for array jobs"),
        "overwrite_": option(bool, False, "--overwrite", help="make the output again instead of resuming"),
        "no_lock_": option(
            bool,
            False,
            "--no-lock",
            help="write without locks, on a file system that has none; let nothing else write there",
        ),
        "dry_run_": option(bool, False, "--dry-run", help="check everything, say what would be done, and stop"),
        "json_": option(bool, False, "--json", help="print the closing account as JSON on stdout"),
    }
    if not sliced:
        del table["slice_"]
    return [_parameter(name, annotation, default) for name, (annotation, default) in table.items()]


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _run(function: Callable[..., Account], name: str, config_class: type, own: list[str], given: Row) -> None:
    recipe = read_recipe(given["recipe_"]).get(name) if given["recipe_"] else None
    flags = {item.name: given[item.name] for item in dataclasses.fields(config_class) if item.name in given}
    began = time.monotonic()
    config: object = resolve(config_class, flags, recipe)
    from toolsample_cli.cli.progress import Progress
    from toolsample_cli.shards.slice import Slice

    wanted = given.get("slice_")
    options = Options(
        overwrite=given["overwrite_"],
        dry_run=given["dry_run_"],
        limit=given["limit_"],
        ids=given["ids_"],
        lock=not given["no_lock_"],
        slice=Slice.parse(wanted) if wanted else Slice(),
    )
    warn_of_no_lock(options)
    arguments = {key: given[key] for key in own}
    if int(os.environ.get("RANK", "0")):  # under torchrun one process speaks for all
        function(**arguments, config=config, options=options)
        raise typer.Exit
    with Progress(name) as progress:
        watched = dataclasses.replace(
            options, tick=progress.tick, found=progress.found, expect=progress.expect, phase=progress.phase
        )
        account = function(**arguments, config=config, options=watched)
    account.started = began  # a user's seconds are those of the whole command, loading included
    finish(account, given["json_"])
