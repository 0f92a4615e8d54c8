"""When two argument values are the same: one rule, stated once, with named presets.

`toolrl` is Python's equality (1 = 1.0 = true, text exact), `bfcl` is close to the official checker's (see
`rewards.bfcl` for its exact verdict, which needs the schema), `json` keeps all JSON types apart.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolsample_cli.config.settings import nearest
from toolsample_cli.errors import ConfigError
from toolsample_cli.json_types import Json


@dataclass(frozen=True)
class ValueRule:
    """How two values compare; every field is one decision."""

    bools: str = "apart"  # `numbers`: true equals 1
    numbers: str = "together"  # `apart`: 1 differs from 1.0
    tolerance: float = 0.0  # largest relative difference of equal numbers (absolute below 1)
    digits: str = "text"  # `numbers`: the text "12" equals 12
    case: str = "exact"  # `ignore`
    space: str = "exact"  # `collapse`: runs of white space count as one, none at the ends
    unicode: str = "exact"  # `nfkc`: compatibility forms are equal
    drop: str = ""  # characters that do not count in texts
    quotes: str = "exact"  # `together`: ' equals "
    lists: str = "ordered"  # `sets`: order does not matter

    def equal(self, wanted: Json, found: Json) -> bool:
        """Whether the two values are the same under this rule."""
        return _same(self.normal(wanted), self.normal(found), self.tolerance)

    def normal(self, value: Json) -> Json:
        """A form that is equal (up to the tolerance) for equal values."""
        if isinstance(value, bool):
            return int(value) if self.bools == "numbers" else ("bool", value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int | float):
            return ("int", value) if self.numbers == "apart" and isinstance(value, int) else value
        if isinstance(value, dict):
            return {key: self.normal(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self.normal(item) for item in value]
            return sorted(items, key=repr) if self.lists == "sets" else items
        return value

    def _text(self, text: str) -> Json:
        if self.unicode == "nfkc":
            text = unicodedata.normalize("NFKC", text)
        if self.case == "ignore":
            text = text.lower()  # as BFCL's checker; case folding would also merge letters
        if self.quotes == "together":
            text = text.replace("'", '"')
        if self.space == "collapse":
            text = " ".join(text.split())
        if self.drop:
            text = text.translate(dict.fromkeys(map(ord, self.drop)))
        if self.digits == "numbers" and len(text) < 64 and text[:1] in tuple("+-.0123456789"):
            try:
                number = float(text)
            except ValueError:
                return text
            return number if math.isfinite(number) else text
        return text


def _same(wanted: Json, found: Json, tolerance: float) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(_same(item, found[key], tolerance) for key, item in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_same, wanted, found, [tolerance] * len(found)))
    if tolerance and isinstance(wanted, int | float) and isinstance(found, int | float):
        try:
            return wanted == found or abs(wanted - found) <= tolerance * max(1.0, abs(wanted), abs(found))
        except OverflowError:  # an integer beyond the floats
            return False
    return wanted == found


RULES: dict[str, ValueRule] = {
    "toolrl": ValueRule(bools="numbers"),
    "json": ValueRule(numbers="apart"),
    "bfcl": ValueRule(case="ignore", drop=" ,./-_*^", quotes="together"),
    "lenient": ValueRule(
        tolerance=1e-6, digits="numbers", case="ignore", space="collapse", unicode="nfkc", lists="sets"
    ),
}
"""Named presets."""


def value_rule(text: str) -> ValueRule:
    """A rule from `preset` or `preset:field=value,...`; ConfigError for an unknown preset, field or value."""
    name, _, changes = text.partition(":")
    if name not in RULES:
        raise ConfigError(f"values = {text!r}: not one of {', '.join(RULES)}", hint=nearest(name, RULES))
    rule = RULES[name]
    fields = [item.name for item in dataclasses.fields(ValueRule)]
    for change in filter(None, changes.split(",") if "drop=" not in changes else [changes]):
        key, _, value = change.partition("=")
        if key not in fields:
            raise ConfigError(f"values = {text!r}: no setting {key!r}", hint=nearest(key, fields))
        rule = dataclasses.replace(rule, **{key: _setting(text, key, value)})
    return rule


_SETTINGS = {
    "bools": ("apart", "numbers"), "numbers": ("apart", "together"), "digits": ("text", "numbers"),
    "case": ("exact", "ignore"), "space": ("exact", "collapse"), "unicode": ("exact", "nfkc"),
    "quotes": ("exact", "together"), "lists": ("ordered", "sets"),
}  # fmt: skip


def _setting(text: str, key: str, value: str) -> Any:
    if key == "tolerance":
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1:
            raise ConfigError(f"values = {text!r}: tolerance must be a number in [0, 1)")
        return number
    if key != "drop" and value not in _SETTINGS[key]:
        raise ConfigError(f"values = {text!r}: {key} is one of {', '.join(_SETTINGS[key])}")
    return value


def equality(text: str) -> Callable[[Json, Json], bool]:
    """The comparison a `values` setting stands for."""
    rule = value_rule(text)
    return operator.eq if rule == RULES["toolrl"] else rule.equal
