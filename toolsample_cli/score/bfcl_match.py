"""The verdict of BFCL's AST checker (v4), written anew from its behaviour: any of several allowed values per argument.

Agrees with bfcl-eval 2026.3.23 on Python categories, oddities included: they are named where they arise. It never
raises; where the official checker would on unusual schemas, the answer is simply wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolsample_cli.score import bfcl_source
from toolsample_cli.toolcalls.call import Call

Options = Mapping[str, Sequence[Any]]
"""Parameter -> accepted values; "" among them means that it may be left out."""

_TYPES: dict[str, type] = {
    "string": str, "integer": int, "float": float, "number": float, "boolean": bool, "array": list, "tuple": list,
    "dict": dict, "object": dict, "any": str,
}  # fmt: skip
_DROPPED = str.maketrans("", "", " ,./-_*^")


def accepts(
    tools: Sequence[Mapping[str, Any]],
    calls: Sequence[Call],
    answer: Sequence[Mapping[str, Options]],
    kind: str,
    language: str = "python",
) -> bool:
    """Whether the calls are right. `answer`: one {tool: options} a gold call; `kind`: simple, multiple or parallel.

    `tools` are {name, parameters} with BFCL's or JSON Schema's type names. Order is free only for `parallel`. In `java`
    and `javascript` every argument is source text.
    """
    if len(calls) != len(answer) or not answer:
        return False
    schemas = {tool["name"]: tool.get("parameters") or {} for tool in reversed(tools)}  # the first of a name counts
    if kind == "parallel":
        left = list(calls)
        for wanted in answer:
            name, options = next(iter(wanted.items()))
            at = next(
                (i for i, call in enumerate(left) if _right(name, schemas.get(name), call, options, language)), None
            )
            if at is None:
                return False
            del left[at]
        return True
    name, options = next(iter(answer[0].items()))
    if kind == "simple":  # the single offered tool counts, whatever the answer calls it
        name = tools[0]["name"] if tools else name
    return _right(name, schemas.get(name), calls[0], options, language)


def options_of(call: Call) -> dict[str, list[Any]]:
    """Options that accept just this call: for tasks without several allowed values."""
    return {key: [_nested(value)] for key, value in call.arguments.items()}


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: [item] for key, item in value.items()}
    if isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
        return [{key: [inner] for key, inner in item.items()} for item in value]
    return list(value) if isinstance(value, tuple) else value


def _right(name: str, schema: Mapping[str, Any] | None, call: Call, options: Options, language: str) -> bool:
    if schema is None or call.name != name:
        return False
    properties = schema.get("properties") or {}
    given = call.arguments
    if any(key not in given for key in schema.get("required") or ()):
        return False
    for key, value in given.items():
        if key not in properties or key not in options:
            return False
        check = _value_right if language == "python" else _source_right
        if not check(properties[key], value, options[key], language):
            return False
    return all(key in given or "" in accepted for key, accepted in options.items())


def _source_right(schema: Mapping[str, Any], value: Any, accepted: Sequence[Any], language: str) -> bool:
    if not isinstance(value, str):
        return False
    types = bfcl_source.JAVA if language == "java" else bfcl_source.JAVASCRIPT
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    expected = types.get(kind, str) if isinstance(kind, str) else _inferred(accepted)[0]
    return _as_expected(bfcl_source.value_of(value, language, expected), accepted, expected, None)


def _value_right(schema: Mapping[str, Any], value: Any, accepted: Sequence[Any], language: str) -> bool:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    expected, item = _expected(schema, kind) if isinstance(kind, str) else _inferred(accepted)
    if isinstance(value, tuple) and kind == "tuple":
        value = list(value)
    if expected is float and type(value) is int:
        value = _as_float(value)
    return _as_expected(value, accepted, expected, item)


def _as_expected(value: Any, accepted: Sequence[Any], expected: type, item: type | None) -> bool:
    right_type, is_variable = _type_right(value, accepted, expected, item)
    if not right_type:
        return False
    if not is_variable:
        if expected is dict:
            return _dict_right(value, accepted)
        if expected is list and item is dict:
            return _dicts_right(value, accepted)
        if expected is str:
            return _plain(value) in [_plain(option) for option in accepted if isinstance(option, str)]
        if expected is list:
            return _list_right(value, accepted)
    return value in accepted


def _expected(schema: Mapping[str, Any], kind: str) -> tuple[type, type | None]:
    """(type, type of the items of a list) that the schema demands."""
    expected = _TYPES.get(kind, str)
    items = schema.get("items") if expected is list else None
    inner = items.get("type") if isinstance(items, Mapping) else None
    return expected, _TYPES.get(inner, str) if isinstance(inner, str) else None


def _inferred(accepted: Sequence[Any]) -> tuple[type, type | None]:
    """The same from the accepted values, where the schema says nothing (the official checker needs a type)."""
    first = next((option for option in accepted if option != ""), "")
    of_dicts = isinstance(first, list) and bool(first) and all(isinstance(item, dict) for item in first)
    return type(first), dict if of_dicts else None


def _as_float(value: int) -> float | int:
    try:
        return float(value)
    except OverflowError:
        return value


def _type_right(value: Any, accepted: Sequence[Any], expected: type, item: type | None) -> tuple[bool, bool]:
    """(the type is right, the value stands for a variable: its type is the answer's and not the schema's)."""
    answer_type = next((type(option) for option in accepted if option != ""), None)
    is_variable = answer_type is not None and answer_type is not expected
    if type(value) is expected:
        if item is None:
            return True, is_variable
        items = value if isinstance(value, list) else []
        fits = (not isinstance(option, list) or all(_item_right(i, option, item) for i in items) for option in accepted)
        return any(fits), is_variable  # an option that is no list lets any content pass
    return answer_type is not None and type(value) is answer_type, True


def _item_right(value: Any, option: Sequence[Any], item: type) -> bool:
    """One level deep only: of the item's type, or of the type of the answer's first item."""
    if type(value) is item:
        return True
    answer_type = next((type(inner) for inner in option if inner != ""), None)
    return answer_type is not None and type(value) is answer_type


def _plain(value: Any) -> Any:
    """Texts without spaces and ,./-_*^, in lower case, with one kind of quote."""
    return value.translate(_DROPPED).lower().replace("'", '"') if isinstance(value, str) else value


def _list_right(value: Sequence[Any], accepted: Sequence[Any]) -> bool:
    plain = [_plain(item) for item in value]
    return any(plain == [_plain(item) for item in option] for option in accepted if isinstance(option, list | str))


def _dict_right(value: Mapping[str, Any], accepted: Sequence[Any]) -> bool:
    return any(_one_dict_right(value, option) for option in accepted if isinstance(option, Mapping))


def _one_dict_right(value: Mapping[str, Any], option: Mapping[str, Sequence[Any]]) -> bool:
    if not isinstance(value, Mapping):
        return False
    for key, item in value.items():
        if key not in option or _plain(item) not in [_plain(inner) for inner in option[key]]:
            return False
    return all(key in value or "" in inner for key, inner in option.items())


def _dicts_right(value: Sequence[Any], accepted: Sequence[Any]) -> bool:
    for option in accepted:
        if len(value) == len(option) and all(_dict_right(item, [wanted]) for item, wanted in zip(value, option)):  # noqa: B905
            return True
    return False
