"""Rewrites the generated parts of README.md from the code: `python docs/generate.py [--check]`.

The parts stand between `<!-- NAME -->` and `<!-- /NAME -->`: `columns` from schema.py, `settings` from config.py,
`names` from the tables of formats, protocols, rewards and quirks.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

from toolsample_cli.config import STAGES
from toolsample_cli.importing.formats import FORMATS
from toolsample_cli.score.rewards import REWARDS
from toolsample_cli.score.scorer import QUIRKS
from toolsample_cli.shards.schema import column_table
from toolsample_cli.toolcalls.protocols import PROTOCOLS

README = Path(__file__).resolve().parent.parent / "README.md"


def settings_table() -> str:
    """Every knob of every command: flag, default, meaning."""
    lines = []
    for stage, config in STAGES.items():
        lines += [f"**`toolsample {stage}`**", "", "| setting | default | meaning |", "|---|---|---|"]
        for item in dataclasses.fields(config):
            choices = item.metadata.get("choices")
            listed = f" ({', '.join(map(str, choices))})" if choices else ""
            default = f"`{item.default}`" if item.default != "" else ""
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
        lines += [f"**{title}**", "", "| name | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning.replace('|', '/').replace('<', '&lt;')} |" for name, meaning in rows] + [""]
    return "\n".join(lines)


def generate(text: str) -> str:
    """The README with its generated parts made anew."""
    for name, make in {"columns": column_table, "settings": settings_table, "names": names_table}.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md has no part <!-- {name} -->")
        text = pattern.sub(lambda match, body=make(): f"{match[1]}{body}\n{match[2]}", text)
    return text


def main() -> None:
    """Rewrite, or with --check exit 1 when the README is out of date."""
    old = README.read_text(encoding="utf-8")
    new = generate(old)
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if new == old else "README.md is out of date: run `make docs`")
    README.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
