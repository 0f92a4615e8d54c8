"""The official package as its authors run it, to be compared with: a full environment, results in, verdicts out.

`environment(version)` builds it once below the cache folder (500 MB and more; only slow tests and benchmarks ask).
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from toolsample_cli.bfcl import environment as small
from toolsample_cli.bfcl.categories import PREFIX
from toolsample_cli.bfcl.official_files import REGISTERED, folder

LEFT_OUT = ("sentence-transformers", "faiss-cpu")
"""For the vector memory's back-end only, which evaluation never loads; they would bring torch along."""


def environment(version: str) -> Path:
    """Interpreter of a full environment of a release: everything it declares, and soundfile, which it forgets."""
    place = small.cache_folder() / f"bfcl-full-{small.RELEASES[version]}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = place / "bin" / "python"
    if not (place / "whole").exists():
        listing = "import importlib.metadata as m; print('\\n'.join(m.requires('bfcl-eval')))"
        command = [str(small.provide(version).python), "-c", listing]
        declared = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        wanted = [r for r in declared if "extra ==" not in r and not r.lower().replace("_", "-").startswith(LEFT_OUT)]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted, "soundfile"], check=True)
        subprocess.run([*pip, "--no-deps", f"bfcl-eval=={small.RELEASES[version]}"], check=True)
        (place / "whole").touch()
    return python


def write_results(root: Path, version: str, form: str, results: dict[str, dict[str, object]]) -> None:
    """Category -> id -> `result`, as the official `generate` would have left them."""
    for category, rows in results.items():
        place = folder(root, "result", version, form, category)
        place.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"id": entry_id, "result": result}) + "\n" for entry_id, result in rows.items())
        (place / f"{PREFIX[version]}_{category}_result.json").write_text("".join(lines), encoding="ascii")


def evaluate(python: Path, root: Path, form: str) -> str:
    """Run the official `bfcl evaluate` on everything below root; returns what it printed."""
    keys = {"OPENAI_API_KEY": "none"}  # a client is built although nothing is asked
    done = subprocess.run(
        [str(python.parent / "bfcl"), "evaluate", "--model", REGISTERED[form]],
        env={**os.environ, **keys, "BFCL_PROJECT_ROOT": str(root), "OMP_NUM_THREADS": "1"},
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"bfcl evaluate failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def verdicts(root: Path, version: str, form: str, results: dict[str, dict[str, object]]) -> dict[str, bool]:
    """Id -> verdict from the score files, which list the failed entries."""
    found = {}
    for category, rows in results.items():
        name = f"{PREFIX[version]}_{category}_score.json"
        head, *failed = (json.loads(line) for line in (folder(root, "score", version, form, category) / name).open())
        wrong = {row["id"] for row in failed}
        assert head["total_count"] == len(rows)
        assert head["correct_count"] == len(rows) - len(wrong)
        found |= {entry_id: entry_id not in wrong for entry_id in rows}
    return found


def overall(root: Path) -> float:
    """The printed total in percent."""
    with (root / "score" / "data_overall.csv").open(encoding="utf-8") as handle:
        (row,) = csv.DictReader(handle)
    return float(re.sub("%", "", row["Overall Acc"]))
