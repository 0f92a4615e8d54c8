"""Ground truth of BFCL written as answers a model could give: one rendering after another, until one is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Calls = list[tuple[str, dict[str, Any]]]


def renderings(functions: list[dict], truth: list[dict], language: str) -> Iterator[Calls]:
    """Calls by first accepted values; optional arguments left out, or given empty; other Java spellings."""
    for optional in ("given", "left out", "empty"):
        for quoted in (True, False) if language == "java" else (True,):
            yield [_call(functions, call, language, optional, quoted) for call in truth]


def _call(functions: list[dict], call: dict, language: str, optional: str, quoted: bool) -> tuple[str, dict]:
    ((name, parameters),) = call.items()
    schema = next((f for f in functions if f["name"] == name), functions[0])["parameters"]["properties"]
    arguments = {}
    for parameter, options in parameters.items():
        given = [option for option in options if option != ""]
        if not given or (optional != "given" and "" in options):
            if "" not in options or optional == "empty":
                arguments[parameter] = ""
            continue
        value = _plain(given[0])
        if language != "python":
            value = _written(value, schema.get(parameter, {}), language, quoted)
        arguments[parameter] = value
    return name, arguments


def _plain(value: Any) -> Any:
    """In a dictionary, or one in a list, every key holds a list of options again; deeper ones are meant as they are."""
    if isinstance(value, dict):
        lists = {key: options if isinstance(options, list) else [options] for key, options in value.items()}
        chosen = {key: [option for option in options if option != ""] for key, options in lists.items()}
        return {key: options[0] for key, options in chosen.items() if options}
    if isinstance(value, list):
        return [_plain(item) if isinstance(item, dict) else item for item in value]
    return value


def _written(value: Any, schema: dict, language: str, quoted: bool) -> str:
    """A value as Java or JavaScript source, which is what those categories want in every argument."""
    kind = schema.get("type", "any")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return _sequence(value, kind, schema.get("items", {}).get("type"), language, quoted)
    if isinstance(value, dict):
        if language == "javascript":
            return json.dumps(value)
        puts = " ".join(f'put("{k}", "{v}");' if isinstance(v, str) else f'put("{k}", {v});' for k, v in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    suffix = {"long": "L", "float": "f"}.get(kind, "") if language == "java" else {"Bigint": "n"}.get(kind, "")
    return f"{value}{suffix}"


def _sequence(value: list, kind: str, inner: str | None, language: str, quoted: bool) -> str:
    if language == "javascript":
        return json.dumps(value)
    bare = [_written(item, {"type": inner or "any"}, "java", quoted) for item in value]
    items = [f'"{text}"' if isinstance(item, str) and quoted else text for item, text in zip(value, bare, strict=True)]
    if kind == "ArrayList":
        return f"new ArrayList<{inner or ''}>(Arrays.asList({', '.join(items)}))" if value else "new ArrayList<>()"
    return f"new {inner or 'Object'}[]{{{', '.join(items)}}}"
