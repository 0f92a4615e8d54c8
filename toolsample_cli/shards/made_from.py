"""What an output was made from, as one flat table, and the one refusal to mix two of them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

from toolsample_cli.errors import ConfigError
from toolsample_cli.json_types import Json

ANEW = "give --overwrite to make it again, or choose another output folder"


def lineage(config: Mapping[str, Json], inputs: Mapping[str, str]) -> dict[str, Json]:
    """Settings and inputs in one table; an input's key begins with `input`."""
    return {**config, **{f"input {name}": value for name, value in inputs.items()}}


def changed_keys(old: Mapping[str, Json], new: Mapping[str, Json], free: Set[str] = frozenset()) -> list[str]:
    """Keys whose values differ, in order; those in `free` may."""
    return sorted(key for key in {**old, **new} if key not in free and old.get(key) != new.get(key))


def refuse_changes(
    where: Path | str,
    old: Mapping[str, Json],
    new: Mapping[str, Json],
    *,
    free: Set[str] = frozenset(),
    hint: str = ANEW,
) -> None:
    """ConfigError naming every setting or input that differs between what is there (`old`) and what is asked for."""
    changed = changed_keys(old, new, free)
    if changed:
        changes = "; ".join(f"{key} was {_brief(old.get(key))}, now {_brief(new.get(key))}" for key in changed)
        raise ConfigError(f"{where}: was made with other settings or inputs: {changes}", hint=hint)


def _brief(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
