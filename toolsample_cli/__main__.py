"""Entry for the console script, for `python -m toolsample_cli` and for torchrun."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code."""
    import sys

    from toolsample_cli.cli.app import run, show_traceback

    sys.excepthook = show_traceback

    raise SystemExit(run())


if __name__ == "__main__":
    main()
