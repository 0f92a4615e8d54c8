"""What a knob is, how flags, recipe and default become one checked value, and what identifies it.

The knobs themselves stand in config.py. Standard library only, like it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from dataclasses import field
from typing import Any, TypeVar

from toolsample_cli.errors import ConfigError

T = TypeVar("T")


def knob(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    group: str | None = None,
) -> Any:
    """A dataclass field with its meaning, allowed values and inclusive range.

    `group` begins a new group of settings in the help and in docs/settings.md; the fields below it belong to it too.
    """
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high, "group": group})


def resolve(cls: type[T], flags: dict[str, Any], table: dict[str, Any] | None = None) -> T:
    """Build a stage's config from typed flags (None: not typed) over a recipe table over defaults.

    Raises ConfigError for a wrong type, an unknown choice or a value out of range.
    """
    values = {**(table or {}), **{key: value for key, value in flags.items() if value is not None}}
    return cls(**checked(cls, values))


def checked(cls: type, values: dict[str, Any], where: str = "") -> dict[str, Any]:
    """The values as the knobs of `cls` want them; ConfigError, which begins with `where`, for one that does not fit."""
    hints = typing.get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(cls)}
    try:
        return {name: _checked(fields[name], hints[name], value) for name, value in values.items()}
    except ConfigError as error:
        raise ConfigError(f"{where}{error}", hint=error.hint) from None


def _checked(item: dataclasses.Field, hint: Any, value: Any) -> Any:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) not in allowed:
        expected = " or ".join(t.__name__ for t in allowed if t is not type(None))
        raise ConfigError(f"{item.name} = {value!r}: expected {expected}, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{item.name} = {value!r}: expected a finite number")
    choices, low, high = (item.metadata.get(key) for key in ("choices", "low", "high"))
    if choices and value not in choices:
        raise ConfigError(
            f"{item.name} = {value!r}: not one of {', '.join(map(str, choices))}", hint=nearest(str(value), choices)
        )
    if low is not None and not value >= low:
        raise ConfigError(f"{item.name} = {value!r}: must be at least {low:g}")
    if high is not None and not value <= high:
        raise ConfigError(f"{item.name} = {value!r}: must be at most {high:g}")
    return value


def nearest(word: str, valid: typing.Iterable[str]) -> str | None:
    """`did you mean X?` for a mistyped word, or None when nothing is near."""
    match = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.5)
    return f"did you mean {match[0]!r}?" if match else None


def refuse_unknown(word: str, valid: list[str], message: str) -> None:
    """ConfigError with the nearest valid word, or all of them, unless `word` is valid."""
    if word not in valid:
        raise ConfigError(f"{message}: {word!r}", hint=nearest(word, valid) or f"valid: {', '.join(valid)}")


def as_record(config: Any) -> dict[str, Any]:
    """The config as plain JSON values, in declaration order."""
    return dataclasses.asdict(config)
