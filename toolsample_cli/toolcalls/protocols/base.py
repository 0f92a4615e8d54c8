"""What a protocol is: one way of writing tool calls as text, with its reader and its writer.

A reading is twofold. The strict one is what the trainer's own reader takes (`strict_calls`, None when it fails);
the lenient one (`calls`) is what is clear despite faults of form. `status` names the difference, `slip` why the strict
one failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolsample_cli.json_types import Json
from toolsample_cli.toolcalls.call import MAX_CHARS, Call, TooDeep, TooLong
from toolsample_cli.toolcalls.protocols.lenient import Fault, Reading

GOLD_KINDS = ("calls", "response", "both", "none")


@dataclass(slots=True)
class Parsed:
    """One completion as it was read.

    `broken` lists positions in `strict_calls` that have a name but no object of arguments, `odd` those with further
    fields. `format_ok` says whether the whole completion has the form demanded for an answer of the gold's kind.
    """

    status: str
    calls: tuple[Call, ...] = ()
    format_ok: bool = False
    response: str | None = None
    thought: str | None = None
    strict_calls: tuple[Call, ...] | None = None
    broken: tuple[int, ...] = ()
    slip: str = ""
    odd: tuple[int, ...] = ()


@dataclass(frozen=True)
class Protocol:
    """`parse(text, gold_kind, **_) -> Parsed` never raises on any text; `render(calls, response, thought) -> str`.

    `tools_in_template`: the tools reach the model through the chat template; otherwise the messages carry them.
    `typed`: `parse` takes `types`, a function (tool, parameter) -> schema, because the text alone has no types.
    """

    name: str
    meaning: str
    tools_in_template: bool
    parse: Callable[..., Parsed]
    render: Callable[..., str]
    typed: bool = False


@dataclass
class Strict:
    """What a protocol's own reader takes from a body; `form`: nothing but well-written calls from `start` on."""

    calls: Sequence[Call] | None
    form: bool = False
    slip: str = ""


def strictly(read: Callable[..., Strict], *arguments: object) -> Strict:
    """What `read` finds, or the name of the fault that it raises."""
    try:
        return read(*arguments)
    except (TooDeep, RecursionError):
        return Strict(None, slip="too_deep")
    except TooLong:
        return Strict(None, slip="too_long")
    except Fault as fault:
        return Strict(None, slip=str(fault))
    except ValueError:
        return Strict(None, slip="bad_json")


def one_call(item: Json, *keys: str) -> Call:
    """The call that an object {name, arguments} stands for, its arguments under the first key present. Raises Fault."""
    if not isinstance(item, dict):
        raise Fault("not_object")
    name = item.get("name")
    if not isinstance(name, str):
        raise Fault("no_name")
    arguments = next((item[key] for key in keys if key in item), None)
    if not isinstance(arguments, dict):
        raise Fault("no_arguments")
    return Call(name, arguments)


def call_list(value: Json, form: bool = True) -> Strict:
    """The calls of a JSON list of {name, arguments}; `form` says whether everything around it is as demanded."""
    if not isinstance(value, list):
        raise Fault("not_list")
    return some([one_call(item, "arguments") for item in value], form)


def some(calls: Sequence[Call], form: bool = True) -> Strict:
    """A reading that must hold at least one call."""
    return Strict(calls, form and bool(calls), "" if calls else "empty")


def bounded(text: str) -> bool:
    """Whether the completion is short enough to be read at all."""
    return len(text) <= MAX_CHARS


def thought_apart(text: str) -> tuple[str | None, str, bool]:
    """(thought, rest, closed) of a stripped reply that may begin with <think> blocks.

    An unclosed block takes everything. A closing tag without an opening one ends a thought that the prompt opened,
    where it stands apart from words; a thought that mentions <tool_call> only where an answer follows it.
    """
    if not text.startswith("<think>"):
        end = text.find("</think>")
        alone = end >= 0 and not (text[end - 1 : end] + text[end + 8 : end + 9]).strip()
        if not alone or text[:1] in ("{", "[", "`", "<") or "<think>" in text[:end]:
            return None, text, True
        rest = text[end + 8 :].strip()
        if not rest and "<tool_call>" in text[:end]:
            return None, text, True
        return text[:end].strip(), rest, True
    end = text.find("</think>")
    if end < 0:
        return text[7:].strip(), "", False
    return text[7:end].strip(), text[end + 8 :].strip(), True


def behind_thoughts(text: str) -> tuple[str | None, str, bool]:
    """Like `thought_apart`, but skips every further thought that stands before the first call."""
    thought, body, closed = thought_apart(text)
    tag, at = body.find("<tool_call>"), 0
    while True:
        more = body.find("<think>", at)
        end = body.find("</think>", more) if more >= 0 else -1
        if end < 0 or 0 <= tag < more:
            return thought, body[at:].strip() if at else body, closed
        at = end + 8
        if 0 <= tag < at:
            tag = body.find("<tool_call>", at)


def no_call(body: str, gold_kind: str, thought: str | None, closed: bool = True, clean: bool = True) -> Parsed:
    """A reply without any call: in form where the gold has none and something is said (`clean`: without stray tags)."""
    in_form = bool(body) and closed and clean and gold_kind in ("response", "none")
    return Parsed("no_call" if closed else "truncated", (), in_form, body or None, thought, ())


def with_calls(strict: Strict, meant: Reading | None, content: str, gold_kind: str, thought: str | None) -> Parsed:
    """A reply that calls: both readings put together. `meant` may be None when the strict one succeeded."""
    form = strict.form and ((gold_kind == "calls" and not content) or (gold_kind == "both" and bool(content)))
    if strict.calls is not None and not strict.slip:
        calls = tuple(strict.calls)
        return Parsed("ok", calls, form, content or None, thought, calls)
    calls = tuple(meant.calls) if meant else ()
    status = strict.slip
    if calls and meant:
        status = meant.slip if meant.slip not in ("", "repaired") else "repaired"
    taken = None if strict.calls is None else tuple(strict.calls)
    return Parsed(status, calls, form, content or None, thought, taken, (), strict.slip)
