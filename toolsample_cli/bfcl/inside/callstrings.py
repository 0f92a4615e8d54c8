"""Runs a call string such as `inst.cd(folder="a")` on the official simulated classes, in place of eval.

Only public methods of the given simulated objects can be called, with literals, bounded arithmetic and the results of
other such calls as arguments. Errors read as Python's own, because their text goes back to the model.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

from pycalls import Refused, arithmetic


def run(text: str, namespace: Mapping[str, Any], home: str) -> Any:
    """Value of the call string; `namespace` maps variable names to objects, `home` is the package of their classes."""
    return _Runner(namespace, home).value(ast.parse(text.lstrip(" \t"), filename="<string>", mode="eval").body)


class _Runner:
    def __init__(self, namespace: Mapping[str, Any], home: str) -> None:
        self._namespace = namespace
        self._home = home

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List):
            return self._items(node.elts)
        if isinstance(node, ast.Tuple):
            return tuple(self._items(node.elts))
        if isinstance(node, ast.Set):
            return set(self._items(node.elts))
        if isinstance(node, ast.Dict):
            return self._mapping(node)
        if isinstance(node, ast.Name):
            return self._simulated(node.id)
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            try:
                return arithmetic(node)
            except Refused as refused:
                raise PermissionError(str(refused)) from None
        raise PermissionError(f"{type(node).__name__} is not allowed in a call")

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items.extend(self.value(node.value))
            else:
                items.append(self.value(node))
        return items

    def _mapping(self, node: ast.Dict) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values):  # noqa: B905 (equal by grammar)
            if key is None:
                result.update(self.value(item))
            else:
                result[self.value(key)] = self.value(item)
        return result

    def _simulated(self, name: str) -> Any:
        found = self._namespace.get(name)
        if found is not None and type(found).__module__.startswith(self._home):
            return found
        if hasattr(builtins, name) or name in self._namespace:
            raise PermissionError(f"Function call {name} is not allowed.")
        raise NameError(f"name {name!r} is not defined")

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name):
            self._simulated(node.func.id)
            raise PermissionError(f"Function call {node.func.id} is not allowed.")
        if not isinstance(node.func, ast.Attribute):
            raise PermissionError(f"{type(node.func).__name__} cannot be called")
        target = node.func.value
        owner = self._simulated(target.id) if isinstance(target, ast.Name) else self.value(target)
        if not type(owner).__module__.startswith(self._home) or node.func.attr.startswith("_"):
            raise PermissionError(f"Function call {node.func.attr} is not allowed.")
        method = getattr(owner, node.func.attr)
        positional = self._items(node.args)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                named.update(self.value(keyword.value))
            else:
                named[keyword.arg] = self.value(keyword.value)
        return method(*positional, **named)
