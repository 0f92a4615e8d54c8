"""The application: registers every command and is the single place where an error becomes an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from toolsample_cli import __version__
from toolsample_cli.cli import commands
from toolsample_cli.cli.inspect import inspect
from toolsample_cli.errors import INTERRUPTED, ToolsampleError

COMMANDS: dict[str, Callable[..., None]] = {
    "import": commands.import_,
    "rollout": commands.rollout,
    "score": commands.score,
    "filter": commands.filter,
    "curriculum": commands.curriculum,
    "train": commands.train,
    "eval-bfcl": commands.eval_bfcl,
    "inspect": inspect,
    "run": commands.run,
    "report": commands.report,
}
"""In the order of the pipeline."""

RESUMABLE = "interrupted; what was finished is kept, rerun to go on"


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def build() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(
        name="toolsample",
        help="Curate data for RL tool learning: every stage reads Parquet shards and writes Parquet shards.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        del version

    for name, command in COMMANDS.items():
        app.command(name, no_args_is_help=True)(command)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; unknown exceptions keep their traceback."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        code = int(build()(arguments, standalone_mode=False, prog_name="toolsample") or 0)
        return _say(RESUMABLE, None, INTERRUPTED) if code == INTERRUPTED else code  # typer's answer to Ctrl-C
    except ToolsampleError as error:
        return _say(str(error), error.hint, error.exit_code)
    except KeyboardInterrupt:
        return _say(RESUMABLE, None, INTERRUPTED)
    except BrokenPipeError:  # the reader of our stdout went away, as in `toolsample inspect X | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _is_usage(error):
            return _say(error.format_message(), _usage_hint(error), 2)
        if type(error).__name__ == "Abort":
            return _say(RESUMABLE, None, INTERRUPTED)
        raise


def _as_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _is_usage(error: Exception) -> bool:
    # typer may carry its own copy of click, so the class is known by what it offers
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage_hint(error: Any) -> str | None:
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path} --help`" if context is not None else None


def _say(message: str, hint: str | None, code: int) -> int:
    print(f"toolsample: error: {message}" if code != INTERRUPTED else f"toolsample: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code
