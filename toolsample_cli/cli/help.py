"""Help as people look for it: what the command takes, its settings in groups, common options last, and one example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

OWN = "Options"
COMMON = "Common options"


class GroupedCommand(TyperCommand):
    """A command whose options are listed under the group each one names; the epilog is an example."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """One section per group, in the order of the options; `--help` goes with the common ones."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            group = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                group = "Arguments"
            elif parameter.name == "help":
                group = COMMON
            sections.setdefault(group or OWN, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The example, on a line of its own so that it can be copied."""
        if self.epilog:
            with formatter.section("Example"):
                formatter.write(f"{' ' * formatter.current_indent}{self.epilog}\n")
