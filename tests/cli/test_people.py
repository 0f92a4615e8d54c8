"""What a person meets: help that starts with the common case, progress that can be believed, words that obey nobody."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import time
import unicodedata

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from toolsample_cli.cli.app import COMMANDS, build, run
from toolsample_cli.cli.progress import Progress
from toolsample_cli.stage import Account
from toolsample_cli.terminal import json_line, one_line, printable

EVIL = "a\x1b]52;c;AAAA\x07\x9b2J\u202eb\u2066\u200b\ud800\U000e0041\x7f"
RAW = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def raw(text: str) -> list[str]:
    """Characters that a terminal would obey or hide."""
    return [char for char in text if unicodedata.category(char) in RAW and char not in "\n\t"]


@given(st.text() | st.just(EVIL))
def test_nothing_raw_is_printed_and_nothing_readable_is_lost(text):
    assert raw(printable(text)) == [] and raw(one_line(text)) == [] and "\n" not in one_line(text)
    assert raw(json_line({text: [text]})) == [] and json.loads(json_line({text: [text]})) == {text: [text]}
    plain = "".join(char for char in text if char not in raw(text))
    assert printable(plain) == plain


def test_the_closing_line_obeys_nobody(capsys):
    from toolsample_cli.cli.command import finish

    account = Account("score", dropped={EVIL: 1}, extra={EVIL: EVIL + "\nforged"}, report=EVIL)
    for as_json in (True, False):
        with pytest.raises(Exception, match="0"):
            finish(account, as_json)
        shown = capsys.readouterr()
        assert raw(shown.out) == raw(shown.err) == [] and shown.err.count("\n") == 1


def test_alone_it_prints_help(capsys):
    assert run([]) == 0
    alone = capsys.readouterr()
    assert run(["-h"]) == 0
    assert alone.out.strip() == capsys.readouterr().out.strip() and "Usage: toolsample" in alone.out
    assert alone.err == "" and "..." not in alone.out.replace("[ARGS]...", ""), "every command in a whole sentence"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_grouped_and_ends_with_an_example_that_parses(name, capsys):
    assert run([name, "-h"]) == 0
    text = capsys.readouterr().out
    sections = [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections[0] == "Arguments" and sections[-2:] == ["Common options", "Example"]
    assert ("--slice" in text) == (name in ("rollout", "score", "filter"))
    words = shlex.split(COMMANDS[name].example)
    assert words[:2] == ["toolsample", name] and words[2:]
    command = get_command(build()).commands[name]
    with command.make_context(name, words[2:]) as context:
        assert context.params


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("train --loss ", {"grpo", "dapo", "gspo"}),
        ("score --protocol q", {"qwen_xml"}),
        ("score --rewards toolrl,sch", {"toolrl,schema"}),
        ("inspect --ask newly-", {"newly-solved", "newly-broken"}),
    ],
)
def test_choices_and_names_complete_in_the_shell(typed, names):
    line = f"toolsample {typed}"
    words = {"_TOOLSAMPLE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    code = "from toolsample_cli.cli.app import build; build()(prog_name='toolsample')"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **words}, capture_output=True, text=True)
    assert names <= set(done.stdout.split()), done


@pytest.mark.parametrize("arguments", [[], ["-i", "1"], ["--json"]])
def test_a_reader_that_goes_away_is_no_failure(tmp_path, arguments):
    """`inspect X | head -1`."""
    wide = {f"column {number} {'x' * 300}": [float(number)] for number in range(400)}
    pl.DataFrame(wide).write_parquet(tmp_path / "x.parquet")
    command = [sys.executable, "-m", "toolsample_cli", "inspect", str(tmp_path / "x.parquet"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        words = process.stderr.read()
        assert process.wait() == 0 and words == b""


def test_a_log_says_something_within_two_seconds_and_judges_late(monkeypatch):
    monkeypatch.setattr("toolsample_cli.cli.progress.FIRST", 0.05)
    stream = io.StringIO()
    with Progress("rollout", stream) as progress:
        progress.expect(100)
        progress.found(40)
        progress.phase("loading \x1b[2Jthe model")
        time.sleep(0.2)
        assert stream.getvalue().startswith(r"rollout: loading \u001b[2Jthe model, 0 s")
        progress.tick(1)
        assert progress.line() == "rollout: 41 of 100 rows"


def test_time_left_counts_only_this_run(monkeypatch):
    """40 rows were there before; 10 rows in 10 seconds after the first leave 49 seconds for 49 rows."""
    now = [1000.0]
    progress = Progress("score", io.StringIO())
    progress._bars.get_time = lambda: now[0]
    progress._bars.tasks[0]._get_time = lambda: now[0]
    monkeypatch.setattr("toolsample_cli.cli.progress.time.monotonic", lambda: now[0])
    progress.expect(100)
    progress.found(40)
    for _ in range(11):
        progress.tick(1)
        assert "left" not in progress.line() or now[0] >= 1005
        now[0] += 1
    assert progress.line() == "score: 51 of 100 rows, 1 per second, about 49 s left"
