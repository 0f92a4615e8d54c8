"""A run folder as a whole: which shards lie in it, which are finished, which are being written right now."""

from __future__ import annotations

import fcntl
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from toolsample_cli.errors import DataError
from toolsample_cli.inspection.shard_folders import ShardFolder, look
from toolsample_cli.json_types import Row
from toolsample_cli.shards.manifest import summed

DEEP = 4
"""Levels of folders that are looked through."""


@dataclass(frozen=True)
class RunEntry:
    """A folder of shards, a model or a summary of a run; what does not apply is None."""

    path: str
    kind: str | None
    rows: int | None = None
    shards: int | None = None
    state: str | None = None
    about: str = ""

    def record(self) -> Row:
        """For `--json`."""
        return {name: value for name, value in vars(self).items() if value not in (None, "") or name == "kind"}


def status(root: Path) -> list[RunEntry]:
    """One entry for every folder of shards and every summary below `root`, in the order of rounds."""
    found: list[RunEntry] = []
    _walk(root, root, DEEP, found)
    return found


def _walk(folder: Path, root: Path, levels: int, found: list[RunEntry]) -> None:
    inside = sorted((path for path in folder.iterdir() if path.name != "trainer"), key=_natural)
    for file in inside:
        if file.is_file() and file.name in ("round.json", "summary.json", "state.json"):
            found.append(RunEntry(_under(file, root), file.stem, about=_about(file)))
    for path in inside:
        if not path.is_dir() or path.name.endswith(".tmp") or path.name.startswith("."):
            continue
        try:
            place = look(path)
        except DataError as error:
            found.append(RunEntry(_under(path, root), None, state="damaged", about=str(error)))
            continue
        if place is not None:
            found.append(_entry(place, root))
        elif _locked(path):
            found.append(RunEntry(_under(path, root), None, rows=0, state="being written"))
        elif (path / "config.json").exists():
            found.append(RunEntry(_under(path, root), "model", about=_steps(path)))
        if place is None and levels > 0:
            _walk(path, root, levels - 1, found)


def _natural(path: Path) -> list[tuple[str, int]]:
    """Sorts round-2 before round-10."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", path.name)]


def _under(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _entry(place: ShardFolder, root: Path) -> RunEntry:
    entry = RunEntry(_under(place.path, root), place.kind, shards=len(place.files))
    try:
        rows = place.rows()
    except DataError as error:
        return replace(entry, state="damaged", about=str(error))
    state = "complete" if place.complete else ("being written" if _locked(place.path) else "not finished")
    largest = sorted(summed(place.manifests).items(), key=lambda item: -item[1])[:6]
    return replace(entry, rows=rows, state=state, about=", ".join(f"{key} {value}" for key, value in largest))


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
