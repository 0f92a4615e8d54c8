"""Which runs and rounds lie below a folder, and what of them is there yet."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from toolsample_cli.errors import DataError
from toolsample_cli.inspection.shard_folders import ShardFolder, look
from toolsample_cli.json_types import Row

DEEPEST = 3
"""Folders below the one that was given in which rounds are looked for: arm, seed, round."""
_ROUND = re.compile(r"round-(\d+)")


@dataclass(frozen=True)
class RunFolder:
    """A folder with rounds in it; `name` is its path below the folder that was decoded."""

    name: str
    path: Path

    @property
    def rounds(self) -> list[int]:
        """Numbers of the rounds whose folders exist."""
        found = [_ROUND.fullmatch(file.name) for file in self.path.iterdir() if file.is_dir()]
        return sorted(int(match[1]) for match in found if match)

    def round(self, number: int) -> Path:
        """Folder of a round."""
        return self.path / f"round-{number}"

    def shards(self, number: int, kind: str) -> ShardFolder | None:
        """The shards of this kind in a round; None while there are none. DataError when they are damaged."""
        folder = self.round(number) / kind
        place = look(folder) if folder.is_dir() else None
        return place if place is not None and place.files else None

    def tasks(self, number: int) -> ShardFolder | None:
        """The tasks that round `number` sampled: what the round before drew."""
        return self.shards(number - 1, "tasks")

    def models(self) -> list[Path]:
        """Model folders that this run made, newest first, and the one it started from."""
        made = [self.round(number) / "checkpoint" for number in reversed(self.rounds)]
        first = ((self.plan() or {}).get("run") or {}).get("model")
        return [*made, *([Path(first)] if isinstance(first, str) and first else [])]

    def plan(self) -> Row | None:
        """The settings of a run that `toolsample run` made."""
        return read_object(self.path / "plan.json")


def runs_below(path: Path) -> list[RunFolder]:
    """Every folder with rounds, the decoded one first; DataError when there is none."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder", hint="give a run, or the folder of several runs")
    found = [
        RunFolder(folder.relative_to(path).as_posix(), folder)
        for folder in _folders(path, DEEPEST)
        if _has_rounds(folder)
    ]
    if not found:
        raise DataError(
            f"{path}: no round in it", hint="give the output of `toolsample run`, or a folder with round-N folders"
        )
    return found


def _folders(path: Path, depth: int) -> list[Path]:
    if depth < 0:
        return []
    below = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    if any(_ROUND.fullmatch(one.name) for one in below):
        return [path]
    return [path, *(folder for one in below for folder in _folders(one, depth - 1))]


def _has_rounds(path: Path) -> bool:
    return any(one.is_dir() and _ROUND.fullmatch(one.name) for one in path.iterdir())


def read_object(path: Path) -> Row | None:
    """A JSON object; None when there is no such file or it is being written. DataError when it holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return value
