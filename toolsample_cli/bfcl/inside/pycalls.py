"""Python calls `[f(a=1), g(b="x")]` to [{name: {parameter: value}}], read as the official decoder does, without eval.

Same quirks on purpose: positional arguments are dropped, `true` and `null` become text, the last of two equal keywords
wins, `not True` is -1. The only difference is arithmetic inside arguments: numbers, text and lists are computed here
within bounds, and whatever would run code raises `Refused`, where the official decoder calls eval.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from typing import Any

MAX_CHARS = 1_000_000
"""Longest answer that is read; the official runs allow 4,096 tokens."""

MAX_BITS = 1_000_000
"""Largest integer that arithmetic may reach, in bits."""

MAX_ITEMS = 1_000_000
"""Longest text or list that arithmetic may build."""


class Refused(Exception):
    """Decoding would run code or take unbounded time; such an answer is wrong in every category."""


def decode(text: str, release: str = "v4", *, tagged: bool = False) -> list[dict[str, Any]]:
    """The calls in an answer of the official prompting mode; `tagged`: only what stands between <TOOLCALL> tags.

    Raises Refused for what must not be computed and any other exception where the official decoder fails too.
    """
    if len(text) > MAX_CHARS:
        raise Refused("the answer is too long")
    text = text.strip("`\n ")
    if not text.startswith("["):
        text = "[" + text
    if not text.endswith("]"):
        text = text + "]"
    if tagged:
        match = re.search(r"<TOOLCALL>(.*?)</TOOLCALL>", text, re.DOTALL)
        if not match:
            raise ValueError("no <TOOLCALL> section")
        text = match[1].strip()
    return _parse(text.strip("[]'") if release == "v3" else text.strip().strip("'"))


def _parse(text: str) -> list[dict[str, Any]]:
    """One call, or a list or tuple of calls."""
    body = ast.parse(text, mode="eval").body
    if isinstance(body, ast.Call):
        return [_call(body)]
    calls = []
    for element in body.elts:
        if not isinstance(element, ast.Call):
            raise ValueError("an element is not a call")
        calls.append(_call(element))
    return calls


def _call(node: ast.Call) -> dict[str, Any]:
    parts, function = [], node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    return {".".join(reversed(parts)): {keyword.arg: _value(keyword.value) for keyword in node.keywords}}


def _value(node: ast.AST | None) -> Any:
    if isinstance(node, ast.Constant):
        return "..." if node.value is Ellipsis else node.value
    if isinstance(node, ast.UnaryOp):
        return -node.operand.value  # whatever the operator, and only before a plain constant
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values)}  # noqa: B905 (equal by grammar)
    if isinstance(node, ast.BinOp):
        return arithmetic(node)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return _call(node) if node.keywords else ast.unparse(node)
    if isinstance(node, ast.Subscript):
        return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
    raise ValueError(f"not a value: {type(node).__name__}")


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_}

# names that the official decoder's eval would find; any other name is a NameError there
_REACHABLE = frozenset(dir(builtins)) | {
    "ast", "builtins", "copy", "json", "operator", "re", "reduce", "Callable", "List", "Optional", "Type", "Union",
    "value", "output", "os", "hashlib",
}  # fmt: skip


def arithmetic(node: ast.AST) -> Any:
    """Value of an expression over constants; ValueError where Python would raise, Refused where it would run code."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List):
        return [arithmetic(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(arithmetic(item) for item in node.elts)
    if isinstance(node, ast.UnaryOp):
        return UNARY[type(node.op)](arithmetic(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = arithmetic(node.left), arithmetic(node.right)
        _bound(node.op, left, right)
        return OPERATORS[type(node.op)](left, right)
    for name in (child.id for child in ast.walk(node) if isinstance(child, ast.Name)):
        if name not in _REACHABLE:
            raise NameError(f"name {name!r} is not defined")
    raise Refused("the answer asks to run code")


def _bound(op: ast.operator, left: Any, right: Any) -> None:
    """Refuse what could grow without limit."""
    if isinstance(op, ast.Mod) and isinstance(left, str | bytes):
        raise Refused("the answer asks to run code")  # formatting, whose width may be anything
    whole = isinstance(left, int) and isinstance(right, int)
    if isinstance(op, ast.Pow) and whole and abs(left) > 1 and left.bit_length() * right > MAX_BITS:
        raise Refused("a number grows too large")
    if isinstance(op, ast.LShift) and whole and right > MAX_BITS:
        raise Refused("a number grows too large")
    if isinstance(op, ast.Mult):
        for sequence, count in ((left, right), (right, left)):
            size = len(sequence) if isinstance(sequence, str | bytes | list | tuple) else 0
            if isinstance(count, int) and size * count > MAX_ITEMS:
                raise Refused("a text or list grows too long")
