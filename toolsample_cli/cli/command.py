"""Turns a stage function into a command: its own arguments, its config's knobs and the options all stages share.

The knobs come from the stage's dataclass, so a flag, its help and its recipe key cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from toolsample_cli.config import read_recipe
from toolsample_cli.config.settings import resolve

SHORT = {"n": "-n"}
COMMON = "Common options"
KNOBS = "Settings (also keys of the recipe table)"


def stage_command(name: str, config_class: type) -> Callable[[Callable], Callable]:
    """Give `function(..., config, options) -> Account` the command line of `name`.

    The function's other parameters become arguments and options as typer reads them; `config` is an instance
    of `config_class` and `options` a `toolsample_cli.stage.Options`.
    """

    def dress(function: Callable) -> Callable:
        own = [p for p in inspect.signature(function).parameters.values() if p.name not in ("config", "options")]
        knobs = _knob_parameters(config_class, {p.name for p in own})
        common = _common_parameters()

        def command(**given: Any) -> None:
            _run(function, name, config_class, [p.name for p in own], given)

        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own] + knobs + common
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = function.__doc__
        return command

    return dress


def _knob_parameters(config_class: type, taken: set[str]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(config_class)
    parameters = []
    for item in dataclasses.fields(config_class):
        if item.name in taken:
            continue
        flag = "--" + item.name.replace("_", "-")
        choices = item.metadata.get("choices")
        listed = f" ({', '.join(map(str, choices))})" if choices else ""
        names = [*([SHORT[item.name]] if item.name in SHORT else []), flag]
        if hints[item.name] is bool:
            names = [f"{flag}/--no-{flag[2:]}"]
        shown = f"[default: {item.default}]" if item.default != "" else ""
        option = typer.Option(
            *names, help=f"{item.metadata['help']}{listed} {shown}".strip(), rich_help_panel=KNOBS, show_default=False
        )
        parameters.append(_parameter(item.name, Annotated[Optional[hints[item.name]], option], None))  # noqa: UP045
    return parameters


def _common_parameters() -> list[inspect.Parameter]:
    def option(kind: Any, default: Any, *names: str, **more: Any) -> tuple[Any, Any]:
        return Annotated[kind, typer.Option(*names, rich_help_panel=COMMON, show_default=False, **more)], default

    maybe_path, maybe_int, maybe_str = Optional[Path], Optional[int], Optional[str]  # noqa: UP045
    table = {
        "recipe_": option(maybe_path, None, "--config", help="recipe file (TOML); flags win over it"),
        "overwrite_": option(bool, False, "--overwrite", help="make the output anew instead of going on with it"),
        "dry_run_": option(bool, False, "--dry-run", help="say what would be done and stop"),
        "limit_": option(maybe_int, None, "--limit", min=1, help="only the first so many rows"),
        "ids_": option(maybe_path, None, "--ids", help="only the task ids in this file, one a line"),
        "shard_": option(maybe_str, None, "--shard", help="part i of n, as in 0/3 (rollout, score, filter)"),
        "json_": option(bool, False, "--json", help="print the closing account as JSON on stdout"),
    }
    return [_parameter(name, annotation, default) for name, (annotation, default) in table.items()]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _run(function: Callable, name: str, config_class: type, own: list[str], given: dict[str, Any]) -> None:
    recipe = read_recipe(given["recipe_"]).get(name) if given["recipe_"] else None
    flags = {item.name: given[item.name] for item in dataclasses.fields(config_class) if item.name in given}
    config = resolve(config_class, flags, recipe)
    from toolsample_cli.cli.progress import Progress
    from toolsample_cli.shards.slice import Slice
    from toolsample_cli.stage import Options

    with Progress(name) as progress:
        options = Options(
            overwrite=given["overwrite_"],
            dry_run=given["dry_run_"],
            limit=given["limit_"],
            ids=given["ids_"],
            part=Slice.parse(given["shard_"]) if given["shard_"] else Slice(),
            tick=progress.tick,
            found=progress.found,
            expect=progress.expect,
        )
        account = function(**{key: given[key] for key in own}, config=config, options=options)
    print(account.line(), file=sys.stderr)
    if given["json_"]:
        print(json.dumps(account.record(), ensure_ascii=False))
    elif account.report:
        print(account.report)
    raise typer.Exit(account.exit_code)
