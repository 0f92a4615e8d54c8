"""BFCL's Java and JavaScript categories: arguments are source text, compared as the values they stand for.

Own readers, more lenient than the official ones where those refuse valid source: quoted texts in Java arrays, commas
inside quotes, a suffix that the type does not need. What cannot be read stays text.
"""

from __future__ import annotations

import re

from toolsample_cli.json_types import Json
from toolsample_cli.toolcalls.protocols import json_repair

JAVA: dict[str, type] = {
    "byte": int, "short": int, "integer": int, "long": int, "float": float, "double": float, "number": float,
    "boolean": bool, "char": str, "String": str, "string": str, "any": str, "Array": list, "ArrayList": list,
    "array": list, "Queue": list, "Stack": list, "HashMap": dict, "Hashtable": dict, "object": dict, "dict": dict,
}  # fmt: skip
JAVASCRIPT: dict[str, type] = {
    "integer": int, "Bigint": int, "float": float, "number": float, "Boolean": bool, "boolean": bool, "String": str,
    "string": str, "any": str, "array": list, "dict": dict, "object": dict,
}  # fmt: skip
_INTEGER = re.compile(r"-?\d{1,400}[lLn]?")
_NUMBER = re.compile(r"-?\d{1,400}(?:\.\d{1,400})?(?:[eE][+-]?\d{1,3})?[fFdD]?")
_LIST = re.compile(r"(?:asList|List\.of|new\s+Array)\s*\(|new\s+[\w<>]{1,100}\s*\[\]\s*\{")
_ADD, _PUT = re.compile(r"\badd\s*\("), re.compile(r"\bput\s*\(")


def value_of(text: str, language: str, expected: type) -> Json:
    """The value that a piece of source stands for, given the type it should have; the text itself when unclear."""
    text = text.strip() if expected is not str else text
    if expected is int and _INTEGER.fullmatch(text):
        return int(text.rstrip("lLn"))
    if expected is float and _NUMBER.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if expected is bool and text in ("true", "false"):
        return text == "true"
    if language == "javascript":
        return _script(text, expected)
    if expected is list:
        return _java_list(text)
    if expected is dict:
        return _java_map(text)
    return text


def _script(text: str, expected: type) -> Json:
    if expected is str and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if expected not in (list, dict) or len(text) > 20_000:
        return text
    if found := _LIST.match(text):
        text = f"[{text[found.end() : text.rfind(')')]}]"
    try:
        value, end = json_repair.read(text)
    except ValueError:
        return text
    return value if end == len(text) and isinstance(value, expected) else text


def _java_list(text: str) -> Json:
    if found := _LIST.search(text):
        return [_free(item) for item in _split(text, found.end())[0]]
    added = [_split(text, found.end())[0] for found in _ADD.finditer(text)]
    if added:
        return [_free(items[0]) for items in added if items]
    return [] if re.match(r"new\s+\w+(?:<[^()]*>)?\s*\(\s*\)", text) else text


def _java_map(text: str) -> Json:
    puts = [_split(text, found.end())[0] for found in _PUT.finditer(text)]
    if puts:
        return {str(_free(items[0])): _free(items[1]) for items in puts if len(items) == 2}
    return {} if re.match(r"new\s+\w+(?:<[^()]*>)?\s*\(", text) else text


def _split(text: str, at: int) -> tuple[list[str], int]:
    """Parts between commas up to the bracket that closes the one before `at`; quotes and nesting are kept whole."""
    parts, start, depth, quote = [], at, 0, ""
    while at < len(text):
        mark = text[at]
        if quote:
            at += mark == "\\"
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            if depth == 0:
                break
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    last = text[start:at].strip()
    return [*parts, *([last] if last else [])], at


def _free(text: str) -> Json:
    """A value without a known type."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text.rstrip("lLn"))
    return float(text.rstrip("fFdD")) if _NUMBER.fullmatch(text) else text
