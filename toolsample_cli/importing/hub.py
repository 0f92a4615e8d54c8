"""`hf://datasets/OWNER/NAME[@REVISION][/PATH]`: data files of the Hugging Face hub, through its own cache.

A named file that is in the cache needs no network; a folder is listed online.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from toolsample_cli.errors import ConfigError, DataError, MissingDependency
from toolsample_cli.importing.raw_rows import SUFFIXES

PREFIX = "hf://"
_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")


def hub_files(address: str) -> list[tuple[Path, str]]:
    """(local file, label) of an address, fetched where the cache lacks them.

    Raises ConfigError for a malformed address, DataError when nothing is found or the hub is out of reach.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise ConfigError(f"{address}: not an address of a data set", hint="hf://datasets/OWNER/NAME[@REVISION][/PATH]")
    repo, revision, path = match[1], match[2], (match[3] or "").strip("/")
    try:
        import huggingface_hub as hub
    except ImportError:
        raise MissingDependency(
            "huggingface_hub", needed_for="an hf:// path", install="pip install huggingface_hub"
        ) from None
    names = [path] if path.endswith(SUFFIXES) else _listed(hub, address, repo, revision, path)
    base = f"hf://datasets/{repo}{f'@{revision}' if revision else ''}"
    return [(_fetched(hub, address, repo, revision, name), f"{base}/{name}") for name in names]


def _listed(hub: Any, address: str, repo: str, revision: str | None, folder: str) -> list[str]:
    try:
        names = hub.HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)
    except _failures(hub) as error:
        raise _unreachable(address, error) from error
    inside = sorted(
        name for name in names if name.endswith(SUFFIXES) and name.startswith(f"{folder}/" if folder else "")
    )
    inside = [name for name in inside if not any(part.startswith((".", "_")) for part in name.split("/"))]
    if not inside:
        raise DataError(f"{address}: no data files in it", hint=f"looked for {', '.join(SUFFIXES)}")
    return inside


def _fetched(hub: Any, address: str, repo: str, revision: str | None, name: str) -> Path:
    try:
        return Path(hub.hf_hub_download(repo, name, repo_type="dataset", revision=revision))
    except _failures(hub) as error:
        raise _unreachable(address, error) from error


def _failures(hub: Any) -> tuple[type[Exception], ...]:
    """What the hub's client raises: errors of its own, of the system and of its HTTP library."""
    import importlib.util

    found: tuple[type[Exception], ...] = (OSError, ValueError, hub.errors.HfHubHTTPError)
    if importlib.util.find_spec("httpx"):
        import httpx

        found = (*found, httpx.HTTPError)
    return found


def _unreachable(address: str, error: Exception) -> DataError:
    said = str(error).strip().splitlines()
    return DataError(
        f"{address}: cannot be fetched: {type(error).__name__}: {said[0][:200] if said else ''}",
        hint="offline, or no access? fetch it elsewhere with `hf download --repo-type dataset` and give the folder",
    )
