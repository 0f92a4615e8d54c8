"""How a policy is asked: what rollouts and checkpoints record of it, so that an evaluation asks alike."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import polars as pl

from toolsample_cli.json_types import Row
from toolsample_cli.shards.reading import Folder

SLOT = "{tools}"
_TOOLS = re.compile(r"^1\. Name: .*?(?=\n\n\S|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Prompting:
    """The protocol of all tasks, whether self-made examples were asked for, and RLLA's system prompt with SLOT."""

    protocol: str
    self_examples: bool = False
    system: str | None = None

    def record(self) -> Row:
        """The same as plain JSON values."""
        return asdict(self)


def prompting_of(tasks: Folder, self_examples: bool) -> Prompting | None:
    """How these tasks ask; None when they are not all of one protocol."""
    protocols: set[str] = set()
    system = None
    for _, frame in tasks.frames(["protocol", "messages_json"]):
        protocols.update(frame["protocol"].unique())
        if system is None:
            system = rlla_system(frame)
    return Prompting(protocols.pop(), self_examples, system) if len(protocols) == 1 else None


def rlla_system(tasks: pl.DataFrame) -> str | None:
    """The first RLLA system prompt of these tasks with SLOT in place of its tools, None when they hold none."""
    for text in tasks.filter(pl.col("protocol") == "rlla")["messages_json"]:
        messages = json.loads(text)
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
        if _TOOLS.search(system):
            return _TOOLS.sub(lambda _: SLOT, system, count=1)
    return None


class _Config(msgspec.Struct):
    prompting: Prompting | None = None


class _State(msgspec.Struct):
    config: _Config


def trained_prompting(model: str) -> Prompting | None:
    """How the rollouts of a checkpoint's last round were asked; None for a model that records nothing of it."""
    try:
        state = (Path(model) / "trainer" / "state.json").read_bytes()
        return msgspec.json.decode(state, type=_State).config.prompting
    except (OSError, msgspec.DecodeError):
        return None
