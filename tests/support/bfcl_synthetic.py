"""Answers to every BFCL question that a model might give: right, nearly right, wrong, malformed, empty, hostile.

`answers(...)` draws one kind a question from a seeded generator, so that the official evaluator and ours can be given
the same and compared entry by entry. Nothing here hangs the official one (it would evaluate `9**9**9`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

from support.bfcl_gold import Calls, renderings


def python_text(calls: Calls) -> str:
    """Calls as the official prompting mode wants them."""
    return "[" + ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls) + "]"


def java_text(calls: Calls) -> str:
    """Calls whose arguments are source text already."""
    return "[" + ", ".join(f"{n}({', '.join(f'{k}={_source(v)}' for k, v in a.items())})" for n, a in calls) + "]"


def _source(value: Any) -> str:
    text = str(value)
    plain = text.replace("_", "").replace(".", "").isalnum() or text.startswith(("new ", "[", "{"))
    return text if plain else json.dumps(text)


def hermes_text(calls: Calls) -> str:
    """Calls as Qwen's chat template writes them."""
    return "\n".join(f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)


# ---- what may go wrong with calls ----


def _first(calls: Calls, change: Callable[[dict[str, Any], random.Random], None], rng: random.Random) -> Calls:
    copied = [(name, dict(arguments)) for name, arguments in calls]
    if copied and copied[0][1]:
        change(copied[0][1], rng)
    return copied


def _at(arguments: dict[str, Any], rng: random.Random, new: Callable[[Any], Any]) -> None:
    key = rng.choice(sorted(arguments, key=str))
    arguments[key] = new(arguments[key])


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "!"
    if isinstance(value, list):
        return [*value, value[0]] if value else ["x"]
    return {**value, "extra": 1} if isinstance(value, dict) else "x"


def _restyled(value: Any) -> Any:
    if isinstance(value, str):
        return f" {value.upper()}, "
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _drop(arguments: dict[str, Any], rng: random.Random) -> None:
    del arguments[rng.choice(sorted(arguments, key=str))]


MUTATIONS: dict[str, Callable[[Calls, random.Random], Calls]] = {
    "gold": lambda calls, rng: calls,
    "other value": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, _other), rng),
    "restyled": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, _restyled), rng),
    "as text": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, lambda v: str(v)), rng),
    "as json": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, lambda v: json.dumps(v, default=str)), rng),
    "null": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, lambda v: None), rng),
    "in a list": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, lambda v: [v]), rng),
    "nested": lambda calls, rng: _first(calls, lambda a, r: _at(a, r, lambda v: {"value": v}), rng),
    "dropped argument": lambda calls, rng: _first(calls, _drop, rng),
    "invented argument": lambda calls, rng: _first(calls, lambda a, r: a.update(invented=1), rng),
    "odd argument": lambda calls, rng: _first(calls, lambda a, r: a.update({"": "x", "é": "ü\n\t\"'"}), rng),
    "other name": lambda calls, rng: [(name + "_x", a) for name, a in calls],
    "no dots": lambda calls, rng: [(name.replace(".", "_"), a) for name, a in calls],
    "twice": lambda calls, rng: [*calls, *calls[-1:]],
    "one less": lambda calls, rng: calls[:-1],
    "backwards": lambda calls, rng: calls[::-1],
    "none": lambda calls, rng: [],
}

TEXTS = {
    "empty": "",
    "prose": "I am afraid that none of these functions helps; could you say more?",
    "brackets": "[]",
    "empty object": "[{}]",
    "number": "42",
    "json": '[{"name": "f", "arguments": {"a": 1}}]',
    "cut off": "[f(a=1, b='unfini",
    "unreadable block": "<tool_call>\n{'name': broken\n</tool_call>",
    "lone tag": "<tool_call>",
    "statement": "import os; os.getcwd()",
    "call of a call": "[f(a=g(b=h(c=1)), d=k())]",
    "positional": "[f(1, 2, a=3)]",
    "arithmetic": "[f(a=2*3+1, b='x'*3, c=[1]+[2], d=7/2, e=-2**2)]",
    "unknown name": "[f(a=x+1)]",
    "stars": "[f(*[1], **{'a': 2})]",
    "comparison": "[f(a=1 < 2, b=not True, c=None or 1)]",
    "lambda": "[f(a=lambda: 1)]",
    "subscript": "[f(a=b[0], c=d[1:2])]",
    "format": "[f(a=f'{1}')]",
    "deep": "[f(a=" + "[" * 60 + "]" * 60 + ")]",
    "very deep": "[f(a=" + "[" * 300 + "]" * 300 + ")]",
    "long": "[f(a='" + "x" * 100_000 + "')]",
    "system": "__import__('os').system('true')",
    "system in a list": "[__import__('os').system('true')]",
    "fenced": "```python\n[f(a=1)]\n```",
    "two lists": "[f(a=1)], [g(b=2)]",
    "lists in a list": "[[f(a=1)]]",
    "quoted": "'[f(a=1)]'",
    "null byte": "[f(a='\x00')]",
}
CODE_TEXTS = {
    "code in arithmetic": "[f(a=__import__('os').getcwd()+'x')]",
    "builtin in arithmetic": "[f(a=len('abc')+1)]",
}
HOSTILE_CALLS: list[Calls] = [
    [("__import__('os').getcwd", {})],
    [("open", {"file": "owned", "mode": "w"})],
    [("cd.__func__", {"folder": "x"})],
    [("exit", {})],
]


def single(functions: list[dict], truth: list | None, language: str, form: str, rng: random.Random) -> tuple[str, str]:
    """(kind, text) of one single-turn answer; `form` is text (official prompting) or dots (Hermes)."""
    written = hermes_text if form == "dots" else (python_text if language == "python" else java_text)
    if truth is not None and rng.random() < 0.75:
        kind = rng.choice(["gold"] * 12 + list(MUTATIONS))
        calls = rng.choice(list(renderings(functions, truth, language))[: 1 if rng.random() < 0.8 else None])
        return kind, written(MUTATIONS[kind](calls, rng))
    if truth is None and rng.random() < 0.3:
        return "some call", written([(functions[0]["name"] if functions else "f", {"a": 1})])
    texts = TEXTS if form == "dots" else TEXTS | CODE_TEXTS
    kind = rng.choice(list(texts))
    return kind, texts[kind]


def varied(functions: list[dict], truth: list, form: str, tagged: bool, rng: random.Random) -> tuple[str, str]:
    """(kind, text) of one answer to a question of format_sensitivity, mostly in the form that was asked for."""
    kind = rng.choice(["gold"] * 6 + list(MUTATIONS) + list(TEXTS))
    if kind in TEXTS and kind != "gold":
        return kind, TEXTS[kind]
    calls = MUTATIONS[kind](next(renderings(functions, truth, "python")), rng)
    form = form if rng.random() < 0.9 else rng.choice(["python", "json", "verbose_xml", "concise_xml"])
    text = {"python": python_text, "json": _json, "verbose_xml": _verbose, "concise_xml": _concise}[form](calls)
    return kind, f"<TOOLCALL>{text}</TOOLCALL>" if tagged != (rng.random() < 0.1) else text


def _json(calls: Calls) -> str:
    return "```json\n" + json.dumps([{"function": n, "parameters": a} for n, a in calls]) + "\n```"


def _typed(value: Any) -> tuple[str, str]:
    names = {bool: "boolean", int: "integer", float: "float", list: "array", dict: "dict"}
    return names.get(type(value), "string"), escape(str(value), {'"': "&quot;"})


def _verbose(calls: Calls) -> str:
    params = ["".join(f'<param name="{k}" value="{_typed(v)[1]}" type="{_typed(v)[0]}"/>' for k, v in a.items()) for _, a in calls]  # fmt: skip  # noqa: E501
    texts = (f'<function name="{n}"><params>{p}</params></function>' for (n, _), p in zip(calls, params, strict=True))
    return f"<functions>{''.join(texts)}</functions>"


def _concise(calls: Calls) -> str:
    params = ["".join(f'<param name="{k}" type="{_typed(v)[0]}">{_typed(v)[1]}</param>' for k, v in a.items()) for _, a in calls]  # fmt: skip  # noqa: E501
    texts = (f'<function name="{n}">{p}</function>' for (n, _), p in zip(calls, params, strict=True))
    return f"<functions>{''.join(texts)}</functions>"


def dialogue(truth: list[list[str]], read: Callable[[str], Calls], form: str, rng: random.Random) -> tuple[str, Any]:
    """(kind, turns) of one dialogue; `read` gives the calls in a line of call strings."""
    kind = rng.choice(["gold"] * 4 + ["steps", "junk", "skipped turn", "short", "texts", "hostile", "mutated"])
    turns: list[list[str]] = []
    for strings in truth:
        calls = read("[" + ", ".join(strings) + "]") if strings else []
        line = _step(calls, strings, form)
        steps = [line, "Done."] if strings else ["What do you mean?"]
        if kind == "steps" and calls:
            steps = [*(_step([call], [string], form) for call, string in zip(calls, strings, strict=True)), "Done."]
        elif kind == "junk":
            steps = [_step([("ls", {})], ["ls()"], form), *steps]
        elif kind == "mutated" and calls:
            changed = MUTATIONS[rng.choice(list(MUTATIONS))](calls, rng)
            steps = [hermes_text(changed) if form == "dots" else python_text(changed)]
        elif kind == "texts":
            steps = [rng.choice(list(TEXTS.values())), *steps]
        elif kind == "hostile":
            bad = rng.choice(HOSTILE_CALLS)
            steps = [hermes_text(bad) if form == "dots" else python_text(bad), *steps]
        turns.append(steps)
    if kind == "skipped turn":
        turns[rng.randrange(len(turns))] = []
    return kind, turns[:-1] if kind == "short" else turns


def _step(calls: Calls, strings: list[str], form: str) -> str:
    return hermes_text(calls) if form == "dots" else "[" + ", ".join(strings) + "]"


def agentic(truth: list[str], form: str, rng: random.Random) -> tuple[str, Any]:
    """(kind, turns) of one memory or web search answer."""
    call = hermes_text([("f", {"a": 1})]) if form == "dots" else "[f(a=1)]"
    table = {
        "gold": [[call, f"{{'answer': {truth[0]}, 'context': 'so it says'}}"]],
        "in passing": [[f"It is ({truth[0].upper()}).", call]],
        "other": [["I do not know"]],
        "only calls": [[call, call]],
        "empty": [["", ""]],
        "two turns": [[call], ["x"]],
        "no turns": [],
    }
    kind = rng.choice([*["gold"] * 3, *table])
    return kind, table[kind]
