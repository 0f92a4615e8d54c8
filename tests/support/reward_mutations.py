"""Ways in which a right BFCL answer becomes another one: wrong, or right in an unusual way."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Calls = list[tuple[str, dict[str, Any]]]
Maker = Callable[[Calls, dict, random.Random], Calls | None]


def one_value(change: Callable[[Any, random.Random], Any], wanted: Callable[[Any], bool]) -> Maker:
    """A mutation of one argument among those that `wanted` accepts."""

    def mutate(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
        places = [(i, key) for i, (_, arguments) in enumerate(calls) for key, v in arguments.items() if wanted(v)]
        if not places:
            return None
        at, key = pick.choice(places)
        new = copy.deepcopy(calls)
        new[at][1][key] = change(new[at][1][key], pick)
        return new

    return mutate


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def is_dict(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def anything(_: Any) -> bool:
    return True


def without(value: dict, pick: random.Random) -> dict:
    gone = pick.choice(list(value))
    return {key: item for key, item in value.items() if key != gone}


def item_changed(value: list, pick: random.Random) -> list:
    at = pick.randrange(len(value))
    return [*value[:at], _other(value[at]), *value[at + 1 :]]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if is_number(value):
        return value + 1
    return f"{value}?" if isinstance(value, str) else None


def dict_changed(value: dict, pick: random.Random) -> dict:
    key = pick.choice(list(value))
    return {**value, key: _other(value[key])}


def noisy(text: str, pick: random.Random) -> str:
    at = pick.randrange(len(text) + 1)
    return text[:at] + pick.choice(" ,./-_*^") + text[at:]


VALUES: dict[str, Maker] = {
    "number as text": one_value(lambda v, _: str(v), is_number),
    "int as float": one_value(lambda v, _: float(v), lambda v: is_number(v) and isinstance(v, int) and abs(v) < 2**60),
    "float as int": one_value(lambda v, _: int(v), lambda v: isinstance(v, float) and abs(v) < 2**60),
    "number plus one": one_value(lambda v, _: v + 1, is_number),
    "number negated": one_value(lambda v, _: -v, is_number),
    "none": one_value(lambda *_: None, anything),
    "bool as text": one_value(lambda v, _: str(v).lower(), lambda v: isinstance(v, bool)),
    "bool as number": one_value(lambda v, _: int(v), lambda v: isinstance(v, bool)),
    "bool flipped": one_value(lambda v, _: not v, lambda v: isinstance(v, bool)),
    "number as bool": one_value(lambda v, _: bool(v), is_number),
    "upper case": one_value(lambda v, _: v.upper(), is_text),
    "noise": one_value(noisy, is_text),
    "exclamation": one_value(lambda v, _: v + "!", is_text),
    "other text": one_value(lambda *_: "something else", is_text),
    "empty text": one_value(lambda *_: "", anything),
    "quotes": one_value(lambda v, _: v.replace("'", '"') + "'", is_text),
    "text as number": one_value(lambda v, _: int(v), lambda v: is_text(v) and v.isdigit() and len(v) < 15),
    "text in a list": one_value(lambda v, _: [v], is_text),
    "list reversed": one_value(lambda v, _: v[::-1], is_list),
    "list cut": one_value(lambda v, _: v[:-1], is_list),
    "list longer": one_value(lambda v, _: [*v, v[0]], is_list),
    "list as tuple": one_value(lambda v, _: tuple(v), lambda v: isinstance(v, list)),
    "list as text": one_value(lambda v, _: json.dumps(v), lambda v: isinstance(v, list)),
    "list empty": one_value(lambda *_: [], lambda v: isinstance(v, list)),
    "list item changed": one_value(item_changed, is_list),
    "list items as text": one_value(lambda v, _: [str(item) for item in v], is_list),
    "list items in upper case": one_value(lambda v, _: [str(i).upper() if is_text(i) else i for i in v], is_list),
    "list items as float": one_value(lambda v, _: [float(i) if is_number(i) else i for i in v], is_list),
    "list as its item": one_value(lambda v, _: v[0], is_list),
    "dict extra key": one_value(lambda v, _: {**v, "extra_key": 1}, is_dict),
    "dict dropped key": one_value(without, is_dict),
    "dict wrong value": one_value(dict_changed, is_dict),
    "dict as text": one_value(lambda v, _: json.dumps(v), is_dict),
    "dict in a list": one_value(lambda v, _: [v], is_dict),
    "dict empty": one_value(lambda *_: {}, lambda v: isinstance(v, dict)),
    "value becomes a dict": one_value(lambda v, _: {"value": v}, anything),
}


def wrong_name(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    at = pick.randrange(len(calls))
    return [(name + "_x" if i == at else name, arguments) for i, (name, arguments) in enumerate(calls)]


def other_tool(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    names = [f["name"] for f in entry["function"] if f["name"] != calls[0][0]]
    return [(pick.choice(names), calls[0][1]), *calls[1:]] if names else None


def underscores(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    new = [(name.replace(".", "_"), arguments) for name, arguments in calls]
    return new if new != calls else None


def dropped_argument(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    places = [(i, key) for i, (_, arguments) in enumerate(calls) for key in arguments]
    if not places:
        return None
    at, gone = pick.choice(places)
    return [
        (name, {k: v for k, v in arguments.items() if (i, k) != (at, gone)})
        for i, (name, arguments) in enumerate(calls)
    ]


def invented_argument(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    return [(calls[0][0], {**calls[0][1], "invented_argument": "x"}), *calls[1:]]


def unanswered_argument(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    schema = next((f for f in entry["function"] if f["name"] == calls[0][0]), None)
    left = [key for key in (schema or {"parameters": {}})["parameters"].get("properties", {}) if key not in calls[0][1]]
    return [(calls[0][0], {**calls[0][1], pick.choice(left): "x"}), *calls[1:]] if left else None


def renamed_argument(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    if not calls[0][1]:
        return None
    first = next(iter(calls[0][1]))
    return [(calls[0][0], {k.upper() if k == first else k: v for k, v in calls[0][1].items()}), *calls[1:]]


def swapped_values(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    keys = list(calls[0][1])
    if len(keys) < 2:
        return None
    a, b = pick.sample(keys, 2)
    return [(calls[0][0], {**calls[0][1], a: calls[0][1][b], b: calls[0][1][a]}), *calls[1:]]


def other_option(calls: Calls, entry: dict, pick: random.Random) -> Calls | None:
    """Another accepted value of the same argument."""
    new = copy.deepcopy(calls)
    for (_, arguments), truth in zip(new, entry["ground_truth"], strict=False):
        for key, options in next(iter(truth.values())).items():
            plain = [option for option in options if option != "" and not isinstance(option, dict)]
            if key in arguments and len(plain) > 1 and not any(isinstance(i, dict) for i in _flat(plain)):
                arguments[key] = pick.choice(plain[1:])
    return new if new != calls else None


def _flat(options: list) -> Iterator[Any]:
    for option in options:
        yield from option if isinstance(option, list) else [option]


STRUCTURE: dict[str, Maker] = {
    "as it is": lambda calls, *_: calls,
    "wrong name": wrong_name,
    "another offered tool": other_tool,
    "dots to underscores": underscores,
    "dropped argument": dropped_argument,
    "invented argument": invented_argument,
    "unanswered argument": unanswered_argument,
    "renamed argument": renamed_argument,
    "swapped values": swapped_values,
    "another accepted value": other_option,
    "duplicate call": lambda calls, *_: [*calls, calls[0]],
    "dropped call": lambda calls, *_: calls[1:],
    "no call": lambda *_: [],
    "order reversed": lambda calls, *_: calls[::-1] if len(calls) > 1 else None,
}
KINDS: dict[str, Maker] = {**STRUCTURE, **VALUES}


def mutants(calls: Calls, entry: dict, pick: random.Random) -> Iterator[tuple[str, Calls]]:
    """(kind, calls) of every kind that applies."""
    for kind, maker in KINDS.items():
        made = maker(calls, entry, pick)
        if made is not None:
            yield kind, made
