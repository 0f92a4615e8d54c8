"""Every protocol: what it writes it reads again, and no text whatsoever makes it raise or linger."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.python_calls import carries

from toolsample_cli.config import ScoreConfig
from toolsample_cli.score.scorer import Gold, score_text
from toolsample_cli.toolcalls.call import Call, as_written, calls_json, canonical, read_calls
from toolsample_cli.toolcalls.protocols import PROTOCOLS, protocol_of, rlla

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
TRICKY = st.sampled_from(
    [
        "</tool_call>", "<tool_call>", "</think>", "it's", 'a "b"', "03106", "true", "null", "1e5", "\n", "[]", "{}",
        "", " x ", "</parameter>", "C:\\Users", "é", "日本", "\x00", "[TOOL_CALLS]", "<response>", "`", ";", "a\nb",
    ]
)  # fmt: skip
SCALAR = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    SCALAR | TEXT | TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "a b", "é"]), inner, max_size=2),
    max_leaves=6,
)
NAME = st.sampled_from(["f", "get_weather", "math.hypot", "Find User", "a-b", "naïve", "f2"])
KEY = st.sampled_from(["x", "city", "n_items", "type", "name", "arguments"])
CALLS = st.lists(st.builds(Call, NAME, st.dictionaries(KEY, VALUE, max_size=4)), min_size=1, max_size=3)
THOUGHT = st.none() | st.sampled_from(["think twice", "a < b", "é\nü"])


def texts_only(calls: list[Call]) -> dict[str, dict]:
    """Schemas under which a value that is text stays text and everything else is read as JSON."""
    return {
        key: {"type": "string"} for call in calls for key, value in call.arguments.items() if isinstance(value, str)
    }


def readable_xml(calls: list[Call]) -> bool:
    """Whether one type a key can be told from the schema, and no value holds the protocol's own tags."""
    kinds: dict[str, set[bool]] = {}
    for call in calls:
        for key, value in call.arguments.items():
            kinds.setdefault(key, set()).add(isinstance(value, str))
            if "</parameter>" in canonical(value) or "<tool_call>" in canonical(value):
                return False
    return all(len(kind) == 1 for kind in kinds.values())


@settings(max_examples=120, deadline=None)
@given(calls=CALLS, thought=THOUGHT, response=st.none() | st.just("Here you are."))
@pytest.mark.parametrize("name", PROTOCOLS)
def test_render_then_parse_is_the_identity(name: str, calls: list[Call], thought: str | None, response: str) -> None:
    """Calls, form, thought and response come back, by the strict reading, from what `render` wrote."""
    if name == "pythonic" and not all(map(carries, calls)):
        return
    if name == "qwen_xml" and not readable_xml(calls):
        return
    protocol, schemas = PROTOCOLS[name], texts_only(calls)
    text = protocol.render(calls, response, thought)
    kind = "calls" if response is None else "both"
    parsed = protocol.parse(text, kind, types=lambda _, key: schemas.get(key))
    assert (parsed.status, parsed.slip) == ("ok", "")
    assert list(parsed.strict_calls) == list(parsed.calls) == calls
    assert canonical([c.record() for c in parsed.calls]) == canonical([c.record() for c in calls])  # 1 is not true
    assert parsed.format_ok
    assert parsed.response == response
    if thought is not None:
        assert parsed.thought == thought


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_plain_reply_is_no_call(name: str) -> None:
    """Text where the gold has no call is in form; where a call was due it is not."""
    protocol = PROTOCOLS[name]
    text = protocol.render([], "I cannot help with that.", "nothing fits")
    parsed = protocol.parse(text, "response")
    assert (parsed.status, parsed.calls, parsed.format_ok) == ("no_call", (), True)
    assert parsed.response == "I cannot help with that."
    assert not protocol.parse(text, "calls").format_ok
    assert not protocol.parse("", "response").format_ok


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_marks_of_a_completion_tell_its_protocol(name: str) -> None:
    """`--protocol auto` finds the protocol that wrote a call."""
    calls = [Call("f", {"x": 1}), Call("g.h", {"city": "Ghent"})]
    assert (
        protocol_of(PROTOCOLS[name].render(calls, None, "hm" if name in ("rlla", "tool_n1", "hermes") else None))
        == name
    )
    scored = score_text(PROTOCOLS[name].render(calls, None, None), Gold(tuple(calls), "calls"), "auto", ScoreConfig())
    assert scored.reward == 4.0


BOMB = "(" * 30 + "a+" + ")+" * 30 + "$"
RIGHT = '{"name": "f", "arguments": {"x": 1}, "parameters": {"x": 1}}'
HOSTILE = {
    "nested brackets": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "nested in a block": "<think> t </think>\n<tool_call>\n" + "[" * 100_000 + "\n</tool_call>",
    "nested parentheses": "[f(a=" + "(" * 100_000,
    "balanced nesting": "[" * 50_000 + "]" * 50_000,
    "long line": "a" * 50_000_000,
    "long string argument": '<tool_call>\n{"name": "f", "arguments": {"x": "' + "a" * 5_000_000 + '"}}\n</tool_call>',
    "lone surrogates": "<tool_call>\n" + '{"name": "\\ud800", "arguments": {"x": "\\udfff\ud800"}}' + "\n</tool_call>",
    "raw surrogates": "<think> \ud800 </think>\n[f(x='\udfff')]",
    "NUL": '<tool_call>\n{"name": "f\x00", "arguments": {"x": "\x00"}}\n</tool_call>',
    "import": '[__import__("os").system("touch pwned")]',
    "import as argument": '[f(x=__import__("os").system("touch pwned"))]',
    "power": "[f(x=9**9**9)]",
    "power in JSON": '<tool_call>\n{"name": "f", "arguments": {"x": 9**9**9}}\n</tool_call>',
    "regex bomb": f'<tool_call>\n{{"name": "f", "arguments": {{"x": "{BOMB}"}}}}\n</tool_call>',
    "bomb for a pattern": '<tool_call>\n{"name": "f", "arguments": {"x": "' + "a" * 5000 + '!"}}\n</tool_call>',
    "many tags": "<tool_call>" * 90_000,
    "many tags closed at the end": "<tool_call>" * 80_000 + "</tool_call>",
    "many thoughts": "<think></think>" * 60_000,
    "many blocks": f"<tool_call>\n{RIGHT}\n</tool_call>\n" * 2_000,
    "many lines": "<tool_call>\n" + f"{RIGHT}\n" * 3_000 + "</tool_call>",
    "many quotes": "<tool_call>\n{" + "'" * 190_000,
    "many strings": "<tool_call>\n{" + "'' " * 60_000 + "</tool_call>",
    "many escapes": '<tool_call>\n{"a": "' + "\\" * 190_000,
    "many backquotes": "```json\n" * 100_000,
    "huge integer": '<tool_call>\n{"name": "f", "arguments": {"x": ' + "9" * 100_000 + "}}\n</tool_call>",
    "huge float": '<tool_call>\n{"name": "f", "arguments": {"x": 1e400, "y": NaN, "z": -Infinity}}\n</tool_call>',
    "minus chain": "[f(x=" + "-" * 40_000 + "1)]",
    "attribute chain": "[f" + ".a" * 20_000 + "(x=1)]",
    "not chain": "[f(x=" + "not " * 9_000 + "1)]",
    "operators": "[f(x=" + "1+" * 20_000 + "1)]",
    "comparison chain": "[f(x=" + "1<" * 20_000 + "1)]",
    "concatenated strings": "[f(x=" + "'a' " * 10_000 + ")]",
    "f-string": "[f(x=f'{__import__(\"os\").system(1)}')]",
    "lambda": "[f(x=(lambda: 1)())]",
    "many functions": "<tool_call>\n" + "<function=f>\n" * 15_000,
    "many parameters": "<tool_call>\n<function=f>\n" + "<parameter=x>\n1\n" * 12_000,
    "many mistral tags": "[TOOL_CALLS]" * 80_000,
    "many args": "[TOOL_CALLS]f[ARGS]{}" * 9_000,
    "many custom functions": "<function=f>" * 80_000,
    "python tags": "<|python_tag|>" * 70_000,
    "end tokens": "{}" + "<|eot_id|>" * 90_000,
    "blank": " " * 900_000,
    "newlines": "\n" * 900_000,
    "semicolons": "{}" + ";" * 190_000,
    "commas": "[" + "," * 190_000,
    "examples": "<think>" + "<example>{</example> w " * 30_000 + "</think>\n<tool_call>\n{}\n</tool_call>",
    "byte order mark": "\ufeff" + RIGHT,
    "control characters": "".join(map(chr, range(32))) * 1000,
    "combining": "e\u0301" * 100_000,
    "right to left": "\u202e" + RIGHT + "\u202c",
}  # fmt: skip
PATTERN = [
    {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a+)+$"}}}}
]


EVERYWHERE = (
    "nested brackets",
    "long line",
    "lone surrogates",
    "NUL",
    "import",
    "power",
    "regex bomb",
    "bomb for a pattern",
)


def pairs() -> list:
    """Every text with every protocol; by default the well-known texts everywhere and the rest with two protocols."""
    return [
        pytest.param(name, what, marks=() if what in EVERYWHERE or name in ("rlla", "auto") else pytest.mark.slow)
        for name in (*PROTOCOLS, "auto")
        for what in HOSTILE
    ]


@pytest.mark.parametrize(("name", "what"), pairs())
def test_hostile_text_is_a_row_with_a_status_at_once(name: str, what: str, tmp_path, monkeypatch) -> None:
    """No exception, nothing evaluated, a row that a column can hold, within a tenth of a second."""
    monkeypatch.chdir(tmp_path)
    gold, text = Gold((Call("f", {"x": 1}),), "calls"), HOSTILE[what]
    score_text("warm up", gold, name, ScoreConfig(), PATTERN)
    seconds = []
    for _ in range(3):  # the machine is shared: the best of three counts
        start = time.process_time()
        row = score_text(text, gold, name, ScoreConfig(rewards="self_example,schema,bfcl,tool_n1"), PATTERN).columns
        seconds.append(time.process_time() - start)
        if seconds[-1] < 0.1:
            break
    assert isinstance(row["parse_status"], str) and row["parse_status"]
    row["calls_json"].encode("utf-8")
    row["extra_json"].encode("utf-8")
    assert -3.0 <= row["reward"] <= 4.0
    assert not list(tmp_path.iterdir())
    assert min(seconds) < 0.1


def test_canonical_text_is_stable_and_storable() -> None:
    """Equal values give equal text; what Parquet cannot hold is replaced."""
    assert canonical({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert canonical({"a": "\ud800"}) == '{"a":"\ufffd"}'
    assert canonical("\ud83d\ude00") == '"😀"'
    assert canonical([float("nan"), float("inf"), -float("inf")]) == '["NaN","Infinity","-Infinity"]'
    calls = (Call("f", {"x": 1}),)
    assert read_calls(calls_json(calls)) == calls
    given = {"b": 1, "a": [{"d": "\ud800", "c": float("nan")}]}
    assert as_written(given) == '{"b":1,"a":[{"d":"\ufffd","c":"NaN"}]}'
    assert canonical(json.loads(as_written(given))) == canonical(given)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**18, 10**24) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_records = st.fixed_dictionaries(
    {"name": st.text(max_size=5) | _values, "parameters": st.dictionaries(st.text(max_size=4), _values) | _values},
    optional={"arguments": _values},
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(_records, max_size=3), st.booleans(), st.integers(0, 400), st.sampled_from(["", "}", '"', "\n", "0", ","])
)
def test_the_fast_reader_of_neat_lines_reads_what_json_reads(records, ascii_only, at, junk):
    """With and without it the reading is the same to the type of every number, also where the text is damaged."""
    text = "\n".join(json.dumps(record, ensure_ascii=ascii_only) for record in records)
    text = (text[:at] + junk + text[at:]).strip()
    with pytest.MonkeyPatch.context() as patch:
        fast = rlla._read(text, frozenset())
        patch.setattr(rlla, "_neat", lambda payload: None)
        slow = rlla._read(text, frozenset())
    assert repr(fast) == repr(slow)
