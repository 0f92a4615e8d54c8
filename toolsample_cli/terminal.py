"""Words that may hold data, on their way to a person: control, escape and invisible characters are shown, never obeyed.

Every line on stderr, every table and every page goes through here; standard library only.
"""

from __future__ import annotations

import json
import re
import unicodedata

_KEPT = frozenset("\n\t")
_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories: control (ESC, C1), format (bidi, zero width, tags), private use, surrogates, separators."""


def printable(text: str) -> str:
    """The text with every character that moves a cursor, turns the writing or cannot be seen spelled out as \\uXXXX.

    Line ends and tabs stay; lone surrogates, which no terminal can encode, are spelled out too.
    """
    if text.isprintable():
        return text
    return "".join(_spelled(char) if _hidden(char) else char for char in text)


def one_line(text: str) -> str:
    """`printable`, and line ends become spaces: data cannot forge a line of its own."""
    return printable(re.sub(r"\s*[\r\n]+\s*", " ", text.strip()).replace("\t", " "))


def json_line(value: object, indent: int | None = None) -> str:
    """The value as JSON that decodes to the same and holds no raw control or invisible character."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _hidden(char) else char for char in text)


def _hidden(char: str) -> bool:
    return not char.isprintable() and char not in _KEPT and unicodedata.category(char) in _HIDDEN


def _spelled(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
