"""Damaged files: one bit at a time in every kind of file that a run leaves, and rows that are not what was written."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trial_world import STAGES, pick_bits, tree
from trials import Surprise, forked, quietly

SCORE, FILTER, TRAIN = STAGES["score"], STAGES["filter"], STAGES["train"]
LOSS = [*STAGES["curriculum"], "--records", "checkpoint.records", "--mastery", "loss"]
CHECK = ["rollout", "r0/tasks", "--model", "checkpoint", "--max-new-tokens", "1", "--limit", "1", "-o", "rollouts"]


@dataclass(frozen=True)
class Victim:
    """A file of the world, the command that reads it, the output that must not change, the stage it needs."""

    file: str
    command: list[str]
    output: str
    stage: str = "train"
    drop: bool = True  # whether the output is made from nothing, or resumed
    dear: int = 1  # how many times fewer flips than elsewhere


VICTIMS: dict[str, Victim] = {
    "tasks": Victim("r0/tasks/part-00000.parquet", SCORE, "scores"),
    "rollouts": Victim("rollouts/part-00001.parquet", SCORE, "scores"),
    "scores": Victim("scores/part-00000.parquet", FILTER, "groups"),
    "groups": Victim("groups/part-00000.parquet", STAGES["curriculum"], "r1"),
    "batch": Victim("r1/batch/part-00000.parquet", [*TRAIN, "--overwrite"], "checkpoint"),
    "steps": Victim("checkpoint.steps/part-00000.parquet", ["inspect", "checkpoint.steps", "--json"], ""),
    "records": Victim("checkpoint.records/part-00000.parquet", LOSS, "r1"),
    "model weights": Victim("checkpoint/model.safetensors", CHECK, "rollouts"),
    "optimizer state": Victim("checkpoint/trainer/optimizer.safetensors", CHECK, "rollouts"),
    "trainer state": Victim("checkpoint/trainer/state.json", CHECK, "rollouts"),
    "checksums": Victim("checkpoint/trainer/checksums.json", CHECK, "rollouts"),
    "state.json": Victim("r0/state.json", STAGES["curriculum"], "r1"),
    "manifest": Victim("scores.manifest.json", FILTER, "groups"),
    "own manifest (rerun)": Victim("scores.manifest.json", SCORE, "scores", drop=False),
    "own shard (rerun)": Victim("scores/part-00001.parquet", SCORE, "scores", drop=False),
    "own weights (rerun)": Victim("checkpoint/model.safetensors", TRAIN, "checkpoint", drop=False),
    "round.json": Victim("whole/round-1/round.json", STAGES["run"], "whole", "run", drop=False),
    "plan.json": Victim("whole/plan.json", STAGES["run"], "whole", "run", drop=False),
    "summary.json": Victim("whole/summary.json", STAGES["run"], "whole", "run", drop=False),
    "answers.jsonl": Victim(
        "evaluation/answers.jsonl", STAGES["eval-bfcl"], "evaluation", "eval-bfcl", drop=False, dear=10
    ),
}
SHARDS = ("tasks", "rollouts", "scores", "groups", "batch")


def flips(world: Path, kind: str, count: int, seed: int, scratch: Path) -> Counter[str]:
    """Turn `count` bits over, one after the other; every one is refused by name or changes nothing."""
    victim = VICTIMS[kind]
    bits = pick_bits((world / victim.file).stat().st_size, count, f"{seed}/{kind}")

    def flip(file: Path, bit: int) -> None:
        data = bytearray(file.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)

    return _damaged(world, victim, kind, [(f"bit {bit}", lambda file, b=bit: flip(file, b)) for bit in bits], scratch)


def rows(world: Path, kind: str, scratch: Path) -> Counter[str]:
    """Rows doubled, dropped, shuffled, taken from another shard, infinite: the file is a sound shard of its kind."""
    import_polars = "polars"

    def rewritten(change: Callable[..., object]) -> Callable[[Path], None]:
        def write(file: Path) -> None:
            pl = __import__(import_polars)
            metadata = {k: v for k, v in pl.read_parquet_metadata(file).items() if k == "toolsample"}
            change(pl, pl.read_parquet(file), file).write_parquet(file, metadata=metadata)

        return write

    changes: dict[str, Callable[..., object]] = {
        "doubled": lambda pl, frame, file: pl.concat([frame, frame.tail(1)]),
        "dropped": lambda pl, frame, file: frame.head(frame.height - 1),
        "shuffled": lambda pl, frame, file: frame.reverse(),
        "rewritten": lambda pl, frame, file: frame,
        "infinite": lambda pl, frame, file: frame.with_columns(
            pl.lit(float("inf")).alias(name) for name, dtype in frame.schema.items() if dtype == pl.Float64
        ),
    }
    tries = [(name, rewritten(change)) for name, change in changes.items()]
    return _damaged(world, VICTIMS[kind], kind, tries, scratch)


def _damaged(
    world: Path, victim: Victim, kind: str, tries: list[tuple[str, Callable[[Path], None]]], scratch: Path
) -> Counter[str]:
    """Endings of all tries, in one child."""
    notes = scratch / "endings"

    def work() -> int:
        ends: list[str] = []
        for how, change in tries:
            folder = scratch / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            _stand(world, folder, victim)
            os.chdir(folder)
            change(folder / victim.file)
            ends.append(_ending(world, folder, victim, f"{kind}, {how}"))
        notes.write_text("\n".join(ends))
        return 0

    code = forked(work, scratch / "log")
    if code:
        raise Surprise((scratch / "log").read_text())
    return Counter(notes.read_text().splitlines())


def _stand(world: Path, folder: Path, victim: Victim) -> None:
    """Links to the world, but copies of what is damaged and, where it is resumed, of the output."""
    folder.mkdir(parents=True)
    copied = {Path(victim.file).parts[0]} | ({victim.output} if victim.output else set())
    for path in world.iterdir():
        mine = any(path.name.lstrip(".") == name or path.name.startswith(f"{name}.") for name in copied)
        own = victim.output and (path.name == victim.output or path.name.startswith(f"{victim.output}."))
        if own and victim.drop and not Path(victim.file).parts[0].startswith(victim.output):
            continue
        if not mine:
            (folder / path.name).symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name)


def _ending(world: Path, folder: Path, victim: Victim, how: str) -> str:
    before = tree(folder)
    code, words = quietly(victim.command)
    if code in (1, 2, 3) and "Traceback" not in words:
        errors = [line for line in words.splitlines() if line.startswith("toolsample: error: ")]
        if len(errors) == 1 and ("damaged" in errors[0] or Path(victim.file).name in errors[0]):
            return "refused"
    after = tree(folder)
    if code == 0 and victim.output:
        want, have = tree(world, [victim.output]), tree(folder, [victim.output])
        if victim.file.endswith(".jsonl"):  # what a damaged line held is asked again and noted at the end
            want.pop(victim.file), have.pop(victim.file)
        if want == have or (not victim.drop and after == before):
            return "no effect"
    raise Surprise(f"{how}: exit {code}\n{words}")
