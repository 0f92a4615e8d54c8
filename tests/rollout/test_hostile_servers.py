"""Servers that do their worst: no key leaves, no traceback, time and memory are kept, a good server mends it all."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.bfcl_world import write_world
from support.fake_server import Fake
from support.hostile_server import VARIANTS, WAYS, Hostile
from support.rollout_world import loaded, write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.bfcl import environment
from toolsample_cli.bfcl.stage import QuestionSource
from toolsample_cli.bfcl.stage import run as evaluate
from toolsample_cli.config import EvalConfig, RolloutConfig
from toolsample_cli.errors import ConfigError, MissingDependency, ToolsampleError
from toolsample_cli.models.chat import Chat
from toolsample_cli.rollout.engines import server_client
from toolsample_cli.rollout.engines.server_client import Secret, Server
from toolsample_cli.rollout.engines.transformers import TransformersEngine
from toolsample_cli.rollout.stage import run
from toolsample_cli.rollout.types import open_engine
from toolsample_cli.stage import Options

KEY = "sk-live-0123456789"
SLOW = {"endless body", "endless headers", "drip headers", "drip body", "drip chunks", "silence"}
GRACE = 2.0
"""Seconds beyond --timeout that an attempt may take."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder) -> TransformersEngine:
    return TransformersEngine(folder, RolloutConfig(max_new_tokens=16))


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(server_client, "BACKOFF", 0.01)
    monkeypatch.setattr(server_client, "LONGEST_PAUSE", 0.02)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def _config(folder: Path, url: str, **changes) -> RolloutConfig:
    base = RolloutConfig(
        n=2,
        backend="openai",
        max_new_tokens=8,
        concurrency=4,
        retries=0,
        timeout=1.0,
        tokenizer=str(folder),
        base_url=url,
    )
    return dataclasses.replace(base, **changes)


def _no_key_below(folder: Path) -> None:
    for file in folder.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("way", WAYS)
def test_a_rollout_outlives_a_server_that_turns(folder, engine, tmp_path, way):
    """It answers the probes and then misbehaves: error rows in time, no key on disk, and a rerun mends every row."""
    tasks = write_tasks(tmp_path / "tasks", [task_row(0)])
    chat = Chat.load(folder)
    probe = len(chat.encode(chat.render([{"role": "user", "content": "Say something."}])))

    with Fake(engine) as fake, Hostile("closes") as thief:

        def good(path: str, body) -> dict | None:
            if body is None:
                return {"data": [{"id": "tiny", "max_model_len": 2048}]}
            is_probe = path.endswith("/completions") and len(body.get("prompt", ())) == probe
            return {"choices": [fake.complete(body)]} if is_probe else None

        with Hostile(way, target=thief.url, good=good) as hostile:
            began = time.monotonic()
            retries = len(VARIANTS) // 2 if way == "wrong types" else 0
            config = _config(folder, hostile.url, retries=retries)
            account = run(tasks, tmp_path / "out", "tiny", config, Options())
            took = time.monotonic() - began
        frame = loaded(tmp_path / "out")
        errors = frame["error"].drop_nulls().to_list()
        if way == "echo of the key":  # its words are taken for text where it gives no ids
            assert all("[key]" in text for text in frame["text"] if text)
        else:
            assert account.exit_code == 1 and account.dropped == {"server": 2} and len(errors) == 2, errors
        assert not thief.seen, "the redirect was followed"
        assert way not in SLOW or took < 1.0 + GRACE, took
        _no_key_below(tmp_path)
        mended = run(tasks, tmp_path / "out", "tiny", _config(folder, fake.url, timeout=30.0), Options())
    if way != "echo of the key":
        assert mended.exit_code == 0 and loaded(tmp_path / "out")["error"].is_null().all()


@pytest.mark.parametrize("way", sorted(SLOW | {"redirect", "deep", "bomb", "garbage", "closes", "wrong types"}))
def test_a_rollout_refuses_a_server_that_is_hostile_from_the_start(folder, tmp_path, way):
    """One line, in time, without the key; nothing is written."""
    tasks = write_tasks(tmp_path / "tasks", [task_row(0)])
    with Hostile("closes") as thief, Hostile(way, target=thief.url) as hostile:
        began = time.monotonic()
        with pytest.raises(ToolsampleError) as caught:
            run(tasks, tmp_path / "out", "tiny", _config(folder, hostile.url), Options())
        assert time.monotonic() - began < 1.0 + GRACE
    assert not thief.seen and KEY not in f"{caught.value} {caught.value.hint}"
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def checker() -> None:
    try:
        environment.provide("v4")
    except MissingDependency as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("way", WAYS)
def test_an_evaluation_outlives_a_hostile_server(checker, tmp_path, way):
    """Its questions are errors, never answers; exit 1 when all are; a rerun against another server asks them again."""
    world = QuestionSource(write_world(tmp_path / "world"))
    config = EvalConfig(backend="openai", concurrency=4, retries=0, timeout=1.0)

    def listed(path: str, body) -> dict | None:
        return {"data": [{"id": "m"}]} if body is None else None

    def right(path: str, body) -> dict:
        return {"choices": [{"message": {"content": "No."}, "finish_reason": "stop"}]}

    with Hostile("closes") as thief, Hostile(way, target=thief.url, good=listed) as hostile:
        began = time.monotonic()
        retries = len(VARIANTS) // 3 if way == "wrong types" else 0
        there = dataclasses.replace(config, base_url=hostile.url, retries=retries)
        account = evaluate("m", out=tmp_path / "out", sources=world, config=there, options=Options())
        took = time.monotonic() - began
    assert not thief.seen
    _no_key_below(tmp_path / "out")
    if way in ("echo of the key", "deep arguments"):  # as officially, arguments that cannot be read are no call
        assert account.rows_out > 0
    else:
        assert account.exit_code == 1 and account.rows_out == 0
    assert way not in SLOW or took < 1.0 + GRACE + 3.0, took  # and three seconds for the checker's process to start
    with Hostile("closes", good=right) as good:
        there = dataclasses.replace(config, base_url=good.url)
        mended = evaluate("m", out=tmp_path / "out", sources=world, config=there, options=Options())
    assert mended.exit_code == 0 and not mended.dropped and mended.rows_out == 3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["endless body", "deep"])
def test_memory_stays_small_with_sixty_four_in_flight(folder, tmp_path, way):
    """Below 500 MB whatever comes, torch's own share included."""
    tasks = write_tasks(tmp_path / "tasks", [task_row(i) for i in range(64)])

    def listed(path: str, body) -> dict | None:
        if body is None:
            return {"data": [{"id": "m"}]}
        if "Say something" in str(body.get("messages")):
            return {"choices": [{"message": {"content": "No."}, "finish_reason": "stop"}]}
        return None

    with Hostile(way, good=listed) as hostile:
        command = [sys.executable, "-m", "toolsample_cli", "rollout", str(tasks), "--model", "m", "--backend", "openai"]
        command += ["--base-url", hostile.url, "--endpoint", "chat", "-n", "4", "--retries", "0", "--timeout", "5"]
        measured = (
            f"import resource, subprocess, sys; r = subprocess.run({[*command, '-o', str(tmp_path / 'out')]!r}); "
        )
        measured += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
        done = subprocess.run([sys.executable, "-c", measured], capture_output=True, text=True, env=dict(os.environ))
    assert "Traceback" not in done.stderr
    assert int(done.stdout.split()[-1]) < 500, done.stdout


def test_base_urls_that_would_record_a_secret_are_refused():
    """A password in a URL would be written into every footer; a query would be dropped without a word."""
    with pytest.raises(ConfigError, match="holds a name or password") as caught:
        Server("https://me:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)
    for url in ("http://host/v1?key=1", "ftp://host/v1", "http:///v1", "host:80/v1"):
        with pytest.raises(ConfigError, match="not a base URL"):
            Server(url)


def test_a_key_is_hidden_in_every_spelling(monkeypatch):
    """Plain, in names, nested, in the escapes of JSON within JSON; words that stand for no key are left alone."""
    secret = Secret("OPENAI_API_KEY")
    escaped = "".join(f"\\u{ord(character):04x}" for character in KEY)
    hidden = secret.hide_all({KEY: [f"a {KEY} b", {"x": f'{{"to": "{escaped}"}}'}], "n": 1})
    assert KEY not in str(hidden) and escaped not in str(hidden) and hidden["n"] == 1
    assert secret.hide("a \\n b") == "a \\n b"
    for word in ("EMPTY", "none", "x", ""):
        monkeypatch.setenv("OPENAI_API_KEY", word)
        assert Secret("OPENAI_API_KEY").hide(f"the {word} word") == f"the {word} word"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-live\n0123")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        Secret("OPENAI_API_KEY")
    assert "0123" not in str(caught.value)


def test_ids_outside_the_vocabulary_are_no_completion(folder, engine, tmp_path):
    """An id that the tokenizer does not know is an error row that names it, and a rerun makes the row."""
    tasks = write_tasks(tmp_path / "tasks", [task_row(0)])
    with Fake(engine) as fake:
        backend = open_engine("openai", "tiny", _config(folder, fake.url, timeout=30.0))
        foreign = backend.vocabulary
        backend.close()

        def good(path: str, body) -> dict:
            if body is None:
                return {"data": [{"id": "tiny", "max_model_len": 2048}]}
            choice = fake.complete(body)
            if body["max_tokens"] > 2:
                choice["token_ids"][-1] = foreign
            return {"choices": [choice]}

        with Hostile("closes", good=good) as hostile:
            account = run(tasks, tmp_path / "out", "tiny", _config(folder, hostile.url, timeout=30.0), Options())
        assert account.dropped == {"server": 2}
        assert loaded(tmp_path / "out")["error"].str.contains(f"token id {foreign} is outside").all()
        run(tasks, tmp_path / "out", "tiny", _config(folder, fake.url, timeout=30.0), Options())
    assert loaded(tmp_path / "out")["error"].is_null().all()
