"""Kills, flips, full disks, odd rows and races against every stage: `make campaign`. Ends at the first surprise.

`python tests/trust/campaign.py [--short] [--seed N] [--work DIR]`. It counts and prints one table; the exit code is 1
when something was lost, taken as sound though it was not, or left lying about.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import damage  # noqa: E402
import trials  # noqa: E402
from trial_world import STAGES, build  # noqa: E402


@dataclass
class Table:
    """What was tried, how often, and how it ended."""

    lines: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    def add(self, what: str, where: str, ending: str, count: int = 1) -> None:
        """Count one ending."""
        line = self.lines.setdefault((what, where), {})
        line[ending] = line.get(ending, 0) + count

    def show(self, seconds: float) -> str:
        """As text, a line per trial and place."""
        rows = [f"{'trial':<12}{'where':<26}{'tried':>7}{'refused':>9}{'mended':>8}{'no effect':>11}"]
        for (what, where), line in self.lines.items():
            cells = [line.get(ending, 0) for ending in ("refused", "mended", "no effect")]
            rows.append(f"{what:<12}{where:<26}{sum(cells):>7}{cells[0]:>9}{cells[1]:>8}{cells[2]:>11}")
        total = sum(sum(line.values()) for line in self.lines.values())
        return "\n".join([*rows, f"{total} trials, no surprise, {seconds:.0f} s"])


@dataclass(frozen=True)
class Size:
    """How much is tried: kills per stage, flips per kind of file, full disks and races per stage."""

    kills: int
    flips: int
    disks: int
    races: int
    stages: tuple[str, ...] = tuple(STAGES)
    killed: tuple[str, ...] = tuple(STAGES)


UP_TO_TRAIN = ("rollout", "score", "filter", "curriculum", "train")
SHORT = Size(kills=1, flips=2, disks=1, races=0, stages=UP_TO_TRAIN, killed=("score", "curriculum", "train"))
LONG = Size(kills=40, flips=200, disks=10, races=3)


def campaign(size: Size, work: Path, seed: int) -> Table:
    """All trials; raises Surprise at the first that ends otherwise than it must."""
    preload()
    table, world, scratch = Table(), work / "world", work / "scratch"
    scratch.mkdir(parents=True)
    code = trials.forked(lambda: build(world, list(size.stages)) or 0, scratch / "log")
    if code:
        raise trials.Surprise(f"the world could not be made: exit {code}\n{(scratch / 'log').read_text()}")
    for kind, victim in damage.VICTIMS.items():
        if victim.stage in size.stages and size.flips:
            ends = damage.flips(world, kind, max(1, size.flips // victim.dear), seed, scratch)
            for ending, count in ends.items():
                table.add("bit flip", kind, ending, count)
    for kind in damage.SHARDS if size.flips else ():
        for ending, count in damage.rows(world, kind, scratch).items():
            table.add("odd rows", kind, ending, count)
    for stage in (stage for stage in size.stages if stage in size.killed):
        kills_and_disks(size, world, scratch, stage, random.Random(f"{seed}/{stage}"), table)
    return table


def kills_and_disks(size: Size, world: Path, scratch: Path, stage: str, draw: random.Random, table: Table) -> None:
    """Half of the kills at operations, half at moments; then full disks and races."""
    count, seconds = trials.operations(world, stage, scratch)
    moments = -(-size.kills // 2)
    every = sorted(draw.sample(range(1, count + 1), min(moments, count)))
    for at in every:
        trials.kill_at(world, stage, at, scratch)
    table.add("kill", f"{stage} (at operations)", "mended", len(every))
    for _ in range(size.kills - moments):
        trials.kill_after(world, stage, draw.uniform(0.0, seconds), scratch)
    if size.kills > moments:
        table.add("kill", f"{stage} (at moments)", "mended", size.kills - moments)
    for at in sorted(draw.sample(range(1, count + 1), min(size.disks, count))):
        trials.full_disk(world, stage, at, scratch)
        table.add("full disk", stage, "mended")
    for _ in range(size.races):
        trials.race(world, stage, scratch)
        table.add("race", stage, "mended")


def preload() -> None:
    """Import what the children need, so that each starts at once; nothing may run yet, for threads die in a fork."""
    import toolsample_cli.bfcl.stage
    import toolsample_cli.cli.app
    import toolsample_cli.experiment.runner
    import toolsample_cli.importing.stage
    import toolsample_cli.rollout.engines.transformers  # noqa: F401


def main() -> int:
    """Parse the command line, try, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few trials of each kind")
    parser.add_argument("--seed", type=int, default=0, help="which moments and bits")
    parser.add_argument("--work", type=Path, help="folder for the trials, kept [default: a temporary one]")
    parser.add_argument("--stages", help="kill and starve only these, comma-separated, and flip no bits; or none")
    given = parser.parse_args()
    work = Path(given.work or tempfile.mkdtemp(prefix="campaign-")).resolve()
    began = time.monotonic()
    try:
        size = SHORT if given.short else LONG
        if given.stages:
            only = given.stages != "none"
            size = replace(size, flips=0 if only else size.flips, killed=tuple(given.stages.split(",")) if only else ())
        table = campaign(size, work, given.seed)
    except trials.Surprise as surprise:
        print(f"SURPRISE: {surprise}", file=sys.stderr)
        print(f"the files are in {work}", file=sys.stderr)
        return 1
    print(table.show(time.monotonic() - began))
    if given.work is None:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
