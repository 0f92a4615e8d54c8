"""Where the tokens of a round lie while it is trained on: in unnamed temporary files, read a group at a time.

What stays in memory is a few numbers per rollout, so a shard of any size trains in the memory of one micro-batch. The
files stand where `TMPDIR` says and vanish with the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from toolsample_cli.train.batch import Group, GroupOutline, Rollout, RolloutOutline, usable_tokens


class TokenFile:
    """Values of one type in a file; a place is the number of the first of them."""

    def __init__(self, dtype: type) -> None:
        self.dtype = np.dtype(dtype)
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, it lives as long as the column
        self.size = 0

    def append(self, values: np.ndarray) -> int:
        """Write at the end; returns the place."""
        place = self.size
        self.write(place, values)
        self.size += len(values)
        return place

    def write(self, place: int, values: np.ndarray) -> None:
        """Write at a place, over what is there."""
        self.file.seek(place * self.dtype.itemsize)
        rest = memoryview(np.ascontiguousarray(values, dtype=self.dtype).data).cast("B")
        while rest:
            rest = rest[self.file.write(rest) :]

    def read(self, place: int, count: int) -> np.ndarray:
        """`count` values from a place."""
        self.file.seek(place * self.dtype.itemsize)
        out = np.empty(count, self.dtype)
        rest = memoryview(out.data).cast("B")
        while rest:
            done = self.file.readinto(rest)
            if not done:
                raise OSError("a temporary file of token arrays was cut short")
            rest = rest[done:]
        return out


@dataclass
class TokenFiles:
    """What is kept of tokens; logprobs and anchors of a completion lie at the place of its tokens."""

    prompts: TokenFile = field(default_factory=lambda: TokenFile(np.int32))
    completions: TokenFile = field(default_factory=lambda: TokenFile(np.int32))
    logprobs: TokenFile = field(default_factory=lambda: TokenFile(np.float32))
    anchors: TokenFile = field(default_factory=lambda: TokenFile(np.float32))


@dataclass
class Groups:
    """G groups of R rollouts; row r of the round belongs to group g where `start_G[g] <= r < start_G[g + 1]`.

    `tokens_R` is the length of a completion, `usable_R` how many of its tokens can enter the loss; the logprobs of
    rows in `masked_R` count as unknown.
    """

    columns: TokenFiles
    start_G: np.ndarray
    prompt_place_G: np.ndarray
    prompt_tokens_G: np.ndarray
    place_R: np.ndarray
    tokens_R: np.ndarray
    usable_R: np.ndarray
    masked_R: np.ndarray
    advantage_R: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt_place_G)

    def __iter__(self) -> Iterator[Group]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Group:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.load(self.outline(number))

    def outline(self, number: int) -> GroupOutline:
        """What planning needs to know of a group."""
        rows = range(int(self.start_G[number]), int(self.start_G[number + 1]))
        return GroupOutline(
            number,
            int(self.prompt_tokens_G[number]),
            tuple(
                RolloutOutline(row, int(self.tokens_R[row]), int(self.usable_R[row]), float(self.advantage_R[row]))
                for row in rows
            ),
        )

    def outlines(self) -> Iterator[GroupOutline]:
        """All of them, in order."""
        return map(self.outline, range(len(self)))

    def load(self, outline: GroupOutline) -> Group:
        """The arrays of a group, or of the part of it that the outline names."""
        number = outline.number
        prompt = self.columns.prompts.read(int(self.prompt_place_G[number]), outline.prompt_tokens)
        return Group(prompt, tuple(self._rollout(rollout) for rollout in outline.rollouts))

    def _rollout(self, outline: RolloutOutline) -> Rollout:
        place, count = int(self.place_R[outline.row]), outline.tokens
        logprobs = np.full(count, np.nan, np.float32)
        if not self.masked_R[outline.row]:
            logprobs = self.columns.logprobs.read(place, count)
        return Rollout(outline.row, self.columns.completions.read(place, count), logprobs, outline.advantage)

    def anchor(self, row: int) -> np.ndarray:
        """What `set_anchor` left for a row."""
        return self.columns.anchors.read(int(self.place_R[row]), int(self.tokens_R[row]))

    def set_anchor(self, row: int, logprobs: np.ndarray) -> None:
        """Keep the logprobs of a row under the policy at the start of the round."""
        self.columns.anchors.write(int(self.place_R[row]), logprobs)

    def take_anchor(self, row: int) -> None:
        """For a row that came without logprobs: those at the start of the round are its own."""
        logprobs = self.anchor(row)
        self.columns.logprobs.write(int(self.place_R[row]), logprobs)
        self.usable_R[row] = 0 if self.masked_R[row] else int(usable_tokens(logprobs).sum())
