"""Writes the reference pages docs/settings.md, names.md and shards.md from the code: `generate.py [--check]`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from toolsample_cli.config import STAGES
from toolsample_cli.importing.formats import FORMATS
from toolsample_cli.score.rewards import REWARDS
from toolsample_cli.score.scorer import QUIRKS
from toolsample_cli.shards.column_table import column_table
from toolsample_cli.toolcalls.protocols import PROTOCOLS

FOLDER = Path(__file__).resolve().parent


SETTINGS = """Flags of the commands, and keys of their tables in a recipe: `--max-new-tokens 256` on the command line is
`max_new_tokens = 256` under `[rollout]`."""

NAMES = """What a setting may name, from the tables in the code."""

SHARDS = """Arguments, schemas and messages are compact JSON text. Tasks keep keys in the order of their source, as
models see them; ids do not depend on it. `<folder>.manifest.json` lies beside each folder of shards;
every footer carries the settings and the digests of the inputs it was made from."""


def settings_table() -> str:
    """Every knob of every command: flag, default, meaning."""
    lines = []
    for stage, config in STAGES.items():
        lines += [f"## `toolsample {stage}`", "", "| setting | default | meaning |", "|---|---|---|"]
        for item in dataclasses.fields(config):
            if item.metadata["group"]:
                lines.append(f"| **{item.metadata['group']}** | | |")
            choices = item.metadata.get("choices")
            listed = f" ({', '.join(map(str, choices))})" if choices else ""
            default = f"`{item.default}`" if item.default not in ("", None) else ""
            lines.append(f"| `{item.name}` | {default} | {item.metadata['help'].replace('|', '/')}{listed} |")
        lines.append("")
    return "\n".join(lines)


def names_table() -> str:
    """Every name that a setting takes and that has a table of its own in the code."""
    tables = {
        "`import --format`: shapes of raw data": [
            (form.name, f"{form.meaning}; calls as `{form.protocol}`" + ("; test data" if form.test else ""))
            for form in FORMATS.values()
        ],
        "`--protocol`: ways of writing calls": [(one.name, one.meaning) for one in PROTOCOLS.values()],
        "`score --rewards`": [
            (name, f"{one.meaning}; {one.low:g} to {one.high:g} ({one.source})") for name, one in REWARDS.items()
        ],
        "`score --lift`: quirks of ToolRL's code": list(QUIRKS.items()),
    }
    lines = []
    for title, rows in tables.items():
        lines += [f"## {title}", "", "| name | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning.replace('|', '/').replace('<', '&lt;')} |" for name, meaning in rows] + [""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name -> text of each generated page."""
    parts = {
        "settings.md": ("Settings", SETTINGS, settings_table()),
        "names.md": ("Names", NAMES, names_table()),
        "shards.md": ("Shards", SHARDS, column_table()),
    }
    note = "<!-- made by `make docs`; edit docs/generate.py instead -->"
    return {
        name: f"# {title}\n\n{note}\n\n{opening}\n\n{body.strip()}\n" for name, (title, opening, body) in parts.items()
    }


def main() -> None:
    """Write the pages, or with --check exit 1 when one is out of date."""
    for name, text in pages().items():
        file = FOLDER / name
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"docs/{name} is out of date: run `make docs`")


if __name__ == "__main__":
    main()
