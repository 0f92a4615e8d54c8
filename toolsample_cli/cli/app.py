"""The application: registers every command and is the single place where an error becomes an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, NamedTuple

import typer

from toolsample_cli import __version__
from toolsample_cli.cli import bridge_commands, commands
from toolsample_cli.cli.help import GroupedCommand
from toolsample_cli.cli.inspect import inspect
from toolsample_cli.cli.viewing import view
from toolsample_cli.errors import INTERRUPTED, ToolsampleError
from toolsample_cli.terminal import one_line, printable


class Command(NamedTuple):
    """A command and the example its help ends with."""

    function: Callable[..., None]
    example: str


COMMANDS = {
    "import": Command(commands.import_, "toolsample import data.parquet -o run/corpus"),
    "rollout": Command(
        commands.rollout, "toolsample rollout run/round-0/tasks -m Qwen/Qwen2.5-1.5B-Instruct -o run/round-1/rollouts"
    ),
    "score": Command(commands.score, "toolsample score run/round-0/tasks run/round-1/rollouts -o run/round-1/scores"),
    "filter": Command(commands.filter, "toolsample filter run/round-1/scores --method dapo -o run/round-1/groups"),
    "curriculum": Command(commands.curriculum, "toolsample curriculum run/corpus -o run/round-0"),
    "train": Command(
        commands.train,
        "toolsample train run/round-1/rollouts run/round-1/batch -m MODEL -o run/round-1/checkpoint",
    ),
    "eval-bfcl": Command(commands.eval_bfcl, "toolsample eval-bfcl run/round-1/checkpoint -o run/bfcl"),
    "inspect": Command(inspect, "toolsample inspect run/round-1/scores -i 2"),
    "run": Command(commands.run, "toolsample run examples/qwen2.5-1.5b.toml -o runs/first --dry-run"),
    "view": Command(view, "toolsample view runs/first"),
    "export": Command(
        bridge_commands.export, "toolsample export run/corpus --to verl -m Qwen/Qwen2.5-1.5B-Instruct -o train.parquet"
    ),
    "import-rollouts": Command(
        bridge_commands.import_rollouts, "toolsample import-rollouts dump/ --tasks run/corpus -o run/round-1/rollouts"
    ),
    "report": Command(commands.report, "toolsample report runs/first"),
}
"""In the order of the pipeline."""

RESUMABLE = "interrupted; what was finished is kept, rerun to resume"


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


def build() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(
        name="toolsample",
        help="Curate data for RL tool learning: every stage reads Parquet shards and writes Parquet shards.",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        context: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        del version
        if context.invoked_subcommand is None:
            print(context.get_help())

    for name, command in COMMANDS.items():
        app.command(name, cls=GroupedCommand, epilog=command.example)(command.function)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; unknown exceptions keep their traceback."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        code = int(build()(arguments, standalone_mode=False, prog_name="toolsample") or 0)
        sys.stdout.flush()
        return _complain(RESUMABLE, None, INTERRUPTED) if code == INTERRUPTED else code  # typer's answer to Ctrl-C
    except ToolsampleError as error:
        return _complain(str(error), error.hint, error.exit_code)
    except KeyboardInterrupt:
        return _complain(RESUMABLE, None, INTERRUPTED)
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ended:  # what typer makes of a broken pipe
        if isinstance(ended.__context__, BrokenPipeError):
            return _reader_left()
        raise
    except Exception as error:
        shown = getattr(error, "format_message", None)  # typer carries its own copy of click: known by what it offers
        if shown is not None and hasattr(error, "exit_code"):
            return _complain(shown(), _usage_hint(error), 2)
        if type(error).__name__ == "Abort":
            return _complain(RESUMABLE, None, INTERRUPTED)
        raise


def show_traceback(kind: type[BaseException], error: BaseException, at: object) -> None:
    """A bug keeps its traceback, but data in its words obeys nobody (for `sys.excepthook`)."""
    import traceback

    del kind, at
    print(printable("".join(traceback.format_exception(error))), file=sys.stderr)


def _reader_left() -> int:
    """The reader of our stdout went away, as in `toolsample inspect X | head`: it has all it wants."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _usage_hint(error: Exception) -> str | None:
    context: typer.Context | None = getattr(error, "ctx", None)
    return f"see `{context.command_path} --help`" if context is not None else None


def _complain(message: str, hint: str | None, code: int) -> int:
    begins = "toolsample: " if code == INTERRUPTED else "toolsample: error: "
    print(begins + one_line(message), file=sys.stderr)
    if hint:
        print(f"hint: {one_line(hint)}", file=sys.stderr)
    return code
