"""Checksums of a folder of files that is written as a whole, such as a checkpoint: `trainer/checksums.json` in it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from toolsample_cli.errors import DataError
from toolsample_cli.hashing import xxh3
from toolsample_cli.json_types import Json
from toolsample_cli.shards.manifest import Entry, verify
from toolsample_cli.shards.sealed import read_sealed, write_sealed

SUMS = Path("trainer") / "checksums.json"
MEND = (
    "use the checkpoint before it, or train this round anew; a file changed on purpose: delete trainer/checksums.json"
)


def write_sums(folder: Path) -> None:
    """Note size and XXH3 of every file below the folder."""
    files: dict[str, Json] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file != folder / SUMS:
            files[file.relative_to(folder).as_posix()] = {"bytes": file.stat().st_size, "xxh3": xxh3(file)}
    write_sealed(folder / SUMS, {"files": files})


def verify_folder(folder: Path, only: Collection[str] = ()) -> None:
    """Compare the files, or `only` these, with their checksums: all bytes, once per process while they stay the same.

    A folder without checksums, of an older version or another program, passes. Raises DataError naming the file.
    """
    if not (folder / SUMS).exists():
        return
    noted = read_sealed(folder / SUMS, hint=MEND).get("files")
    if not isinstance(noted, dict):
        raise DataError(f"{folder / SUMS}: damaged: no files in it", hint=MEND)
    for name, sums in noted.items():
        if only and name not in only:
            continue
        file = folder / name
        if not file.is_file():
            raise DataError(f"{file}: missing, though its checkpoint was written with it", hint=MEND)
        verify(file, Entry(name, 0, sums["bytes"], "", sums["xxh3"]), hint=MEND)
