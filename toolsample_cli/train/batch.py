"""Which tokens meet in one forward pass, and where each scored token's prediction lies.

Packed layout: a group's prompt is forwarded once, its completions stand behind it, each seeing the prompt and
itself. The last token of a completion predicts nothing and is not forwarded. Padded layout: one row per rollout,
the slow twin (and the way for models that are not pure attention). Both give the same flat list of scored tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

UNUSABLE = -9000.0
"""Stored logprobs at or below this are fillers that engines write for `unknown`; such tokens are dropped."""


def usable_tokens(logprobs: np.ndarray) -> np.ndarray:
    """Which tokens can enter the loss, from their stored logprobs."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(logprobs) & (logprobs > UNUSABLE)


@dataclass(frozen=True)
class Rollout:
    """One completion: token ids [L], behaviour logprobs [L] (NaN: unknown), its row in the round and its advantage."""

    row: int
    completion: np.ndarray
    logprobs: np.ndarray
    advantage: float


@dataclass(frozen=True)
class Group:
    """Rollouts that share one prompt (ids [P])."""

    prompt: np.ndarray
    rollouts: tuple[Rollout, ...]

    def outline(self, number: int) -> GroupOutline:
        """Its outline as group `number`."""
        rollouts = (
            RolloutOutline(r.row, len(r.completion), int(usable_tokens(r.logprobs).sum()), r.advantage)
            for r in self.rollouts
        )
        return GroupOutline(number, len(self.prompt), tuple(rollouts))


@dataclass(frozen=True, slots=True)
class RolloutOutline:
    """What a step needs to know of a rollout before it is read: how many tokens it has, and how many usable ones."""

    row: int
    tokens: int
    usable: int
    advantage: float

    @property
    def slots(self) -> int:
        """Token slots it needs behind its prompt: the last token predicts nothing."""
        return max(self.tokens - 1, 0)


@dataclass(frozen=True, slots=True)
class GroupOutline:
    """The same of a group, or of a part of one; `filler` is forwarded without weight, to keep ranks in step."""

    number: int
    prompt_tokens: int
    rollouts: tuple[RolloutOutline, ...]
    filler: bool = False

    @property
    def slots(self) -> int:
        """Token slots it needs in the packed layout."""
        return self.prompt_tokens + sum(rollout.slots for rollout in self.rollouts)


class Segments:
    """The segment table of a packed micro-batch: (prompt length, (completion slots, ...)) a group, in slot order.

    `seen` counts attention calls that used it: a model that ignores the table would attend across rollouts. No
    dataclass: FSDP copies those on their way through a sharded module.
    """

    def __init__(self, groups: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
        self.groups = groups
        self.seen = 0
        self.cache: dict = {}

    @property
    def longest(self) -> int:
        """Longest prompt plus completion in slots."""
        return max(prompt + max(parts, default=0) for prompt, parts in self.groups)


@dataclass(frozen=True)
class Tokens:
    """The scored tokens of a micro-batch, flat. `row_N` numbers rollouts within the micro-batch, 0..R-1.

    `old_N` is the stored logprob (0 where unusable), `use_N` says which tokens enter the loss, `row_ids` maps the
    R rollouts to their rows in the step.
    """

    target_N: torch.Tensor
    old_N: torch.Tensor
    use_N: torch.Tensor
    row_N: torch.Tensor
    advantage_R: torch.Tensor
    row_ids: np.ndarray

    def to(self, device: torch.device) -> Tokens:
        """The same on another device."""
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in ("target_N", "old_N", "use_N", "row_N", "advantage_R")
        }
        return Tokens(**moved, row_ids=self.row_ids)


@dataclass(frozen=True)
class Pack:
    """One micro-batch: `ids` and `positions` [1, T] (packed) or [B, T] (padded), `source_N` indexes the flattened
    slots whose output predicts each scored token. `segments` is None and `mask` [B, T] set in the padded layout."""

    ids: torch.Tensor
    positions: torch.Tensor
    source_N: torch.Tensor
    tokens: Tokens
    segments: Segments | None
    mask: torch.Tensor | None = None

    @property
    def slots(self) -> int:
        """Token slots forwarded."""
        return self.ids.numel()

    def to(self, device: torch.device) -> Pack:
        """The same on another device."""
        mask = self.mask if self.mask is None else self.mask.to(device)
        return Pack(
            self.ids.to(device),
            self.positions.to(device),
            self.source_N.to(device),
            self.tokens.to(device),
            self.segments,
            mask,
        )


def plan(groups: Iterable[GroupOutline], budget: int) -> list[list[GroupOutline]]:
    """Cut groups into micro-batches of at most `budget` slots; a group too large is split, its prompt repeated.

    A single rollout longer than the budget stands alone. The order is deterministic: first fit by falling size.
    """
    pieces = [piece for group in groups for piece in _split(group, budget)]
    order = sorted(range(len(pieces)), key=lambda i: (-pieces[i].slots, i))
    bins: list[tuple[int, list[GroupOutline]]] = []
    for index in order:
        piece = pieces[index]
        for place, (used, members) in enumerate(bins):
            if used + piece.slots <= budget:
                bins[place] = (used + piece.slots, [*members, piece])
                break
        else:
            bins.append((piece.slots, [piece]))
    return [members for _, members in bins]


def _split(group: GroupOutline, budget: int) -> Iterable[GroupOutline]:
    members: list[RolloutOutline] = []
    used = group.prompt_tokens
    for rollout in group.rollouts:
        if members and used + rollout.slots > budget:
            yield replace(group, rollouts=tuple(members))
            members, used = [], group.prompt_tokens
        members.append(rollout)
        used += rollout.slots
    if members:
        yield replace(group, rollouts=tuple(members))


def pack(groups: Sequence[Group]) -> Pack:
    """Groups behind one another in a single row of slots."""
    ids, positions, sources, table = [], [], [], []
    start = 0
    for group in groups:
        length = len(group.prompt)
        ids.append(group.prompt)
        positions.append(np.arange(length))
        last_of_prompt = start + length - 1
        start += length
        parts = []
        for rollout in group.rollouts:
            count = len(rollout.completion)
            inner = max(count - 1, 0)
            if inner:
                ids.append(rollout.completion[:-1])
                positions.append(np.arange(length, length + inner))
                parts.append(inner)
            if count:
                sources.append(np.concatenate([[last_of_prompt], np.arange(start, start + inner)]))
            start += inner
        table.append((length, tuple(parts)))
    return Pack(
        ids=_longs(ids)[None],
        positions=_longs(positions)[None],
        source_N=_longs(sources),
        tokens=_tokens([rollout for group in groups for rollout in group.rollouts]),
        segments=Segments(tuple(table)),
    )


def pad(groups: Sequence[Group], pad_id: int = 0) -> Pack:
    """The same rollouts as right-padded rows, each with its own copy of the prompt."""
    rows = [(group.prompt, rollout) for group in groups for rollout in group.rollouts]
    width = max(len(prompt) + len(rollout.completion) for prompt, rollout in rows)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    sources = []
    for number, (prompt, rollout) in enumerate(rows):
        length, count = len(prompt), len(rollout.completion)
        ids[number, :length] = prompt
        ids[number, length : length + count] = rollout.completion
        mask[number, : length + count] = 1
        sources.append(number * width + np.arange(length - 1, length - 1 + count))
    positions = np.broadcast_to(np.arange(width), ids.shape).copy()
    return Pack(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        source_N=_longs(sources),
        tokens=_tokens([rollout for _, rollout in rows]),
        segments=None,
        mask=torch.from_numpy(mask),
    )


def _tokens(rollouts: Sequence[Rollout]) -> Tokens:
    use = [usable_tokens(rollout.logprobs) for rollout in rollouts]
    old = [np.where(u, rollout.logprobs, 0.0).astype(np.float32) for u, rollout in zip(use, rollouts, strict=True)]
    rows = [np.full(len(rollout.completion), number) for number, rollout in enumerate(rollouts)]
    return Tokens(
        target_N=_longs([rollout.completion for rollout in rollouts]),
        old_N=torch.from_numpy(np.concatenate([*old, np.zeros(0, np.float32)])),
        use_N=torch.from_numpy(np.concatenate([*use, np.zeros(0, bool)])),
        row_N=_longs(rows),
        advantage_R=torch.tensor([rollout.advantage for rollout in rollouts], dtype=torch.float32),
        row_ids=np.array([rollout.row for rollout in rollouts], dtype=np.int64),
    )


def _longs(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.zeros(0, np.int64)]).astype(np.int64))
