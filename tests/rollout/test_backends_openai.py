"""The server engine: token-exact with a good server, honest about a lesser one, and finished with a bad one."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.engine_checks import TOLERANCE, plain_logprobs, wanted
from support.fake_server import FAULTS, Fake
from support.rollout_world import loaded, write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.rollout.engines import server_client
from toolsample_cli.rollout.engines.server_client import Client, Failed, GaveUp, Query
from toolsample_cli.rollout.engines.transformers import TransformersEngine
from toolsample_cli.rollout.stage import run
from toolsample_cli.rollout.types import Sampling, open_engine
from toolsample_cli.stage import Options

BASE = RolloutConfig(n=2, backend="openai", max_new_tokens=8, concurrency=8, retries=3, timeout=30.0, tasks_per_shard=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder):
    return TransformersEngine(folder, RolloutConfig(max_new_tokens=16))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Backoff in hundredths of a second; what is tested is its logic."""
    monkeypatch.setattr(server_client, "BACKOFF", 0.01)
    monkeypatch.setattr(server_client, "LONGEST_PAUSE", 0.1)


def config(folder, *fakes: Fake, **changes) -> RolloutConfig:
    urls = ",".join(fake.url for fake in fakes)
    return dataclasses.replace(BASE, base_url=urls, tokenizer=str(folder), **changes)


@pytest.mark.parametrize("knobs", [{}, {"temperature": 0.7}, {"top_p": 0.8}], ids=["T=1", "T=0.7", "top-p"])
def test_conformance_with_a_token_exact_server(folder, engine, knobs):
    """Prompt ids go out, ids and logprobs come back, and a plain forward pass confirms them."""
    with Fake(engine) as fake:
        settings = config(folder, fake, **knobs)
        backend = open_engine("openai", "tiny", settings)
        assert backend.describe()["dialect"] == "tokens" and backend.describe()["logprobs"] == "processed"
        assert backend.max_prompt_tokens == 2047
        requests, sampling = wanted(engine.chat, tasks=4, n=2), Sampling.of(settings)
        done = {(c.key, c.sample): c for c in backend.generate(requests, sampling)}
    for request in requests:
        completion = done[request.key, request.sample]
        assert not completion.ids_from_text and completion.error is None
        expected = plain_logprobs(engine.model, list(request.prompt_ids), list(completion.completion_ids), sampling)
        assert max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True)) < TOLERANCE
    asked = {tuple(seen["prompt"]) for seen in fake.seen}
    assert {tuple(r.prompt_ids) for r in requests} <= asked
    assert len({seen["seed"] for seen in fake.seen}) == len(requests) + 1, "each sample has its own seed"


def test_a_request_is_sent_once_over_a_kept_connection():
    """What goes out twice is generated twice."""
    seen, connections = [], set()

    class Counting(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_) -> None:
            pass

        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            connections.add(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = Client(dataclasses.replace(BASE, base_url=f"http://127.0.0.1:{server.server_port}/v1"))
        assert all(client.ask(Query("a", "/x", json.dumps(i).encode(), lambda reply: reply)) == {} for i in range(5))
        client.close()
        server.shutdown()
    assert seen == [0, 1, 2, 3, 4] and len(connections) == 1


def test_raw_logprobs_are_found_out(folder, engine):
    """Logprobs from before temperature or truncation are named in the metadata, where that makes a difference."""
    cool, cut = {"temperature": 0.7}, {"temperature": 0.7, "top_p": 0.8}
    expected = {
        "processed": ("processed", "processed", "processed"),
        "temperature": ("processed", "processed", "temperature only"),
        "raw": ("processed", "raw", "raw"),
    }
    with Fake(engine) as fake:
        for fake.logprobs_mode, names in expected.items():
            for knobs, name in zip(({}, cool, cut), names, strict=True):
                assert open_engine("openai", "tiny", config(folder, fake, **knobs)).describe()["logprobs"] == name


@pytest.mark.parametrize("knobs", [{}, {"temperature": 0.7}, {"top_p": 0.8}], ids=["T=1", "T=0.7", "top-p"])
def test_sglangs_own_endpoint(folder, engine, knobs):
    """Its form as documented, from a server of ours: ids in, ids and logprobs out, and what the logprobs are of."""
    with Fake(engine, style="sglang") as fake:
        settings = config(folder, fake, stop='["zzz"]', **knobs)
        backend = open_engine("openai", "tiny", settings)
        said = backend.describe()
        assert (said["dialect"], said["logprobs"]) == (
            "generate",
            "temperature only" if "top_p" in knobs else "processed",
        )
        requests, sampling = wanted(engine.chat, tasks=4, n=2), Sampling.of(settings)
        done = {(c.key, c.sample): c for c in backend.generate(requests, sampling)}
        sent = fake.seen[-1]["sampling_params"]
    assert sent["stop"] == ["zzz"] and sent["no_stop_trim"] and sent["top_k"] == -1
    reported = Sampling(sampling.temperature)
    for request in requests:
        completion = done[request.key, request.sample]
        assert not completion.ids_from_text and completion.finish_reason in ("stop", "length")
        expected = plain_logprobs(engine.model, list(request.prompt_ids), list(completion.completion_ids), reported)
        assert max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True)) < TOLERANCE


def test_a_text_server_gives_ids_from_text(folder, engine):
    """Unknown fields are left out after a 422, ids are re-made and marked, logprobs kept only where tokens agree."""
    with Fake(engine, style="text") as fake:
        backend = open_engine("openai", "tiny", config(folder, fake))
        assert backend.describe()["dialect"] == "text (standard fields only)"
        requests = wanted(engine.chat, tasks=4, n=2)
        done = list(backend.generate(requests, Sampling.of(BASE)))
        with pytest.raises(StageFailure, match="no known way") as caught:
            open_engine("openai", "tiny", config(folder, fake, top_k=5))
    assert "top_k" in str(caught.value) + caught.value.hint
    assert len(done) == 8 and all(c.ids_from_text and c.error is None for c in done)
    for completion in done:
        ids = list(completion.completion_ids)
        assert (ids[-1] == engine.chat.end_of_turn) == (completion.finish_reason == "stop")
        assert engine.chat.text(ids) == completion.text or "\ufffd" in completion.text
        assert completion.logprobs is None or len(completion.logprobs) == len(ids)


def test_a_chat_server_gets_messages_and_tools(folder, engine, tmp_path):
    """Calls it parsed itself are written back in the task's protocol; no tokenizer is needed."""
    tasks = write_tasks(tmp_path / "tasks", [task_row(i) for i in range(2)])
    with Fake(engine, style="chat") as fake:
        settings = dataclasses.replace(config(folder, fake), tokenizer="", endpoint="chat")
        account = run(tasks, tmp_path / "out", "tiny", settings, Options())
    frame = loaded(tmp_path / "out")
    assert account.exit_code == 0 and frame["text"].unique().to_list() == [task_row(0)["gold_text"]]
    assert frame["finish_reason"].unique().to_list() == ["tool_calls"] and frame["ids_from_text"].all()
    sent = fake.seen[-1]
    assert sent["messages"][-1]["content"] == "find the weather in Paris"
    assert sent["tools"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize("fault", ["500", "stall", "cut", "short logprobs"])
def test_a_fault_now_and_then_is_healed_by_another_attempt(folder, engine, fault):
    """Every third request fails once; every row is good in the end and equal to the undisturbed one."""
    with Fake(engine) as fake:
        timeout = 2.0 if fault == "stall" else 30.0
        backend = open_engine("openai", "tiny", config(folder, fake, timeout=timeout))
        requests = wanted(engine.chat, tasks=3, n=2)
        undisturbed = {(c.key, c.sample): c for c in backend.generate(requests, Sampling.of(BASE))}
        hit: set[int] = set()

        def faults(number, body):
            if body["seed"] % 3 == 0 and body["seed"] not in hit:
                hit.add(body["seed"])
                return fault
            return None

        fake.faults = faults
        done = {(c.key, c.sample): c for c in backend.generate(requests, Sampling.of(BASE))}
    assert hit and done == undisturbed


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_a_row_with_its_name(folder, engine, tmp_path, fault):
    """The run ends, the other rows are good, the exit code says so, and a rerun heals it."""
    tasks = write_tasks(tmp_path / "tasks", [task_row(i, "weather " * (1 + i)) for i in range(5)])
    broken = {i for i in (1, 4)}
    prompts = {tuple(engine.chat.prompt_ids(task_row(i, "weather " * (1 + i)))) for i in broken}
    with Fake(engine, faults=lambda number, body: fault if tuple(body["prompt"]) in prompts else None) as fake:
        settings = config(folder, fake, retries=1, timeout=1.0 if fault == "stall" else 30.0)
        account = run(tasks, tmp_path / "out", "tiny", settings, Options())
        frame = loaded(tmp_path / "out")
        bad = frame.filter(frame["error"].is_not_null())
        assert set(bad["task_id"]) == {"t00001", "t00004"} and bad.height == 4
        assert account.exit_code == 1 and account.dropped == {"server": 4}
        words = {
            "500": "HTTP 500", "429": "HTTP 429", "stall": "TimeoutError", "cut": "RemoteProtocolError",
            "garbage": "not JSON", "no choice": "asked for 1 choice, got 0", "two choices": "asked for 1 choice, got 2",
            "short logprobs": "logprobs for", "other prompt": "changed the prompt", "no reason": "no finish_reason",
        }  # fmt: skip
        assert all(words[fault] in error for error in bad["error"]), bad["error"].to_list()
        fake.faults = lambda number, body: None
        healed = run(tasks, tmp_path / "out", "tiny", settings, Options())
    assert healed.exit_code == 0 and loaded(tmp_path / "out")["error"].is_null().all()


def test_a_server_that_dies_ends_the_run(folder, engine, tmp_path, monkeypatch):
    """Rows until then are kept, the others name the failure, and a rerun against a new server completes them."""
    monkeypatch.setattr(server_client, "DEAD_AFTER", 0.5)
    tasks = write_tasks(tmp_path / "tasks", [task_row(i, "weather " * (1 + i)) for i in range(8)])
    with Fake(engine) as second:
        first = Fake(engine)
        first.faults = lambda number, body: threading.Thread(target=first.die).start() if number == 7 else None
        with first:
            began = time.monotonic()
            account = run(tasks, tmp_path / "out", "tiny", config(folder, first), Options())
            assert time.monotonic() - began < 30
            first.die = lambda: None
        frame = loaded(tmp_path / "out")
        assert account.exit_code == 1 and 0 < frame["error"].is_null().sum() < frame.height == 16
        assert frame["error"].drop_nulls().str.contains("server: ").all()
        healed = run(tasks, tmp_path / "out", "tiny", config(folder, second), Options())
    assert healed.exit_code == 0 and loaded(tmp_path / "out")["error"].is_null().all()


def test_several_servers_share_the_work_and_one_may_be_dead(folder, engine):
    """Tasks keep to one server while both live; with one of them down everything goes to the other."""
    requests = wanted(engine.chat, tasks=12, n=2)
    with Fake(engine) as one, Fake(engine) as two:
        backend = open_engine("openai", "tiny", config(folder, one, two))
        good = {(c.key, c.sample): c for c in backend.generate(requests, Sampling.of(BASE))}
        assert len(one.seen) > 4 and len(two.seen) > 4
        one.faults = lambda number, body: "500"
        before = len(one.seen)
        again = {(c.key, c.sample): c for c in backend.generate(requests, Sampling.of(BASE))}
        assert again == good
        assert len(one.seen) - before < 20, "its circuit breaker is open"


def test_wrong_names_and_absent_servers_are_said_at_once(folder, engine):
    """Before anything is written."""
    with Fake(engine) as fake:
        with pytest.raises(ConfigError, match="no model 'tinny' at the server") as caught:
            open_engine("openai", "tinny", config(folder, fake))
        assert "tiny" in caught.value.hint
        url = fake.url
    with pytest.raises(StageFailure, match="no server answers"):
        open_engine("openai", "tiny", dataclasses.replace(BASE, base_url=url, tokenizer=str(folder)))
    with pytest.raises(ConfigError, match="not a base URL"):
        open_engine("openai", "tiny", dataclasses.replace(BASE, base_url="localhost:8000", tokenizer=str(folder)))


def test_breaker_opens_probes_and_closes(monkeypatch):
    """After five failures a server is left alone; one probe at a time; a success closes it."""
    monkeypatch.setattr(server_client, "DEAD_AFTER", 0.3)
    client = Client(dataclasses.replace(BASE, base_url="http://127.0.0.1:1/v1", timeout=1.0))
    query = Query("a", "/x", b"{}", lambda reply: reply)

    async def fails(server, asked, timeout):
        raise Failed("down")

    async def answers(server, asked, timeout):
        return "fine"

    monkeypatch.setattr(client, "_exchange", fails)
    for _ in range(2):
        with pytest.raises(GaveUp, match="3 attempts, the last: down"):
            client.ask(query, attempts=3)
    [server] = client.servers
    assert server.failures == 6 and server.open_until > time.monotonic() - 0.05
    time.sleep(0.4)
    server.open_until = time.monotonic() + 10
    with pytest.raises(GaveUp, match="no server has answered"):
        client.ask(query)
    server.open_until = 0.0
    monkeypatch.setattr(client, "_exchange", answers)
    assert client.ask(query) == "fine" and server.failures == 0
    client.close()
