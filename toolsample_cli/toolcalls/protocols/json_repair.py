"""Reads what is nearly JSON: Python literals, single quotes, raw newlines, bad escapes, trailing commas.

Runs only after the standard decoder has refused a text. One pass, bounded depth, nothing is evaluated. An
apostrophe or an unescaped quote inside a string is kept: a quote closes only before a delimiter.
"""

from __future__ import annotations

import re

from toolsample_cli.json_types import Json, Row
from toolsample_cli.toolcalls.call import MAX_DEPTH, TooDeep

_SPACE = re.compile(r"[\s\ufeff\u200b]*")
_NUMBER = re.compile(r"[-+]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][-+]?\d{1,4})?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w.-]{0,200}")
_NEAT = re.compile(r'"([^"\\]*)"(?=[\s\ufeff\u200b]*(?:[,:}\])=]|\Z))')
_PLAIN = re.compile(r"[^\\\"'“”]+")
_CONSTANTS = {
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    "null": None, "None": None, "NULL": None, "undefined": None,
}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}
_WIDTHS = {"u": 4, "x": 2, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]+")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_QUOTES = {'"': '"', "'": "'", "“": "”", "”": "”"}


class BeyondRepair(ValueError):
    """Not even nearly JSON; `cut` says that the text simply ended too early."""

    def __init__(self, message: str, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


def read(text: str, at: int = 0, delimited: bool = False) -> tuple[Json, int]:
    """(value, position behind it) of the value that begins at `at`.

    `delimited`: the text ends where its author wanted it to, so missing closing brackets at its end are added.
    Raises BeyondRepair or TooDeep.
    """
    reader = _Reader(text, at, delimited)
    value = reader.value(0)
    return value, reader.at


class _Reader:
    def __init__(self, text: str, at: int, delimited: bool) -> None:
        self.text, self.at, self.delimited = text, at, delimited

    def past_space(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def peek(self) -> str:
        self.at = self.past_space(self.at)
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Json:
        if depth > MAX_DEPTH:
            raise TooDeep(f"nested deeper than {MAX_DEPTH}")
        first = self.peek()
        if not first:
            raise BeyondRepair("ends where a value should begin", cut=True)
        if first == "{":
            return self.object(depth)
        if first in "[(":
            return self.array(depth)
        if first in _QUOTES:
            return self.string()
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            digits = number[0]
            return float(digits) if any(mark in digits for mark in ".eE") else int(digits)
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _CONSTANTS:
            self.at = word.end()
            return _CONSTANTS[word[0]]
        raise BeyondRepair(f"no value at {self.text[self.at : self.at + 20]!r}")

    def object(self, depth: int) -> Row:
        found: Row = {}
        self.at += 1
        while self.more("}"):
            key = self.key()
            if self.peek() not in (":", "="):
                raise BeyondRepair(f"no colon after the key {key!r}", cut=self.at >= len(self.text))
            self.at += 1
            found[key] = self.value(depth + 1)
        return found

    def key(self) -> str:
        if self.peek() in _QUOTES:
            return self.string()
        word = _WORD.match(self.text, self.at)
        if not word:
            raise BeyondRepair(f"no key at {self.text[self.at : self.at + 20]!r}", cut=self.at >= len(self.text))
        self.at = word.end()
        return word[0]

    def array(self, depth: int) -> list[Json]:
        closer = _CLOSERS[self.text[self.at]]
        found: list[Json] = []
        self.at += 1
        while self.more(closer):
            found.append(self.value(depth + 1))
        return found

    def more(self, closer: str) -> bool:
        """Skip commas; False once the closer (or, in a delimited text, the end) has been taken."""
        while self.peek() == ",":
            self.at += 1
        following = self.text[self.at : self.at + 1]
        if following == closer:
            self.at += 1
            return False
        if not following:
            if self.delimited:
                return False
            raise BeyondRepair("ends inside brackets", cut=True)
        return True

    def string(self) -> str:
        text, quote = self.text, _QUOTES[self.text[self.at]]
        if neat := _NEAT.match(text, self.at):
            self.at = neat.end()
            return neat[1]
        self.at += 1
        parts = []
        while self.at < len(text):
            if plain := _PLAIN.match(text, self.at):
                parts.append(plain[0])
                self.at = plain.end()
                continue
            mark = text[self.at]
            if mark == "\\":
                parts.append(self.escape())
            elif mark == quote and self.closes():
                self.at += 1
                return "".join(parts)
            else:
                parts.append(mark)
                self.at += 1
        raise BeyondRepair("ends inside a string", cut=True)

    def closes(self) -> bool:
        """Whether the quote here ends its string: only a delimiter or the end may follow."""
        behind = self.past_space(self.at + 1)
        return self.text[behind : behind + 1] in ("", ",", ":", "}", "]", ")", "=")

    def escape(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        if width := _WIDTHS.get(letter):
            digits = self.text[self.at + 2 : self.at + 2 + width]
            if _HEX.fullmatch(digits) and len(digits) == width and int(digits, 16) < 0x110000:
                self.at += 2 + width
                return chr(int(digits, 16))
        self.at += 2
        return _ESCAPES.get(letter, "\\" + letter)
