"""`toolsample run` beside the same rounds typed as single commands: same bytes, less time.

    python benchmarks/run.py [--rounds 4] [--json]

Both run in one go, one after the other, from the small world and the committed policy with the demo's recipe.
`ratio_vs_commands` is wall time of `run` over wall time of the looped examples/round.sh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "examples" / "dscl-small.toml"


def call(*command: str, cwd: Path) -> None:
    """Run a command quietly; its errors end the benchmark."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")


def timed(function, *arguments) -> float:
    """Wall seconds of one call."""
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def by_commands(place: Path, policy: str, rounds: int) -> None:
    """The rounds as a user types them."""
    model = policy
    for number in range(1, rounds + 1):
        call("bash", str(ROOT / "examples" / "round.sh"), "run", str(number), model, str(RECIPE), cwd=place)
        model = f"run/round-{number}/checkpoint"


def by_run(place: Path, policy: str, rounds: int) -> None:
    """The same rounds in one process."""
    recipe = place / "recipe.toml"
    table = f'\n[run]\ncorpus = "run/corpus"\nmodel = "{policy}"\nrounds = {rounds}\nkeep_checkpoints = 0\n'
    recipe.write_text(RECIPE.read_text(encoding="utf-8") + table, encoding="utf-8")
    call("toolsample", "run", "recipe.toml", "-o", "run", cwd=place)


def shards(place: Path) -> dict[str, str]:
    """Digest of every shard, state and weight file of the rounds."""
    kinds = ("*.parquet", "state.json", "*.safetensors")
    files = [file for kind in kinds for file in (place / "run").rglob(kind) if "round-" in str(file)]
    return {str(file.relative_to(place)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--policy", type=Path, default=ROOT / "fixtures" / "policy")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch, name) for name in ("commands", "run")]
        for place in places:
            place.mkdir()
            call(sys.executable, str(ROOT / "fixtures" / "make_tasks.py"), "raw", cwd=place)
            call("toolsample", "import", "raw/train.jsonl", "-o", "run/corpus", cwd=place)
        ways = zip((by_commands, by_run), places, strict=True)
        seconds = [timed(way, place, str(arguments.policy.resolve()), arguments.rounds) for way, place in ways]
        found = [shards(place) for place in places]
    differing = sorted(name for name in {*found[0], *found[1]} if found[0].get(name) != found[1].get(name))
    result = {
        "benchmark": "run",
        "rounds": arguments.rounds,
        "identical": not differing,
        "files": len(found[0]),
        "differing": differing[:5],
        "seconds_commands": round(seconds[0], 2),
        "seconds_run": round(seconds[1], 2),
        "ratio_vs_commands": round(seconds[1] / seconds[0], 3),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:20} {value}")


if __name__ == "__main__":
    main()
