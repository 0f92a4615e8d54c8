"""Raw files in, task rows out."""

from __future__ import annotations

import json
from pathlib import Path

from toolsample_cli.config import ImportConfig
from toolsample_cli.importing.stage import run
from toolsample_cli.shards import schema
from toolsample_cli.shards.reading import open_folder
from toolsample_cli.stage import Options

RAW = Path(__file__).resolve().parents[2] / "fixtures" / "raw"


def imported(raw, out: Path, options: Options = Options(), **settings):
    """(account, tasks as rows, rejects as rows)."""
    names = [str(item) for item in (raw if isinstance(raw, list) else [raw])]
    account = run(names, out, ImportConfig(**settings), options)
    tasks = open_folder(out, schema.TASKS).load().to_dicts()
    rejects = open_folder(out.parent / f"{out.name}.rejects", schema.REJECTS).load().to_dicts()
    return account, tasks, rejects


def lines(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chat(request: str, *calls: tuple[str, dict], tools=(), answer: str | None = None, **more) -> dict:
    """A row in OpenAI's form."""
    records = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    gold = {"role": "assistant", "content": answer, **({"tool_calls": records} if records else {})}
    return {"messages": [{"role": "user", "content": request}, gold], "tools": list(tools), **more}
