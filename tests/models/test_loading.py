"""One digest, one device rule, one loader, for whoever holds a model."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from support.tiny_model import tiny_model

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.models import digests, loading, tokenizer_files
from toolsample_cli.models.chat import Chat
from toolsample_cli.rollout.types import check_start


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_the_digest_is_of_every_byte(tmp_path: Path):
    """A few bytes zeroed in the middle, with the time set back, are another model; so is another config."""
    model = tiny_model(tmp_path)
    weights = model / "model.safetensors"
    old = time.time() - 3600
    os.utime(weights, (old, old))
    first = digests.model_digest(str(model))
    assert first == digests.model_digest(str(model)) == digests.folder_digest(model)
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(bytes(4096))
    assert digests.model_digest(str(model)) != first
    assert digests.model_digest(str(model), "some/adapter") == f"{digests.model_digest(str(model))}+some/adapter"
    assert digests.model_digest("nobody/nothing") == "nobody/nothing"


def test_a_digest_is_read_once_per_process_and_never_from_a_fresh_file(tmp_path: Path, monkeypatch):
    """A file that changed within the clock's grain could look unchanged, so it is read again."""
    model, reads = tiny_model(tmp_path), []
    content = digests._content_digest
    monkeypatch.setattr(digests, "_content_digest", lambda files: reads.append(1) or content(files))
    for _ in range(2):
        digests.model_digest(str(model))
    assert len(reads) == 2
    for file in model.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)
    for _ in range(3):
        digests.model_digest(str(model))
    assert len(reads) == 3


def test_devices_by_the_same_rule_everywhere(monkeypatch):
    """auto is CUDA, then MPS, then CPU; a second device can be named; ranks get one each and never MPS."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert loading.pick_device("auto") == torch.device("cuda")
    assert loading.pick_device("cuda:1") == torch.device("cuda", 1)
    assert loading.pick_device("cuda", 1) == torch.device("cuda", 1)
    for name, rank in (("cuda:2", None), ("cuda:1", 0), ("xpuu", None), ("mps", None)):
        with pytest.raises(ConfigError, match="device"):
            loading.pick_device(name, rank)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert loading.pick_device("auto") == torch.device("mps")
    assert loading.pick_device("auto", 0) == torch.device("cpu")
    assert loading.pick_dtype("auto", torch.device("mps")) == torch.float32
    assert loading.pick_dtype("auto", torch.device("cuda", 1)) == torch.bfloat16


def test_what_is_no_model_is_one_line(tmp_path: Path):
    """A config of no known kind, and a folder without one."""
    (tmp_path / "odd").mkdir()
    with pytest.raises(DataError, match=r"no config\.json"):
        loading.read_weights(str(tmp_path / "odd"), torch.float32)
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(DataError, match="no causal model could be loaded"):
        loading.read_config(str(tmp_path / "odd"))


def test_a_fingerprint_is_remembered_for_the_same_bytes_only(tmp_path: Path, monkeypatch):
    """What a run found is known to the next process without transformers; another template is not."""
    monkeypatch.setenv("TOOLSAMPLE_CACHE", str(tmp_path / "cache"))
    model = tiny_model(tmp_path)
    chat = Chat.load(model)
    assert tokenizer_files.known_fingerprint(str(model)) is None
    tokenizer_files.remember_fingerprint(str(model), chat)
    assert tokenizer_files.known_fingerprint(str(model)) == chat.fingerprint
    [kept] = (tmp_path / "cache" / "tokenizers").iterdir()
    kept.write_bytes(b'{"tokenizer": 5')
    assert tokenizer_files.known_fingerprint(str(model)) is None
    tokenizer_files.remember_fingerprint(str(model), chat)
    with (model / "chat_template.jinja").open("a", encoding="utf-8") as file:
        file.write(" ")
    assert tokenizer_files.known_fingerprint(str(model)) is None


def test_a_plan_looks_at_the_tokenizer_without_transformers(tmp_path: Path):
    """Missing, torn and without a template: each is refused; a hub id passes unasked."""
    check_start("transformers", "someone/some-model")
    model = tiny_model(tmp_path)
    check_start("transformers", str(model))
    tokenizer, template = model / "tokenizer.json", model / "chat_template.jinja"
    whole = tokenizer.read_bytes()
    tokenizer.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"tokenizer\.json: no tokenizer"):
        check_start("transformers", str(model))
    tokenizer.unlink()
    with pytest.raises(DataError, match="without tokenizer"):
        check_start("transformers", str(model))
    tokenizer.write_bytes(whole)
    template.unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        check_start("transformers", str(model))
