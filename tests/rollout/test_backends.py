"""Every engine keeps one interface: its logprobs are those of a plain forward pass over its own ids."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from support.engine_checks import TOLERANCE, plain_logprobs, wanted
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import RolloutConfig
from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.rollout.engines.kv_cache import Repeated, SharedPrompt, prefill_slices
from toolsample_cli.rollout.engines.model_defaults import with_model_settings
from toolsample_cli.rollout.engines.token_sampling import draw, log_distribution, token_uniforms
from toolsample_cli.rollout.engines.transformers import TransformersEngine
from toolsample_cli.rollout.types import ENGINES, Engine, Request, Sampling, open_engine, rollout_seed

CONFIG = RolloutConfig(max_new_tokens=48, batch_tokens=8192)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder):
    return open_engine("transformers", str(folder), CONFIG)


SAMPLINGS = {
    "T=1": {},
    "T=0.7": {"temperature": 0.7},
    "top-p": {"top_p": 0.8},
    "top-k and min-p": {"top_k": 20, "min_p": 0.05, "temperature": 1.3},
    "greedy": {"temperature": 0.0},
}


@pytest.mark.parametrize("layout", [SharedPrompt, Repeated])
@pytest.mark.parametrize("knobs", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_stored_logprobs_equal_a_plain_forward_pass(engine, layout, knobs):
    """For each request exactly one completion whose logprobs the model itself confirms."""
    chat, sampling = engine.chat, dataclasses.replace(Sampling.of(CONFIG), **knobs)
    requests = wanted(chat)
    engine.state_class = layout
    done = {(c.key, c.sample): c for c in engine.generate(requests, sampling)}
    engine.state_class = SharedPrompt
    assert set(done) == {(r.key, r.sample) for r in requests}
    worst, reasons = 0.0, set()
    for request in requests:
        completion = done[request.key, request.sample]
        ids = list(completion.completion_ids)
        assert 1 <= len(ids) <= CONFIG.max_new_tokens and len(completion.logprobs) == len(ids)
        assert completion.finish_reason == ("stop" if ids[-1] in chat.end_ids else "length")
        assert not set(ids[:-1]) & set(chat.end_ids)
        assert isinstance(chat.text(ids), str)
        expected = plain_logprobs(engine.model, list(request.prompt_ids), ids, sampling)
        worst = max(worst, max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True)))
        reasons.add(completion.finish_reason)
    assert worst < TOLERANCE
    if knobs.get("temperature") != 0.0:
        assert reasons == {"stop", "length"}


def test_the_tiny_model_uses_the_shared_layout(engine):
    """Otherwise the tests above would compare one layout with itself."""
    assert engine.state_class is SharedPrompt and engine.describe()["layout"] == "shared prompt"
    assert isinstance(engine, Engine)


def test_layers_with_a_window_keep_the_model_librarys_cache(tmp_path):
    """Gemma alternates windowed and full attention and caps its logits: the general layout, the model's numbers."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    path = tiny_model(tmp_path)
    torch.manual_seed(3)
    settings = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = {**settings, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 420, "sliding_window": 24}
    Gemma2ForCausalLM(Gemma2Config(**shape, eos_token_id=2, pad_token_id=0)).save_pretrained(path)
    backend = TransformersEngine(path, CONFIG)
    assert backend.describe()["layout"] == "repeated prompt"
    requests, sampling = wanted(backend.chat, tasks=4, n=2), Sampling.of(CONFIG)
    for completion, request in zip(
        backend.generate(requests, sampling), sorted(requests, key=lambda r: len(r.prompt_ids)), strict=True
    ):
        assert completion.key == request.key
        expected = plain_logprobs(backend.model, list(request.prompt_ids), list(completion.completion_ids), sampling)
        assert max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True)) < TOLERANCE


def test_a_models_own_settings_are_taken_on_demand(tmp_path):
    """Only what was left at its default, and only when asked for."""
    settings = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert with_model_settings(CONFIG, str(tmp_path)) == CONFIG
    asked = dataclasses.replace(CONFIG, generation_config=True, top_k=5)
    taken = with_model_settings(asked, str(tmp_path))
    assert (taken.temperature, taken.top_p, taken.top_k, taken.min_p) == (0.6, 0.9, 5, 0.0)
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')
    assert with_model_settings(asked, str(tmp_path)).temperature == 0.0


def test_completions_do_not_depend_on_batching_or_order(engine):
    """Tokens agree but for the rare draw within rounding of a boundary; logprobs to their last digits."""
    requests = wanted(engine.chat, tasks=16, n=4)
    whole = {(c.key, c.sample): c for c in engine.generate(requests, Sampling.of(CONFIG))}
    single = {}
    for at in range(0, len(requests), 4):
        group = requests[at : at + 4]
        single.update({(c.key, c.sample): c for c in engine.generate(group, Sampling.of(CONFIG))})
    backwards = [r for at in range(len(requests) - 4, -1, -4) for r in requests[at : at + 4]]
    reverse = {(c.key, c.sample): c for c in engine.generate(backwards, Sampling.of(CONFIG))}
    assert reverse == whole, "the order of tasks is not even visible"
    same = [key for key in whole if whole[key].completion_ids == single[key].completion_ids]
    assert len(same) >= 0.97 * len(whole)
    assert max(np.abs(np.subtract(whole[k].logprobs, single[k].logprobs)).max() for k in same) < 1e-4


def test_samples_of_equal_prompts_differ(engine):
    """Seeds come from the task's id, not from its prompt."""
    prompt = engine.chat.prompt_ids(task_row(0))
    requests = [Request(key, prompt, s, rollout_seed(0, key, 0, s)) for key in ("a", "b") for s in range(8)]
    texts = [tuple(c.completion_ids) for c in engine.generate(requests, Sampling.of(CONFIG))]
    assert len(set(texts)) >= 14


def test_a_batch_made_anew_has_the_same_bits(engine):
    """What resuming relies on."""
    requests = wanted(engine.chat)
    config = dataclasses.replace(CONFIG, batch_tokens=2048)
    engine.batch_tokens = config.batch_tokens
    batches = engine.batches(requests, Sampling.of(config))
    assert len(batches) >= 2
    assert sorted((r.key, r.sample) for b in batches for r in b) == sorted((r.key, r.sample) for r in requests)
    whole = {(c.key, c.sample): c for c in engine.generate(requests, Sampling.of(config))}
    for batch in reversed(batches):
        assert engine.batches(batch, Sampling.of(config)) == [batch]
        for completion in engine.generate(batch, Sampling.of(config)):
            assert completion == whole[completion.key, completion.sample]
    engine.batch_tokens = CONFIG.batch_tokens


def test_greedy_equals_generate(engine):
    """The model library's own loop is the oracle for the whole path."""
    requests = wanted(engine.chat, tasks=6, n=1)
    sampling = dataclasses.replace(Sampling.of(CONFIG), temperature=0.0)
    for completion, request in zip(
        engine.generate(requests, sampling), sorted(requests, key=lambda r: (len(r.prompt_ids), r.key)), strict=True
    ):
        ids = torch.tensor([list(request.prompt_ids)])
        expected = engine.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=48,
            eos_token_id=list(engine.stop_ids),
        )
        assert completion.key == request.key
        assert list(completion.completion_ids) == expected[0, ids.shape[1] :].tolist()


def test_new_weights_are_taken_in_place(folder, engine, tmp_path):
    """After the swap the engine generates as one opened on the new weights would."""
    other = tiny_model(tmp_path, seed=7)
    mine = TransformersEngine(folder, CONFIG)
    fresh = TransformersEngine(other, CONFIG)
    requests = wanted(engine.chat, tasks=3)
    expected = list(fresh.generate(requests, Sampling.of(CONFIG)))
    assert list(mine.generate(requests, Sampling.of(CONFIG))) != expected
    mine.load_weights(str(other))
    assert list(mine.generate(requests, Sampling.of(CONFIG))) == expected
    assert mine.digest == fresh.digest and mine.policy == str(other)
    mine.load_weights(TransformersEngine(folder, CONFIG).model.state_dict())
    again = list(mine.generate(requests, Sampling.of(CONFIG)))
    assert again == list(TransformersEngine(folder, CONFIG).generate(requests, Sampling.of(CONFIG)))
    with pytest.raises(ConfigError, match="not weights of this model"):
        mine.load_weights({"lm_head.weight": torch.zeros(2, 2)})


def test_completions_end_at_the_models_last_position(tmp_path):
    """A prompt near the limit leaves room for a few tokens; the engine says length."""
    backend = TransformersEngine(tiny_model(tmp_path, max_position_embeddings=140), CONFIG)
    prompt = backend.chat.prompt_ids(task_row(0))
    assert len(prompt) < backend.max_prompt_tokens == 139
    requests = [Request("a", prompt, s, rollout_seed(0, "a", 0, s)) for s in range(16)]
    sizes = [len(c.completion_ids) for c in backend.generate(requests, Sampling.of(CONFIG))]
    assert max(sizes) == 140 - len(prompt)


def test_non_finite_logits_are_rows_with_an_error(folder):
    """A broken checkpoint is named, not sampled from."""
    backend = TransformersEngine(folder, CONFIG)
    with torch.no_grad():
        backend.model.lm_head.weight[5] = float("nan")
    done = list(backend.generate(wanted(backend.chat, tasks=2), Sampling.of(CONFIG)))
    assert all(c.error == "engine: the model's logits are not finite" for c in done)


def test_uniforms_are_uniform_and_belong_to_their_seed():
    """Kolmogorov-Smirnov distance within the 0.1 % bound, no correlation over steps, and blocks join."""
    seeds = np.array([rollout_seed(0, f"t{i}", 0, i % 8) for i in range(2000)], dtype=np.uint64)
    u = token_uniforms(seeds, 0, 100)
    assert u.min() >= 0 and u.max() < 1
    ordered = np.sort(u.ravel())
    distance = np.abs(ordered - (np.arange(ordered.size) + 0.5) / ordered.size).max()
    assert distance < 1.95 / np.sqrt(ordered.size)
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01
    assert np.array_equal(u[:, 64:], token_uniforms(seeds, 64, 36))
    assert np.array_equal(u[5:6], token_uniforms(seeds[5:6], 0, 100))


def test_draws_follow_the_distribution():
    """Chi-squared of 20,000 draws against the probabilities, for each kind of truncation."""
    torch.manual_seed(0)
    logits = torch.randn(50)
    u = torch.from_numpy(token_uniforms(np.arange(20000, dtype=np.uint64), 0, 1)[:, 0])
    for knobs in SAMPLINGS.values():
        sampling = Sampling(**knobs)
        token, logp = draw(logits.expand(20000, -1), u, sampling)
        expected = log_distribution(logits[None], sampling)[0]
        assert torch.isfinite(logp).all(), "no token of probability zero is ever drawn"
        assert torch.equal(logp, expected[token])
        if sampling.temperature == 0:
            assert (token == logits.argmax()).all()
            continue
        p = expected.exp().double()
        common = p * 20000 >= 5
        counts = torch.bincount(token, minlength=50)
        chi = ((counts - p * 20000) ** 2 / (p * 20000))[common].sum()
        freedom = int(common.sum()) - 1
        assert chi < freedom + 4 * (2 * freedom) ** 0.5


def test_edges_of_the_uniform_never_draw_a_cut_token():
    """0 and the largest value below 1 land on tokens with probability."""
    logits = torch.tensor([[-torch.inf, 1.0, 0.0, -torch.inf]])
    for u in (0.0, 1 - 2.0**-53):
        token, logp = draw(logits, torch.tensor([u], dtype=torch.float64), Sampling())
        assert token.item() in (1, 2) and torch.isfinite(logp).all()


def test_truncation_equals_the_model_librarys():
    """The same kept set and the same renormalised values as its logits processors, in its order."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(1)
    logits = torch.randn(200, 64) * 3
    expected = logits / 1
    for warper in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(30), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)):
        expected = warper(None, expected)
    ours = log_distribution(logits, Sampling(temperature=0.7, top_k=30, top_p=0.9, min_p=0.02))
    assert torch.equal(torch.isinf(ours), torch.isinf(expected))
    torch.testing.assert_close(ours, expected.log_softmax(-1))


def test_prefill_slices_bound_the_padded_tokens():
    """Every prompt once, in order, no slice above the bound unless a prompt alone is."""
    lengths = [10, 3000, 3000, 3000, 9000, 20]
    slices = prefill_slices(lengths)
    assert [i for s in slices for i in range(*s.indices(len(lengths)))] == list(range(6))
    for cut in slices:
        inside = lengths[cut]
        assert len(inside) == 1 or len(inside) * max(inside) <= 8192


def test_seeds_are_63_bits_and_depend_on_every_part():
    """No two of the parts can be confused."""
    base = rollout_seed(0, "a", 1, 2)
    others = [
        rollout_seed(1, "a", 1, 2),
        rollout_seed(0, "b", 1, 2),
        rollout_seed(0, "a", 2, 2),
        rollout_seed(0, "a", 1, 3),
    ]
    assert len({base, *others, rollout_seed(0, "a\x1f1", 2, 2)}) == 6
    assert all(0 <= s < 2**63 for s in others)


def test_the_table_of_engines(folder):
    """Unknown names get the nearest one; a bad device is a config error; a folder without weights a data error."""
    assert set(ENGINES) == {"transformers", "vllm", "openai", "replay"}
    with pytest.raises(ConfigError, match="unknown backend 'transfomers'") as caught:
        open_engine("transfomers", "x", CONFIG)
    assert "transformers" in caught.value.hint
    with pytest.raises(ConfigError, match=r"not available here|not a device"):
        open_engine("transformers", str(folder), dataclasses.replace(CONFIG, device="xpuu"))


def test_a_folder_without_weights_is_named(folder, tmp_path):
    """One clear line."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(DataError, match="no causal model could be loaded"):
        open_engine("transformers", str(tmp_path), CONFIG)


def test_replay_gives_texts_by_sample(folder, tmp_path):
    """From a file by (task, sample), numbered in order without one; what is missing is an error row."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        '{"task_id": "t00000", "text": "a"}\n{"task_id": "t00000", "text": "b"}\n'
        '{"task_id": "t00001", "sample": 1, "text": "c"}\n'
    )
    backend = open_engine("replay", str(folder), dataclasses.replace(CONFIG, texts=str(texts)))
    done = {(c.key, c.sample): c for c in backend.generate(wanted(backend.chat, tasks=2, n=2), Sampling())}
    assert [done["t00000", s].text for s in (0, 1)] == ["a", "b"]
    assert done["t00001", 0].error == "replay: no text for this sample"
    assert backend.chat.text(done["t00001", 1].completion_ids) == "c"
    assert done["t00001", 1].ids_from_text and done["t00001", 1].logprobs is None
    gold = open_engine("replay", None, CONFIG)
    assert gold.chat is None
    (only,) = gold.generate([Request("x", [], 0, 0, "right")], Sampling())
    assert (only.text, list(only.completion_ids)) == ("right", [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "row 1: not valid JSON"),
        ('{"task_id": 1, "text": "a"}', "row 1: expected an object"),
        ('{"task_id": "a", "text": "a", "sample": -1}', "row 1: sample = -1"),
    ],
)
def test_bad_replay_files_are_named(tmp_path, line, message):
    """File, row and what is wrong."""
    path = tmp_path / "texts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        open_engine("replay", None, dataclasses.replace(CONFIG, texts=str(path)))
