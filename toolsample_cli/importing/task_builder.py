"""From a draft to a task row: normalised, identified, its gold answer checked against its own reward.

A gold answer that does not earn the maximum would punish a policy for being right: such rows are rejected. Golds
that merely look doubtful (arguments that break their own schema) are kept and flagged.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from toolsample_cli.config import ScoreConfig
from toolsample_cli.importing.base import Draft, Reject, category_of
from toolsample_cli.importing.tools_in_words import with_tools_in_words
from toolsample_cli.score.scorer import Gold, score_text
from toolsample_cli.shards.schema import TASKS
from toolsample_cli.toolcalls.call import Call, as_written, canonical, read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS
from toolsample_cli.toolcalls.schema_check import UnusableSchema, schema_check
from toolsample_cli.toolcalls.tool_schema import Unreadable, read_tools
from toolsample_cli.toolcalls.tools import toolbox

_SCORE = ScoreConfig()


@dataclass
class Builder:
    """Turns drafts into rows of `schema.TASKS`; remembers ids, so that exact repeats get `-2`, `-3` ...

    `split` is that of all rows; where it is empty, the row's own or else `fallback`. `worded`: the
    prompt does not carry the tools yet and its protocol's template will not add them.
    """

    source: str
    split: str
    fallback: str
    protocol: str
    license: str
    worded: bool = False
    seen: set[int] = field(default_factory=set)
    repeats: Counter[int] = field(default_factory=Counter)

    def row(self, draft: Draft) -> dict[str, Any]:
        """The task. Raises Reject when tools or gold cannot be used."""
        if draft.row is not None:
            return self._own(draft.row, draft.split)
        try:
            tools = read_tools(draft.tools)
        except Unreadable as error:
            raise Reject("bad_tools", f"the tools cannot be read: {error}") from None
        messages = [_unpadded_message(message, tools) for message in draft.messages]
        if draft.gold_text is None:
            draft.calls = [_unpadded(call, tools) for call in draft.calls]
        if self.worded:
            messages = with_tools_in_words(messages, tools, self.protocol)
        _refuse_infinite("an argument", [call.arguments for call in draft.calls])
        _refuse_infinite("a field of the row", draft.extra)
        records = [call.record() for call in draft.calls]
        tools_json, gold_json = as_written(tools), as_written(records)
        kind = _kind(draft)
        calls = read_calls(gold_json)
        gold_text = self._gold_text(draft, calls, kind)
        if gold_text is not None:
            check_gold(gold_text, Gold(calls, kind), self.protocol, tools_json)
        issues = doubts(calls, tools)
        return {
            "task_id": self._identify(canonical(messages), canonical(tools), canonical(records)),
            "source": self.source,
            "split": self.split or draft.split or self.fallback,
            "category": draft.category or category_of(kind, len(calls), len(tools)),
            "protocol": self.protocol,
            "messages_json": as_written(messages),
            "tools_json": tools_json,
            "gold_json": gold_json,
            "gold_kind": kind,
            "gold_text": gold_text,
            "gold_issues_json": canonical(issues) if issues else "[]",
            "demos_json": "[]",
            "demo_task_ids": [],
            "parent_task_id": None,
            "license": self.license or draft.license,
            "extra_json": canonical(draft.extra),
        }

    def _own(self, row: dict[str, Any], split: str) -> dict[str, Any]:
        """A row of tasks as it is, checked like any other; its id follows from its content again."""
        messages, tools = json.loads(row["messages_json"]), read_tools(row["tools_json"])
        calls = read_calls(row["gold_json"])
        gold_text, protocol = row.get("gold_text"), row["protocol"]
        if protocol not in PROTOCOLS:
            raise Reject("misfit", f"unknown protocol {protocol!r}")
        if isinstance(gold_text, str):
            check_gold(gold_text, Gold(calls, row["gold_kind"]), protocol, row["tools_json"])
        records = [call.record() for call in calls]
        known = {column.name: row.get(column.name) for column in TASKS.columns}
        return {
            **known,
            "task_id": self._identify(canonical(messages), canonical(tools), canonical(records)),
            "split": self.split or split or self.fallback,
            "license": self.license or known["license"] or "",
            "gold_issues_json": known["gold_issues_json"] or "[]",
            "demos_json": "[]",
            "demo_task_ids": [],
            "parent_task_id": None,
            "extra_json": known["extra_json"] or "{}",
        }

    def _gold_text(self, draft: Draft, calls: tuple[Call, ...], kind: str) -> str | None:
        if draft.gold_text is not None:
            return draft.gold_text
        if kind == "none":
            return None
        return PROTOCOLS[self.protocol].render(calls, draft.response, draft.thought)

    def _identify(self, *parts: str) -> str:
        state = hashlib.blake2b(digest_size=8)
        for part in parts:
            state.update(part.encode("utf-8"))
            state.update(b"\0")
        number = int.from_bytes(state.digest(), "big")
        if number not in self.seen:
            self.seen.add(number)
            return state.hexdigest()
        self.repeats[number] += 1
        return f"{state.hexdigest()}-{self.repeats[number] + 1}"


def _unpadded(call: Call, tools: list[dict[str, Any]]) -> Call:
    """Without nulls that pad a table: under names its tool does not know, or that may be left out but not be null."""
    schema = next((tool["parameters"] for tool in tools if tool["name"] == call.name), None)
    if schema is None or None not in call.arguments.values():
        return call
    known, required = schema.get("properties", {}), schema.get("required", ())
    meant = {name for name in known if name in required or _takes_null(known[name])}
    return Call(call.name, {k: value for k, value in call.arguments.items() if value is not None or k in meant})


def _takes_null(schema: Any) -> bool:
    """Whether null may be a value of this schema, as far as its own keywords tell."""
    if not isinstance(schema, dict):
        return schema is not False
    kinds = schema.get("type", "null")
    if "null" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        return False
    if "const" in schema:
        return schema["const"] is None
    choices = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    return all(any(map(_takes_null, options)) for options in choices)


def _unpadded_message(message: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**item, "function": _unpadded(Call.of(item["function"]), tools).record()} for item in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _refuse_infinite(what: str, value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        raise Reject("not_json", f"{what} is NaN or infinite, which JSON has no word for") from None


def _kind(draft: Draft) -> str:
    if draft.calls:
        return "both" if draft.response is not None else "calls"
    return "response" if draft.response is not None else "none"


def check_gold(text: str, gold: Gold, protocol: str, tools_json: str) -> None:
    """Raise Reject unless this text earns the largest reward its own gold allows."""
    tools = toolbox(tools_json) if PROTOCOLS[protocol].typed else ()  # only typed protocols read by the schemas
    scored = score_text(text, gold, protocol, _SCORE, tools)
    if scored.reward == scored.reward_max:
        return
    earned = f"earns {scored.reward:g} of {scored.reward_max:g}"
    if gold.calls and text.count("<tool_call>") > 1 and protocol == "rlla":
        raise Reject("tag_in_thought", f"the gold answer {earned}: its thought mentions <tool_call>")
    if sorted(map(repr, scored.calls)) == sorted(map(repr, gold.calls)):
        raise Reject("gold_format", f"the gold answer {earned}: not in the form its protocol demands")
    if scored.parse_status not in ("ok", "no_call"):
        raise Reject("gold_unreadable", f"the gold answer {earned}: {scored.parse_status}")
    raise Reject("gold_not_maximal", f"the gold answer {earned}")


def doubts(calls: tuple[Call, ...], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ways in which gold calls break their own tools: [{issue, call, at, detail}], issue being one word."""
    schemas = {tool["name"]: tool["parameters"] for tool in tools}
    found = []
    for number, call in enumerate(calls):
        if call.name not in schemas:
            found.append({"issue": "unknown_tool", "call": number, "at": "", "detail": f"{call.name} is not offered"})
            continue
        schema = schemas[call.name]
        found += [{**fault, "call": number} for fault in _breaches(canonical(schema), call.arguments)]
        if schema.get("additionalProperties") is not False and not _open_ended(schema):
            found += [
                {"issue": "unknown_argument", "call": number, "at": name, "detail": f"{name} is not listed"}
                for name in call.arguments
                if name not in schema.get("properties", {})
            ]
    return found


def _breaches(schema: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        for error in schema_check(schema).faults(arguments):
            at = ".".join(map(str, error.absolute_path))
            yield {"issue": _issue(error), "at": at, "detail": error.message[:200]}
    except UnusableSchema as fault:  # its references lead nowhere, or it names unknown types
        yield {"issue": "unusable_schema", "at": "", "detail": str(fault)}


def _open_ended(schema: dict[str, Any]) -> bool:
    return any(
        key in schema for key in ("$ref", "anyOf", "oneOf", "allOf", "patternProperties", "additionalProperties")
    )


def _issue(error: Any) -> str:
    if error.validator == "required":
        return "missing_argument"
    if error.validator == "additionalProperties":
        return "unknown_argument"
    if error.validator in ("enum", "const"):
        return "not_in_enum"
    if error.validator != "type":
        return f"breaks_{error.validator}"
    wanted = {error.validator_value} if isinstance(error.validator_value, str) else set(error.validator_value)
    if error.instance is None:
        return "null_value"
    if isinstance(error.instance, str) and wanted & {"integer", "number"}:
        return "number_as_text"
    if isinstance(error.instance, str) and wanted & {"array", "object"}:
        return "container_as_text"
    return "wrong_type"
