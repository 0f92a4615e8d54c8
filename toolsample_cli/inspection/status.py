"""A run folder as a whole: which shards lie in it, which are finished, which are being written right now."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path
from typing import Any

from toolsample_cli.errors import DataError
from toolsample_cli.inspection.places import Place, look
from toolsample_cli.shards.manifest import summed

DEEP = 4
"""Levels of folders that are looked through."""


def status(root: Path) -> list[dict[str, Any]]:
    """One entry for every folder of shards and every summary below `root`, in the order of rounds."""
    found: list[dict[str, Any]] = []
    _walk(root, root, DEEP, found)
    return found


def _walk(folder: Path, root: Path, levels: int, found: list[dict[str, Any]]) -> None:
    inside = sorted((path for path in folder.iterdir() if path.name != "trainer"), key=_natural)
    for file in inside:
        if file.is_file() and file.name in ("round.json", "summary.json", "state.json"):
            found.append({"path": _under(file, root), "kind": file.stem, "about": _about(file)})
    for path in inside:
        if not path.is_dir() or path.name.endswith(".tmp") or path.name.startswith("."):
            continue
        try:
            place = look(path)
        except DataError as error:
            found.append({"path": _under(path, root), "kind": None, "state": "damaged", "about": str(error)})
            continue
        if place is not None:
            found.append(_entry(place, root))
        elif _locked(path):
            found.append({"path": _under(path, root), "kind": None, "rows": 0, "state": "being written"})
        elif (path / "config.json").exists():
            found.append({"path": _under(path, root), "kind": "model", "about": _steps(path)})
        if place is None and levels > 0:
            _walk(path, root, levels - 1, found)


def _natural(path: Path) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def _under(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _entry(place: Place, root: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": _under(place.path, root), "kind": place.kind, "shards": len(place.files)}
    try:
        entry["rows"] = place.rows()
    except DataError as error:
        return {**entry, "state": "damaged", "about": str(error)}
    entry["state"] = "complete" if place.complete else ("being written" if _locked(place.path) else "not finished")
    counts = summed(place.manifests)
    entry["about"] = ", ".join(f"{key} {value}" for key, value in sorted(counts.items(), key=lambda item: -item[1])[:6])
    return entry


def _locked(path: Path) -> bool:
    for lock in (path.parent / f"{path.name}.tmp").glob("lock*"):
        try:
            with lock.open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
    return False


def _about(file: Path) -> str:
    """The plain numbers and words at the top of a JSON file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return "not JSON"
    if not isinstance(value, dict):
        return f"{len(value)} entries" if isinstance(value, list) else str(value)
    plain = {key: item for key, item in value.items() if isinstance(item, str | int | float)}
    return ", ".join(f"{key} {item:.4g}" if isinstance(item, float) else f"{key} {item}" for key, item in plain.items())


def _steps(model: Path) -> str:
    return "with trainer state" if (model / "trainer").is_dir() else ""
