"""Whether a reply in which its own protocol sees no call plainly calls in another syntax.

Such a reply is no abstention. Two kinds of evidence count: marks that stand for nothing else, such as
`<|tool_call_begin|>`, with something callable behind them; and, without any mark, a call of a tool that is offered,
standing by itself: a JSON object, a Python call, a labelled pair (`Action: f` / `Action Input: {...}`), XML elements.
Prose that names a tool, code that defines or uses other functions and JSON data do not count, nor does a mark or a call
in `backticks` within a sentence.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import islice

from toolsample_cli.json_types import Json, Row
from toolsample_cli.toolcalls.call import TooDeep
from toolsample_cli.toolcalls.protocols import json_repair
from toolsample_cli.toolcalls.protocols.lenient import ARGUMENTS, NAMES
from toolsample_cli.toolcalls.protocols.pythonic import read_keyword_call

Parameter = Callable[[str, str], Row | None]
"""(tool, parameter) -> its schema, None where there is none."""

MAX_LOOKED = 50_000
"""Characters of a reply that are looked through."""
MAX_TRIES = 200
_REPAIRED = 20_000
_MARK = re.compile(
    r"""<[|｜]tool[▁_ ]?calls?(?:[▁_ ]section)?(?:[▁_ ](?:begin|start))?[|｜]> # DeepSeek, Kimi, Phi, LFM
    | <[|｜](?:python_start|python_tag|action_start|plugin|start_action|recipient)[|｜]> # Llama, InternLM, Cohere
    | \[TOOL_CALLS\] | \[AVAILABLE_TOOL_CALL\]
    | <(?:[｜|]?\w{1,20}[｜|:])?(?:\w{1,20}_)?(?:tool|function)_?(?:calls?|use|code)> # Hermes, Glaive and others
    | <(?:[｜|]?\w{1,20}[｜|:])?(?:invoke|function)(?:\ name)?= # Claude, Qwen3-Coder
    | \bto=functions\. # gpt-oss
    | ✿FUNCTION✿ | \bfunctools\[ # Qwen-Agent, Phi
    | ```(?:tool_code|tool_calls?|function_calls?)\b # Gemma
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CALLABLE = re.compile(r"""[\s:>`]{0,40}(?:(?:call:|function|name=)?[\w.:\-"']{0,100}\s{0,40})?[\[({<｜]""")
_OBJECT = re.compile(r"(?:^|[\s`>:=|\])])(?=[\[{])", re.MULTILINE)
_LINE_ENDS = re.compile(r"[\]})]{0,3}[ \t]{0,16}[.;,]?[ \t]{0,16}(?:$|[`<\[|])", re.MULTILINE)
_PYTHON = re.compile(
    r"^[ \t]{0,16}(?:(?:tool|function|action|api)?[ _]?(?:call|calling|action)?:[ \t]{0,16})?\[?[ \t]{0,16}(?:print\()?"
    r"([^\s()\[\]{}=,'\"`<>|:][^()\[\]{}=,'\"\n`<>|:]{0,199}?)[ \t]{0,16}\(",
    re.MULTILINE | re.IGNORECASE,
)
_LABELLED = re.compile(
    r"^\W{0,5}(?:tool|function|action|api|call)(?:[ _](?:name|call))?\W{0,3}[:=]\W{0,5}([^\n:=]{1,200}?)\W{0,5}\n"
    r"\s{0,40}\W{0,5}(?:arguments?|parameters?|params|args|input|(?:action|tool)[ _]input)\W{0,3}[:=]",
    re.MULTILINE | re.IGNORECASE,
)
_BEFORE_OBJECT = re.compile(
    r"""^\W{0,8}([^\s{}\[\]"'`:][^\n{}\[\]"'`:]{0,99}?)[ \t:]{0,16}\W{0,3}\n?[ \t]{0,16}(?=\{)""", re.MULTILINE
)
_ELEMENT = re.compile(r"<([\w.-]{1,100})>\s{0,40}<([\w.-]{1,100})>")
_RESPONSE = re.compile(r"</?response>")
_PREFIX = re.compile(r"(?:functions?|tools?|default_api|api)\.")
_decode = json.JSONDecoder().raw_decode


def calls_elsewhere(body: str, names: frozenset[str], parameter: Parameter) -> bool:
    """Whether the text behind the thought plainly calls a tool in some syntax; `names` are those of the tools."""
    body = _RESPONSE.sub("\n", body[:MAX_LOOKED])
    if _by_mark(body, names):
        return True
    if not names:
        return False
    return (
        any(_is_call(value, names, parameter, whole) for value, whole in _objects(body))
        or any(_python_call(body, found, names) for found in _some(_PYTHON, body))
        or any(_offered(found[1], names) for found in _some(_LABELLED, body))
        or any(_arguments_follow(body, found, names, parameter) for found in _some(_BEFORE_OBJECT, body))
        or any(
            found[1] in names and f"</{found[1]}>" in body and parameter(found[1], found[2]) is not None
            for found in _some(_ELEMENT, body)
        )
    )


def _some(pattern: re.Pattern[str], body: str) -> Iterator[re.Match[str]]:
    return islice(pattern.finditer(body), MAX_TRIES)


def _offered(name: str, names: frozenset[str]) -> bool:
    name = name.strip()
    return name in names or _PREFIX.sub("", name, count=1) in names


def _by_mark(body: str, names: frozenset[str]) -> bool:
    for found in _some(_MARK, body):
        line_end = body.find("\n", found.end())
        rest = body[found.end() : line_end if line_end >= 0 else len(body)]
        if body[found.start() - 1 : found.start()] == "`" and "`" in rest and not found[0].startswith("`"):
            continue  # quoted in a sentence
        behind = body[found.end() : found.end() + 300]
        if found[0].endswith(("=", ".", "[")) or _CALLABLE.match(behind):
            return True
        if any(name in behind for name in names):
            return True
    return False


def _objects(body: str) -> Iterator[tuple[Json, bool]]:
    """(value, whether it is the whole text) of JSON that stands by itself: no words follow on its line."""
    at, budget = 0, _REPAIRED
    for _ in range(MAX_TRIES):
        found = _OBJECT.search(body, at)
        if not found:
            return
        begin = found.end()
        at = begin + 1
        try:
            value, end = _decode(body, begin)
        except RecursionError:
            return
        except ValueError:
            budget -= len(body) - begin
            if budget < 0:
                return
            try:
                value, end = json_repair.read(body, begin)
            except (json_repair.BeyondRepair, TooDeep):
                continue
        if _LINE_ENDS.match(body, end):
            yield value, begin == 0 and end == len(body.rstrip())
        at = max(at, end)


def _is_call(value: Json, names: frozenset[str], parameter: Parameter, whole: bool, depth: int = 0) -> bool:
    if isinstance(value, list):
        return depth < 2 and any(_is_call(item, names, parameter, whole, depth + 1) for item in value[:100])
    if not isinstance(value, dict):
        return False
    for key in ("tool_calls", "function", "function_call", "tool_call"):
        if isinstance(value.get(key), dict | list) and depth < 3:
            return _is_call(value[key], names, parameter, whole, depth + 1)
    named = any(
        isinstance(value.get(key), str) and _offered(value[key], names) for key in (*NAMES, "action", "function")
    )
    if named and any(key in value for key in ARGUMENTS):
        return True
    if whole and len(value) == 1:
        ((name, arguments),) = value.items()
        return name in names and isinstance(arguments, dict) and _known(name, arguments, parameter)
    return False


def _known(name: str, arguments: Row, parameter: Parameter) -> bool:
    return bool(arguments) and all(parameter(name, key) is not None for key in arguments)


def _arguments_follow(body: str, found: re.Match[str], names: frozenset[str], parameter: Parameter) -> bool:
    """Whether an offered name stands before an object of its own parameters."""
    name = _PREFIX.sub("", found[1].strip(), count=1)
    if name not in names:
        return False
    try:
        value, end = _decode(body, found.end())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _known(name, value, parameter) and bool(_LINE_ENDS.match(body, end))


def _python_call(body: str, found: re.Match[str], names: frozenset[str]) -> bool:
    if not _offered(found[1], names):
        return False
    try:
        _, end = read_keyword_call(body, found.start(1))
        return bool(_LINE_ENDS.match(body, end))
    except (json_repair.BeyondRepair, TooDeep, ValueError):
        return _literal_call(body, found.start(1))


def _literal_call(body: str, start: int) -> bool:
    """Whether the line from `start` on is a call whose arguments are literals, by place."""
    line_end = body.find("\n", start)
    line = body[start : line_end if line_end >= 0 else len(body)].rstrip(" \t]`;")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = ast.parse(line[:1000], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return isinstance(node, ast.Call) and all(isinstance(item, ast.Constant) for item in node.args)
