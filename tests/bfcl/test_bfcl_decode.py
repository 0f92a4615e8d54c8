"""The eval-free reader of Python calls: the official decoder's quirks are kept, code is never run, time is bounded.

python -m pytest tests/test_bfcl_decode.py
"""

from __future__ import annotations

import time

import pytest

from toolsample_cli.bfcl.inside.pycalls import MAX_CHARS, Refused, decode

READ = {
    "[f(a=1, b='x')]": [{"f": {"a": 1, "b": "x"}}],
    "f(a=1)": [{"f": {"a": 1}}],
    "[f(a=1)": [{"f": {"a": 1}}],
    "```\n[f(a=1), g()]\n```": [{"f": {"a": 1}}, {"g": {}}],
    "[a.b.c(x=[1, (2, 3)], y={'k': {'n': None}})]": [{"a.b.c": {"x": [1, (2, 3)], "y": {"k": {"n": None}}}}],
    "[f(1, a=2)]": [{"f": {"a": 2}}],  # positional arguments are dropped
    "[f(a=true, b=null, c=None)]": [{"f": {"a": "true", "b": "null", "c": None}}],
    "[f(a=not True, b=-5, c=~3)]": [{"f": {"a": -1, "b": -5, "c": -3}}],
    "[f(a=2 + 3 * 4, b='x' + 'y', c=1 / 4, d=2 ** 10)]": [{"f": {"a": 14, "b": "xy", "c": 0.25, "d": 1024}}],
    "[f(a=g(1), b=h(x=2), c=d[0], e=...)]": [{"f": {"a": "g(1)", "b": {"h": {"x": 2}}, "c": "d[0]", "e": "..."}}],
    "[f(**{'a': 1})]": [{"f": {None: {"a": 1}}}],
    "[]": [],
    "": [],
}


@pytest.mark.parametrize("text", READ)
def test_answers_are_read_as_the_official_decoder_reads_them(text: str):
    """Quirks included."""
    assert decode(text) == READ[text]


@pytest.mark.parametrize("text", ["no call here", "[f(a=1", "[1]", "[f(a={1, 2})]", "[f(a=x + 1)]", "[f(a=-'s')]"])
def test_what_is_no_call_raises(text: str):
    """Where the official decoder fails, so does this one, by an ordinary exception."""
    with pytest.raises(Exception) as caught:
        decode(text)
    assert not isinstance(caught.value, Refused)


HOSTILE = [
    "[f(a=9**9**9)]",
    "[f(a=1 << 10**9)]",
    "[f(a='x' * 10**10)]",
    "[f(a=[0] * 10**10)]",
    "[f(a='%999999999d' % 1)]",
    "[f(a=__import__('os').getcwd() + 'x')]",
    "[f(a=open('owned', 'w').write('x') + 1)]",
    "[f(a=[len for len in range(3)] + [1])]",
    "x" * (MAX_CHARS + 1),
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_are_refused_at_once(text: str, tmp_path, monkeypatch):
    """Nothing runs, nothing is written, nothing takes long."""
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    with pytest.raises(Refused):
        decode(text)
    assert time.process_time() - started < 1.0
    assert not list(tmp_path.iterdir())


def test_release_v3_strips_brackets_first():
    """The older release cuts all brackets and quotes at the ends, which reads some answers differently."""
    assert decode("['f(a=1)']", "v3") == [{"f": {"a": 1}}]
    with pytest.raises(ValueError, match="not a call"):
        decode("['f(a=1)']", "v4")
