"""`toolsample view`: a local web page over runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from toolsample_cli.errors import MissingDependency
from toolsample_cli.terminal import one_line


def view(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of several runs.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 is any free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Look at runs in a browser: curves, tasks and samples.

    The page reads the shards as they are, also while a run is being written, and changes nothing. It answers only on
    this machine and only to the address that is printed.
    """
    try:
        from toolsample_cli.view.server import serve
    except ModuleNotFoundError as error:
        raise MissingDependency(str(error.name), needed_for="view", install="pip install 'toolsample[view]'") from None

    def ready(address: str) -> None:
        port_of = address.partition("/?")[0].rpartition(":")[2]
        print(f"view: {one_line(address)}", file=sys.stderr)
        print(f"view: from another machine: ssh -L {port_of}:127.0.0.1:{port_of} HOST; Ctrl-C ends it", file=sys.stderr)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(runs, port, ready)
