"""Stop strings end completions where they are whole; a slower layout and a lack of memory are said in one line."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
import torch
from support.conformance import TOLERANCE, plain_logprobs
from support.engine_checks import wanted
from support.fake_server import Fake
from support.rollout_world import loaded, write_tasks
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, StageFailure
from toolsample_cli.rollout.engines import layouts
from toolsample_cli.rollout.engines.kv_cache import Repeated, SharedPrompt
from toolsample_cli.rollout.engines.transformers import TransformersEngine
from toolsample_cli.rollout.stage import run
from toolsample_cli.rollout.types import Sampling, stop_strings
from toolsample_cli.stage import Options

CONFIG = RolloutConfig(max_new_tokens=40, batch_tokens=8192)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder):
    return TransformersEngine(folder, CONFIG)


@pytest.fixture(scope="module")
def free(engine):
    """Completions without stop strings, and two strings of several tokens that many of them hold."""
    done = {(c.key, c.sample): c for c in engine.generate(wanted(engine.chat), Sampling.of(CONFIG))}
    counts = Counter()
    for c in done.values():
        ids = list(c.completion_ids)
        for at in range(5, len(ids) - 2):
            two = engine.chat.tokenizer.decode(ids[at : at + 2])
            counts[two[-3:]] += "\ufffd" not in two and len(two) >= 3
    strings = tuple(text for text, _ in counts.most_common(2))
    assert sum(any(s in engine.chat.text(c.completion_ids) for s in strings) for c in done.values()) >= 5
    return done, strings


def first_stop(chat, ids: list[int], strings) -> int:
    """How many tokens there are when the first stop string is whole; all of them when none is."""
    return next((k for k in range(1, len(ids) + 1) if any(s in chat.text(ids[:k]) for s in strings)), len(ids))


@pytest.mark.parametrize("layout", [SharedPrompt, Repeated])
def test_a_completion_ends_with_the_token_that_completes_a_string(engine, free, layout):
    """The same draws as without, cut there; ids and logprobs are what was sampled."""
    before, strings = free
    sampling = dataclasses.replace(Sampling.of(CONFIG), stop=strings)
    engine.state_class = layout
    done = {(c.key, c.sample): c for c in engine.generate(wanted(engine.chat), sampling)}
    engine.state_class = SharedPrompt
    same = cut = 0
    for key, completion in done.items():
        ids = list(completion.completion_ids)
        hit = any(s in engine.chat.text(ids) for s in strings)
        assert first_stop(engine.chat, ids, strings) == len(ids)
        assert completion.finish_reason == ("stop" if hit or ids[-1] in engine.stop_ids else "length")
        whole = list(before[key].completion_ids)
        same += ids == whole[: first_stop(engine.chat, whole, strings)]
        cut += hit
    assert cut >= 5 and same >= 0.95 * len(done)
    for request in wanted(engine.chat)[:12]:
        completion = done[request.key, request.sample]
        expected = plain_logprobs(engine.model, request.prompt_ids, list(completion.completion_ids), sampling)
        assert max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True)) < TOLERANCE


def test_strings_over_many_tokens_and_split_letters(engine):
    """A byte a token at worst: accents and emoji are found although their bytes come one by one."""
    from toolsample_cli.rollout.engines.stop_strings import StopStrings

    chat, text = engine.chat, "so naïve 🙂 it was</answer> and more"
    ids = chat.encode(text)
    for string in ("ïve 🙂", "</answer>", "was</answer> and"):
        strings, at = StopStrings([string, "never"], 1, chat), None
        for count, token in enumerate(ids, 1):
            if strings.reached([0], [token]).item():
                at = count
                break
        assert at == first_stop(chat, ids, [string]) < len(ids)


def test_servers_are_told_and_keep_the_string(folder, engine, free, tmp_path):
    """Through the stage, against a server that cuts as it is asked to; the setting stands in the metadata."""
    _, strings = free
    tasks = write_tasks(tmp_path / "tasks", [task_row(i, "weather " * (1 + i)) for i in range(4)])
    config = dataclasses.replace(CONFIG, backend="openai", n=2, tokenizer=str(folder), stop=json.dumps(strings))
    for style in ("vllm", "text"):
        with Fake(engine, style=style) as fake:
            run(tasks, tmp_path / style, "tiny", dataclasses.replace(config, base_url=fake.url), Options())
        asked = [body for body in fake.seen if "stop" in body]
        assert asked and all(body["stop"] == list(strings) for body in asked)
        assert all(("include_stop_str_in_output" in body) == ("return_token_ids" in body) for body in asked)
        frame = loaded(tmp_path / style)
        assert frame["error"].is_null().all() and set(frame["finish_reason"]) <= {"stop", "length"}
        for row in frame.iter_rows(named=True):
            if style == "text":  # the server cut its text, and whether the end token was sampled is not known
                assert row["ids_from_text"] and not any(s in row["text"] for s in strings)
                assert row["completion_ids"] == engine.chat.encode(row["text"])
            else:
                assert first_stop(engine.chat, row["completion_ids"], strings) == len(row["completion_ids"])


def test_the_setting_is_a_text_or_a_list():
    """A bracket starts a list; anything else is the text itself."""
    assert stop_strings("") == () and stop_strings("a, b\n") == ("a, b\n",)
    assert stop_strings('["</answer>", "\\n\\n"]') == ("</answer>", "\n\n")
    for wrong in ("[", "[1]", '[""]', '["a"'):
        with pytest.raises(ConfigError, match="not a JSON list of texts"):
            stop_strings(wrong)


class Odd(SharedPrompt):
    """Raises what it is told to, at the trial on a few tokens."""

    error: Exception

    def step(self, token_R):
        raise self.error


def test_a_layout_that_does_not_fit_is_named(engine, monkeypatch, capsys):
    """One line with the reason; out of memory and a broken device are no reason to fall back."""
    assert layouts.choose_layout(engine.model, engine.pad) is SharedPrompt
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(layouts, "SharedPrompt", Odd)
    Odd.error = RuntimeError("The size of tensor a (4) must match\nsecond line")
    assert layouts.choose_layout(engine.model, engine.pad) is Repeated
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Qwen3ForCausalLM runs the slower layout" in said and "must match" in said
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("device-side assert"),
        OSError(),
    ):
        Odd.error = error
        with pytest.raises(type(error)):
            layouts.choose_layout(engine.model, engine.pad)
    assert capsys.readouterr().err == ""


def no_room() -> None:
    torch.empty(1 << 60)


def no_room_on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("failing", [no_room, no_room_on_a_gpu])
def test_out_of_memory_is_one_line_that_says_what_to_lower(engine, monkeypatch, failing):
    """Not a traceback, and any other failure stays what it is."""
    monkeypatch.setattr(engine, "_decode", lambda *_: failing())
    with pytest.raises(StageFailure, match="out of memory while generating 4 completions together on cpu") as caught:
        list(engine.generate(wanted(engine.chat, tasks=1), Sampling.of(CONFIG)))
    assert "lower batch_tokens (now 8192)" in caught.value.hint and "\n" not in str(caught.value)
    monkeypatch.setattr(engine, "_decode", lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        list(engine.generate(wanted(engine.chat, tasks=1), Sampling.of(CONFIG)))
