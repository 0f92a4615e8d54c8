"""Part of a stage's shards: what `--slice i/n` names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolsample_cli.errors import ConfigError


@dataclass(frozen=True)
class Slice:
    """Part `index` of `count` equal parts of a stage's shards (`--slice 0/3`).

    `joined`: whoever cut the work makes one manifest of the slices' at the end, so that they may go on with a whole.
    """

    index: int = 0
    count: int = 1
    joined: bool = False

    @classmethod
    def parse(cls, text: str) -> Slice:
        """`i/n` with 0 <= i < n; ConfigError otherwise."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not int(match[1]) < int(match[2]):
            raise ConfigError(f"--slice {text}: expected i/n with 0 <= i < n, as in 0/3")
        return cls(int(match[1]), int(match[2]))

    def owns(self, number: int) -> bool:
        """Whether shard `number` belongs to this slice."""
        return number % self.count == self.index

    @property
    def suffix(self) -> str:
        """What tells this slice's manifest and lock from the others'."""
        return "" if self.count == 1 else f"-{self.index}-of-{self.count}"
