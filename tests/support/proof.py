"""Drives the product by its command line alone and writes down all it made, to show that two checkouts do the same.

    python tests/support/proof.py --out FOLDER [--package CHECKOUT] [--data DIR] [--rlla test.parquet] [--bfcl]
    python tests/support/proof.py --compare A.json B.json     prints the differences; exit code 1 if there are any

FOLDER/work holds what the commands made; FOLDER/proof.json their exit codes and words, and of every file its content or
digests: of Parquet one a column, the lineage record and one of the bytes; of weights one a tensor. Wall times, paths of
this machine and versions of other packages are left out. The interpreter that runs this file runs the product.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import proof_commands as typed
from proof_record import content, differences, sha

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1", "TERM": "dumb",
    "LC_ALL": "C.UTF-8",
}  # fmt: skip
GIVEN = ("raw", "policy", "data")  # what the commands read and did not make


class Proof:
    """The work folder, the checkout under test, and what its commands said so far."""

    def __init__(self, work: Path, package: Path) -> None:
        self.work, self.package = work, package
        self.said: dict[str, Any] = {}
        self.seconds = 0.0
        self.unexpected: list[str] = []
        kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "PYTHONHASHSEED")}
        self.environment = {**kept, **ENVIRONMENT, "PYTHONPATH": str(package)}
        places = {work: "WORK", package: "PACKAGE", Path(sys.prefix): "VENV", Path.home(): "HOME"}
        self.places = sorted(((str(place), name) for place, name in places.items()), key=lambda pair: -len(pair[0]))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this interpreter in the work folder."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.work, env=self.environment, capture_output=True, encoding="utf-8", check=False,
        )  # fmt: skip

    def cli(self, lines: str, *, fine: bool = True) -> None:
        """Carry out commands, one a line; `fine`: each should end with 0, or less is proved than it seems."""
        for line in filter(None, lines.replace("\\\n", " ").split("\n")):
            line = " ".join(line.split())
            began = time.monotonic()
            done = self.python("-m", "toolsample_cli", *shlex.split(line))
            self.seconds += time.monotonic() - began
            entry = {"code": done.returncode, "out": self.words(done.stdout), "err": self.words(done.stderr)}
            again = sum(key.partition(" #")[0] == line for key in self.said)
            self.said[f"{line} #{again + 1}" if again else line] = entry
            if fine and done.returncode:
                self.unexpected.append(f"{line}: {done.returncode} {done.stderr[-300:]}")

    def words(self, text: str) -> list[str]:
        """Lines without what may vary: seconds, rates, places of this machine."""
        for place, name in self.places:
            text = text.replace(place, name)
        text = re.sub(r"\b\d+(\.\d+)?(e-?\d+)? s\b", "# s", text)
        text = re.sub(r'"seconds": [\d.e-]+', '"seconds": 0', text)
        progress = re.compile(r"[\w-]+: [\d,]+ (of [\d,]+ )?rows, [\d,.e+-]+/s.*|eval-bfcl: installing .*")
        return [line for line in text.splitlines() if not progress.fullmatch(line)]

    # ---- sections ----------------------------------------------------------------------------------------------------

    def imports(self) -> None:
        """Every raw fixture, every protocol, rejects; and whatever --data names."""
        for file in sorted((self.work / "raw").iterdir()):
            if file.suffix in (".json", ".jsonl", ".parquet") and file.stem not in ("broken", "binary", "foreign"):
                self.cli(f"import raw/{file.name} -o import/{file.name}")
        self.cli(typed.IMPORTS)
        data = self.work / "data"
        for file in sorted(file for file in data.rglob("*.*") if file.suffix in (".json", ".jsonl", ".parquet")):
            name = file.relative_to(data)
            self.cli(f"import data/{name} -o data-tasks/{'-'.join(name.parts)}", fine=False)

    def hard_cases(self) -> None:
        """Completions as models write them, in every protocol, under every reward and reading."""
        cases = tomllib.loads((self.package / "fixtures" / "hard_cases.toml").read_text(encoding="utf-8"))
        tools = [_tool(name, json.loads(schema)) for name, schema in cases["tools"].items()]
        for protocol in typed.PROTOCOLS.split():
            mine = [(f"case {at}", case) for at, case in enumerate(cases["case"]) if case["protocol"] == protocol]
            golds = [(name, json.loads(cases["gold"][case["gold"]])) for name, case in mine]
            rows = [{"id": name, "messages": [_asked(name), _answered(gold)], "tools": tools} for name, gold in golds]
            self.write(f"raw/hard/{protocol}.jsonl", rows)
            here = f"hard/{protocol}"
            self.cli(f"import raw/hard/{protocol}.jsonl --format messages --protocol {protocol} -o {here}/tasks")
            ids = {json.loads(extra)["id"]: task for task, extra in self.tasks(f"{here}/tasks", "extra_json")}
            texts = [
                {"task_id": ids[name], "text": case["text"].removeprefix("\n")} for name, case in mine if name in ids
            ]
            self.write(f"raw/hard/{protocol}.texts.jsonl", texts)
            self.cli(
                f"rollout {here}/tasks --backend replay --texts raw/hard/{protocol}.texts.jsonl -n 1 -o {here}/rollouts"
            )
            self.cli(f"score {here}/tasks {here}/rollouts --rewards all -o {here}/strict")
            self.cli(f"score {here}/tasks {here}/rollouts --rewards all --reading lenient -o {here}/lenient")
            self.cli(f"score {here}/tasks {here}/rollouts --protocol auto --lift all --values json -o {here}/auto")

    def rounds(self) -> None:
        """Two rounds of the small world; every method, rule and loss beside them; a run of two arms."""
        self.cli(typed.ROUNDS)
        for at, settings in enumerate(typed.SCORES.strip().splitlines()):
            if "ids.txt" in settings:
                wanted = [task for task, _ in self.tasks("r0/tasks", "source")][::3]
                (self.work / "raw" / "ids.txt").write_text("\n".join(wanted), encoding="utf-8")
            self.cli(f"score r0/tasks r1/rollouts {settings} -o s{at}/scores")
        for method in typed.METHODS.split():
            more = "--metric reward --kappa 0.1 --drop-flat"
            self.cli(f"filter r1/scores --method {method} -o f/{method}-1")
            self.cli(f"filter r2/scores --history f/{method}-1 --method {method} {more} -o f/{method}-2")
        one = "--tasks r0/tasks --groups r1/groups --scores r1/scores --rollouts r1/rollouts --state r0/state.json"
        for at, settings in enumerate(typed.CURRICULA.strip().splitlines()):
            self.cli(f"curriculum corpus {one} --hard-after 4 --tasks-per-round 24 {settings} -o c{at}")
        for at, settings in enumerate(typed.TRAININGS.strip().splitlines()):
            self.cli(f"train r1/rollouts r1/batch --model policy --lr 2e-4 {settings} -o t{at}/checkpoint")
        (self.work / "recipe.toml").write_text(typed.RECIPE, encoding="utf-8")
        (self.work / "demo").mkdir()
        for number in range(3):  # the names that examples/round.sh gives them
            (self.work / "demo" / f"round-{number}").symlink_to(self.work / f"r{number}")
        self.cli(typed.RUN)

    def rlla(self) -> None:
        """ToolRL's own test rows: gold answers, and spoilt ones of which every third task has no right one."""
        self.cli(
            "import raw/rlla_test.parquet -o rlla/tasks --split train\nrollout rlla/tasks --backend replay -o rlla/gold"
        )
        golds = self.tasks("rlla/tasks", "gold_text")
        rows = [
            {"task_id": task, "sample": sample, "text": _spoilt(text, sample + (at % 3 == 0 or at % 2))}
            for at, (task, text) in enumerate(golds)
            for sample in range(5)
        ]
        self.write("raw/spoilt.jsonl", rows)
        self.cli(typed.RLLA)

    def looks(self) -> None:
        """`inspect` of every kind of folder, in words and as JSON, and of single records."""
        first = self.tasks("r0/tasks", "source")[0][0]
        self.cli(f"inspect r1/rollouts --id {first}/1/2\n{typed.LOOKS}")

    def bad(self) -> None:
        """What a user may do wrong: the words, the exit code, and that nothing is left half-written."""
        (self.work / "lost").mkdir()
        (self.work / "lost" / "part-00000.parquet").touch()
        shutil.copytree(self.work / "r1" / "scores", self.work / "cut")
        part = self.work / "cut" / "part-00000.parquet"
        part.write_bytes(part.read_bytes()[:-100])
        shutil.copytree(self.work / "r1" / "scores", self.work / "unfinished" / "scores")
        shutil.copytree(self.work / "policy", self.work / "torn")
        weights = self.work / "torn" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        (self.work / "typo.toml").write_text("[filter]\nmethd = 'rds'\n", encoding="utf-8")
        self.cli(typed.BAD, fine=False)
        self.cli("\n".join(f"{command} --help" for command in typed.STAGES.split()))
        (self.work / "s1" / "scores.manifest.json").unlink()  # as after a kill: the stage goes on with what stands
        self.cli("score r0/tasks r1/rollouts --values bfcl --match optimal -o s1/scores")

    def bfcl(self) -> None:
        """Official and own questions, asked of the small policy; comparison, other protocols and releases."""
        self.cli(typed.BFCL)
        self.cli(typed.BAD_BFCL, fine=False)

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def prepare(self, data: Path | None, rlla: Path | None) -> None:
        """Copies of all inputs, under names that no checkout decides."""
        fixtures = self.package / "fixtures"
        shutil.copytree(fixtures / "raw", self.work / "raw")
        shutil.copytree(fixtures / "policy", self.work / "policy")
        made = self.python(str(fixtures / "make_tasks.py"), "raw/world", "--n", "120", "--heldout", "24")
        if made.returncode:
            raise SystemExit(made.stderr)
        if data:
            shutil.copytree(data, self.work / "data")
        if rlla:
            shutil.copyfile(rlla, self.work / "raw" / "rlla_test.parquet")
        lines = (self.work / "raw" / "messages.jsonl").read_text(encoding="utf-8").splitlines()
        (self.work / "raw" / "broken.jsonl").write_text("\n".join([*lines, lines[0][:-30]]), encoding="utf-8")
        (self.work / "raw" / "binary.jsonl").write_bytes(b"\xff\xfe\x00garbage")
        (self.work / "raw" / "own.py").write_text(typed.OWN, encoding="utf-8")
        self.write("raw/foreign.jsonl", [{"task_id": "nobody", "text": "a"}])

    def write(self, name: str, rows: list[dict[str, Any]]) -> None:
        """JSON lines."""
        place = self.work / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def tasks(self, folder: str, column: str) -> list[tuple[str, Any]]:
        """(task_id, value) of a folder of tasks."""
        return pl.read_parquet(self.work / folder / "*.parquet").select("task_id", column).rows()

    # ---- results -----------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Commands and files, and digests of what was given."""
        made: dict[str, Any] = {}
        given: dict[str, str] = {}
        for file in sorted(self.work.rglob("*")):
            name = str(file.relative_to(self.work))
            if file.is_file() and name.split("/")[0] in GIVEN:
                given[name] = sha(file.read_bytes())
            elif file.is_file():
                made[name] = content(file, self.words)
            elif not any(file.iterdir()):
                made[name] = "empty folder"
        return {"commands": self.said, "files": made, "inputs": given}


def _tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


def _asked(name: str) -> dict[str, Any]:
    return {"role": "user", "content": f"Do {name}."}


def _answered(calls: list[dict[str, Any]]) -> dict[str, Any]:
    if not calls:
        return {"role": "assistant", "content": "I cannot do that."}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": call} for call in calls]}


def _spoilt(text: str, way: int) -> str:
    ways = (
        text,
        text.replace('": "', '": "not ', 1) + " ",
        text[: len(text) // 2],
        "I cannot help with that.",
        text.replace('"name"', '"tool"', 1),
        text.replace("</tool_call>", "", 1),
        text + "\n" + text,
    )
    return ways[way % len(ways)]


def main() -> None:
    """Prove, or compare two proofs."""
    parser = argparse.ArgumentParser(description="write down all that the product makes of fixed inputs")
    parser.add_argument("--out", type=Path, help="folder to write proof.json and work/ to; work/ is made anew")
    parser.add_argument("--package", type=Path, default=Path(), help="checkout to run (default: the current folder)")
    parser.add_argument("--data", type=Path, help="folder of public data sets, to import as well")
    parser.add_argument("--rlla", type=Path, help="ToolRL's test.parquet, to take through the stages")
    parser.add_argument("--bfcl", action="store_true", help="eval-bfcl too; its scorer is installed on first use")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="print how two proofs differ")
    args = parser.parse_args()
    if args.compare:
        one, two = (json.loads(path.read_text(encoding="utf-8")) for path in args.compare)
        lines = list(differences(one, two))
        same = f"no difference: {len(one['commands'])} commands, {len(one['files'])} files"
        print("\n".join(lines) if lines else same)
        raise SystemExit(1 if lines else 0)
    if not args.out:
        parser.error("--out or --compare is needed")
    prove(args)


def prove(args: argparse.Namespace) -> None:
    """Carry everything out and write proof.json; exit code 1 when a command failed that should not."""
    work = (args.out / "work").resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    proof = Proof(work, args.package.resolve())
    where = proof.python("-c", "import toolsample_cli; print(toolsample_cli.__file__)").stdout.strip()
    print(f"proving {where}", flush=True)
    if not Path(where).is_relative_to(proof.package):
        raise SystemExit(f"that is not in {proof.package}")
    proof.prepare(args.data, args.rlla)
    sections = [proof.imports, proof.hard_cases, proof.rounds, *([proof.rlla] if args.rlla else []), proof.looks]
    for section in [*sections, proof.bad, *([proof.bfcl] if args.bfcl else [])]:
        section()
        print(f"{section.__name__}: {len(proof.said)} commands, {proof.seconds:.0f} s so far", flush=True)
    found = proof.record()
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    (args.out / "proof.json").write_text(text + "\n", encoding="utf-8")
    codes = Counter(entry["code"] for entry in proof.said.values())
    print(f"{len(found['commands'])} commands (exit codes {dict(codes)}), {len(found['files'])} files -> {args.out}")
    print("\n".join(f"UNEXPECTED {line}" for line in proof.unexpected), end="")
    raise SystemExit(1 if proof.unexpected else 0)


if __name__ == "__main__":
    main()
