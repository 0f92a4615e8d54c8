"""Layout, attention and head of the training step against their slow twins."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_model import tiny_model
from support.training_world import load, plain_logprobs
from transformers.models.llama import modeling_llama

from toolsample_cli.errors import ConfigError
from toolsample_cli.train import attention, fused_ops
from toolsample_cli.train import policy as policy_module
from toolsample_cli.train.attention import segment_attention, visible
from toolsample_cli.train.batch import Group, GroupOutline, Rollout, Segments, pack, pad, plan
from toolsample_cli.train.loss import LOSSES, Rule, StepSize, policy_loss
from toolsample_cli.train.policy import Policy, TokenScores
from toolsample_cli.train.schedule import Schedule


def random_groups(seed: int, sizes: list[tuple[int, list[int]]], vocabulary: int = 400) -> list[Group]:
    """Groups with given prompt and completion lengths, off-policy logprobs and random advantages."""
    random = np.random.default_rng(seed)
    groups, row = [], 0
    for prompt, lengths in sizes:
        rollouts = []
        for length in lengths:
            logprobs = random.normal(-4, 0.5, length).astype(np.float32)
            rollouts.append(Rollout(row, random.integers(0, vocabulary, length), logprobs, float(random.normal())))
            row += 1
        groups.append(Group(random.integers(0, vocabulary, prompt), tuple(rollouts)))
    return groups


def planned(groups: list[Group], budget: int) -> list[list[GroupOutline]]:
    return plan([group.outline(number) for number, group in enumerate(groups)], budget)


def cut(groups: list[Group], budget: int) -> list[list[Group]]:
    """Groups in the micro-batches that are planned for them."""
    by_row = {rollout.row: rollout for group in groups for rollout in group.rollouts}
    return [
        [Group(groups[g.number].prompt, tuple(by_row[r.row] for r in g.rollouts)) for g in part]
        for part in planned(groups, budget)
    ]


SIZES = [(9, [4, 1, 12, 3]), (2, [7, 20]), (30, [5]), (15, [1, 1, 2]), (6, [6, 9, 30, 2, 5])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def step_gradient(folder, micro_batches, *, packed: bool, loss: str = "dapo", size: StepSize = StepSize(200, 15)):
    """Loss and gradients of a step cut into given micro-batches."""
    policy = Policy(load(folder, attention.register() if packed else "sdpa"))
    if packed:
        fused_ops.lighten(policy.model)
    total = 0.0
    for members in micro_batches:
        micro = pack(members) if packed else pad(members)
        logp, entropy = policy(micro)
        result = policy_loss(logp, micro.tokens, Rule(loss=loss), size, entropy_N=entropy)
        result.total.backward()
        total += result.total.item()
    return total, {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


def close(one, other, tolerance: float = 1e-6) -> None:
    """Losses and gradients agree relative to the largest gradient."""
    assert one[0] == pytest.approx(other[0], rel=tolerance, abs=tolerance)
    assert one[1].keys() == other[1].keys()
    scale = max(g.abs().max().item() for g in one[1].values())
    for name, gradient in one[1].items():
        assert (gradient - other[1][name]).abs().max().item() <= tolerance * scale * 5, name


def test_packed_logprobs_equal_one_sequence_at_a_time(folder):
    plain = load(folder)
    groups = random_groups(0, SIZES)
    policy = Policy(load(folder, attention.register()))
    logp, entropy = policy(pack(groups))
    at = 0
    for group in groups:
        for rollout in group.rollouts:
            expected = plain_logprobs(plain, group.prompt, rollout.completion)
            np.testing.assert_allclose(logp[at : at + len(expected)].detach(), expected, atol=3e-5)
            at += len(expected)
    assert at == len(logp) == len(entropy)
    assert ((entropy > 0) & (entropy < np.log(450))).all()


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_packed_equals_padded_equals_single(folder, loss):
    """The three layouts have one loss and one gradient."""
    groups = random_groups(1, SIZES)
    packed = step_gradient(folder, [groups], packed=True, loss=loss)
    padded = step_gradient(folder, [groups], packed=False, loss=loss)
    single = [[Group(g.prompt, (r,))] for g in groups for r in g.rollouts]
    close(packed, padded)
    close(packed, step_gradient(folder, single, packed=False, loss=loss))
    close(packed, step_gradient(folder, single, packed=True, loss=loss))


@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_cutting_and_shuffling_changes_nothing(folder, budget):
    groups = random_groups(2, SIZES)
    whole = step_gradient(folder, [groups], packed=True)
    shuffled = [groups[i] for i in np.random.default_rng(0).permutation(len(groups))]
    close(whole, step_gradient(folder, cut(shuffled, budget), packed=True))


def test_gradient_checkpointing_changes_nothing(folder):
    groups = random_groups(3, SIZES)
    micro = pack(groups)
    gradients = []
    for again in (False, True):
        model = load(folder, attention.register())
        model.train()
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        policy = Policy(model)
        policy(micro)[0].sum().backward()
        gradients.append({n: p.grad.clone() for n, p in policy.named_parameters()})
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name])


sizes = st.lists(
    st.tuples(st.integers(1, 12), st.lists(st.integers(1, 14), min_size=1, max_size=5)), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 9))
def test_segment_attention_equals_a_dense_mask(table, seed):
    """On random segment tables, values and gradients, grouped heads included."""
    micro = pack(random_groups(seed, table))
    torch.manual_seed(seed)
    slots = micro.slots
    tensors = [torch.randn(1, heads, slots, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    got, _ = segment_attention(torch.nn.Module(), *tensors, scaling=0.3, segments=micro.segments)
    weight = torch.randn(got.shape, dtype=torch.float64)
    fast = torch.autograd.grad((got * weight).sum(), tensors)
    query, key, value = tensors
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    scores = scores.masked_fill(~visible(micro.segments), float("-inf"))
    slow = (scores.softmax(-1) @ value.repeat_interleave(2, 1)).transpose(1, 2)
    torch.testing.assert_close(got, slow)
    for one, other in zip(fast, torch.autograd.grad((slow * weight).sum(), tensors), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_sees_what_the_dense_mask_shows(monkeypatch):
    """The CUDA way from the same table, run uncompiled on the CPU, forward only."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setitem(attention._COMPILED, "compiled", flex_attention)
    micro = pack(random_groups(0, SIZES))
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, micro.slots, 16) for heads in (4, 2, 2))
    with torch.no_grad():
        flex = attention._flex(query, key, value, micro.segments, 0.3)
        fast, _ = segment_attention(torch.nn.Module(), query, key, value, scaling=0.3, segments=micro.segments)
    torch.testing.assert_close(flex, fast, atol=1e-5, rtol=1e-5)


def test_dropped_attention_weights_are_refused():
    micro = pack(random_groups(0, SIZES))
    tensors = [torch.randn(1, heads, micro.slots, 8) for heads in (4, 2, 2)]
    with pytest.raises(ConfigError, match="drops out"):
        segment_attention(torch.nn.Module(), *tensors, dropout=0.1, segments=micro.segments)


@pytest.mark.parametrize("shape", [(1, 7, 8), (1, 5, 2, 8)], ids=str)
def test_light_norm_has_the_written_out_norms_value_and_gradient(shape):
    torch.manual_seed(0)
    x, weight = torch.randn(shape, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (x, weight)]
    mix = torch.randn(shape, dtype=torch.float64)
    fused = fused_ops.RootMeanSquare.apply(x, weight, 1e-6)
    plain = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    torch.testing.assert_close(fused, plain)
    fast, slow = (torch.autograd.grad((mix * y).sum(), inputs) for y in (fused, plain))
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other)


def test_light_rotation_has_the_written_out_rotations_value_and_gradient():
    """Also where the two halves turn by different angles, which no model does."""
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    cos, sin, mix = torch.randn(3, 1, 5, 2, 8, dtype=torch.float64)
    fused = fused_ops.Rotation.apply(x, cos, sin)
    plain = x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin
    torch.testing.assert_close(fused, plain)
    fast, slow = (torch.autograd.grad((mix * y).sum(), x) for y in (fused, plain))
    torch.testing.assert_close(fast, slow)


def test_only_what_means_the_same_is_made_light(folder):
    """All of Qwen3's: two norms a layer, one for queries, one for keys, one at the end, and a rotation a layer."""
    model, untouched = load(folder), load(folder)
    layers = model.config.num_hidden_layers
    x = torch.randn(1, 3, model.config.hidden_size)
    before = model.model.norm(x)
    assert fused_ops.lighten(model) == (4 * layers + 1, layers)
    torch.testing.assert_close(model.model.norm(x), before)
    half = x.to(torch.bfloat16)
    assert model.model.norm(half).dtype == torch.promote_types(half.dtype, model.model.norm.weight.dtype)
    ids = torch.arange(1, 9)[None]
    torch.testing.assert_close(model(ids).logits, untouched(ids).logits)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied.to(torch.bfloat16)(ids).logits, untouched.to(torch.bfloat16)(ids).logits)

    class OtherRMSNorm(type(load(folder).model.norm)):
        def forward(self, x):
            return super().forward(x) * (1 + self.weight)

    assert fused_ops.lighten(OtherRMSNorm(8)) == (0, 0)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    """One that turns neighbours, not halves: it must stay."""
    return tuple(x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin for x in (q, k))


def test_a_rotation_of_another_kind_stays(monkeypatch):
    """One that means something else, or that may be called in another way than all others are."""

    class Attention(torch.nn.Module):
        def forward(self, q, k, cos, sin):
            return apply_rotary_pos_emb(q, k, cos, sin)

    assert fused_ops.lighten(Attention()) == (0, 0)
    plain = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", plain)
    assert fused_ops.lighten(Attention()) == (0, 1)

    def with_defaults(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
        return plain(q, k, cos, sin, unsqueeze_dim)

    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", with_defaults)
    assert fused_ops.lighten(Attention()) == (0, 0)


def test_visible_by_hand():
    """One prompt of two slots, two completions of one slot each."""
    seen = visible(Segments(((2, (1, 1)),))).int().tolist()
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]


@given(sizes, st.integers(1, 60))
def test_plan_keeps_every_rollout_within_the_budget(table, budget):
    groups = random_groups(0, table)
    bins = planned(groups, budget)
    rows = sorted(r.row for members in bins for g in members for r in g.rollouts)
    assert rows == list(range(sum(len(g.rollouts) for g in groups)))
    for members, tokens in zip(bins, cut(groups, budget), strict=True):
        slots = sum(g.slots for g in members)
        assert slots <= budget or (len(members) == 1 and len(members[0].rollouts) == 1)
        assert slots == pack(tokens).slots


def test_the_prompt_is_forwarded_once_and_last_tokens_not_at_all():
    group = random_groups(0, [(10, [4, 1, 3])])[0]
    micro = pack([group])
    assert micro.slots == 10 + 3 + 0 + 2
    assert micro.positions[0].tolist() == [*range(10), 10, 11, 12, 10, 11]
    assert micro.source_N.tolist() == [9, 10, 11, 12, 9, 9, 13, 14]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("keep", [0, 1 << 25])
@pytest.mark.parametrize("bonus", [0.0, 1.0])
def test_head_in_chunks_equals_plain_logits(monkeypatch, bonus, keep, temperature):
    """Logprob, entropy and the gradients of both, with the logits kept and recomputed, in chunks of three."""
    monkeypatch.setattr(policy_module, "KEEP", keep)
    monkeypatch.setattr(policy_module, "CHUNK", 3 * 11)
    monkeypatch.setattr(policy_module, "HOT", 3 * 11)
    torch.manual_seed(0)
    hidden = torch.randn(10, 5, requires_grad=True)
    weight = torch.randn(11, 5, requires_grad=True)
    target = torch.randint(0, 11, (10,))
    mix = torch.randn(2, 10) * torch.tensor([[1.0], [bonus]])
    logp, entropy = TokenScores.apply(hidden, weight, target, temperature, True)
    fast = torch.autograd.grad((mix[0] * logp + mix[1] * entropy).sum(), (hidden, weight))
    full = (hidden @ weight.t() / temperature).log_softmax(-1)
    plain, spread = full.gather(1, target[:, None])[:, 0], -(full.exp() * full).sum(-1)
    torch.testing.assert_close(logp, plain)
    torch.testing.assert_close(entropy, spread)
    slow = torch.autograd.grad((mix[0] * plain + mix[1] * spread).sum(), (hidden, weight))
    torch.testing.assert_close(fast, slow)


def test_temperature_divides_the_logits(folder):
    groups = random_groups(4, [(5, [6])])
    policy = Policy(load(folder, attention.register()), temperature=0.6)
    expected = plain_logprobs(load(folder), groups[0].prompt, groups[0].rollouts[0].completion, 0.6)
    np.testing.assert_allclose(policy(pack(groups))[0].detach(), expected, atol=3e-5)


def test_schedules_by_hand():
    """ToolExpander's decay is continuous in passes; the floor never lifts a smaller rate."""
    decay = Schedule(1e-3, "exponential", 0.7)
    assert decay.at(0, 7, 0) == 1e-3
    assert decay.at(2.5, 9, 20) == pytest.approx(1e-3 * 0.7**2.5)
    assert Schedule(1e-3, "exponential", 0.98, unit="step").at(9, 2.5, 20) == pytest.approx(1e-3 * 0.98**20)
    assert Schedule(1e-3, "exponential", 0.9, unit="round").at(9, 2.5, 20) == pytest.approx(1e-3 * 0.9**2.5)
    assert Schedule(1e-3, "exponential", 0.1, floor=1e-5).at(9, 9, 0) == 1e-5
    assert Schedule(1e-8, "constant", floor=1e-7).at(0, 0, 0) == 1e-8
    assert Schedule(2.0, "cosine", horizon=4).at(2, 0, 0) == pytest.approx(1.0)
    assert Schedule(2.0, "linear", horizon=4).at(1, 0, 0) == pytest.approx(1.5)
    assert Schedule(2.0, "linear", horizon=4, unit="round").at(0, 9, 0) == 0.0
    assert [Schedule(1.0, "constant", warmup=4).at(0, 0, step) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
