"""Turns a recipe into a plan: which runs (arm x seed), with which config for every stage.

Pure: the same recipe and selection give the same plan, and `--dry-run` prints it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolsample_cli.config import STAGES, RunConfig
from toolsample_cli.config.settings import as_record, nearest, resolve
from toolsample_cli.errors import ConfigError

SEEDED = ("rollout", "curriculum", "train")
"""Stages whose `seed` is the run's seed unless the recipe sets it."""


@dataclass(frozen=True)
class Plan:
    """One run: its arm, seed, folder below the output, and a config for each stage."""

    arm: str
    seed: int
    folder: str
    configs: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> RunConfig:
        """The run's own settings."""
        return self.configs["run"]

    @property
    def heldout(self) -> list[Path]:
        """Folders of held-out tasks."""
        return [Path(part.strip()) for part in self.run.heldout.split(",") if part.strip()]

    def record(self) -> dict[str, Any]:
        """The resolved plan as plain values."""
        return {
            "arm": self.arm,
            "seed": self.seed,
            "folder": self.folder,
            **{stage: as_record(config) for stage, config in self.configs.items()},
        }


def plans(recipe: dict[str, Any], flags: dict[str, Any], arms: list[str], seeds: list[int]) -> list[Plan]:
    """Every (arm, seed) the recipe asks for, arms in file order, seeds in the order given.

    `flags` are typed values for the [run] table; `arms` and `seeds` select (empty: all). Without arms the
    one run lies directly in the output folder, or in seed-N when there are several seeds.
    """
    tables = {name: table for name, table in recipe.items() if name != "arms"}
    named = recipe.get("arms", {})
    for arm in arms:
        if arm not in named:
            raise ConfigError(f"no arm {arm!r} in the recipe", hint=nearest(arm, named) or f"arms: {', '.join(named)}")
    for arm in named:
        if not re.fullmatch(r"\w[\w.+=,@-]*", arm):
            hint = "an arm's name is that of its folder: letters, digits and _ . + = , @ -"
            raise ConfigError(f"arm {arm!r}: not a name", hint=hint)
    result = []
    for arm in arms or list(named) or [""]:
        merged = _merge(tables, named.get(arm, {}))
        run = resolve(RunConfig, flags, merged.get("run"))
        chosen = seeds or parse_seeds(run.seeds)
        for seed in chosen:
            parts = [*([arm] if arm else []), *([f"seed-{seed}"] if len(parse_seeds(run.seeds)) > 1 or arm else [])]
            result.append(Plan(arm, seed, "/".join(parts), _configs(merged, run, seed)))
    return result


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` as integers; ConfigError otherwise."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"seeds = {text!r}: expected numbers separated by commas") from None


def _merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    return {stage: {**base.get(stage, {}), **override.get(stage, {})} for stage in {**base, **override}}


def _configs(tables: dict[str, Any], run: RunConfig, seed: int) -> dict[str, Any]:
    configs: dict[str, Any] = {"run": run}
    for stage in ("rollout", "score", "filter", "curriculum", "train"):
        table = dict(tables.get(stage, {}))
        if stage in SEEDED:
            table.setdefault("seed", seed)
        configs[stage] = resolve(STAGES[stage], {}, table)
    return configs
