"""Our scorer against the official `bfcl evaluate`: seconds and verdicts on the same answers to every question.

`python benchmarks/bfcl.py --json [--version v4] [--official PYTHON]`. Answers are synthetic, one a question: right,
almost right, wrong, malformed, empty, hostile. `--official` names the interpreter of a full installation of the
official package; without it one is made in the cache folder, which takes a minute. `ratio_vs_official` compares CPU
seconds, start-up and loading included, in one run; below 1 ours is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import bfcl_official
from support.bfcl_parity import compare


def main() -> None:
    """Print one record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--version", choices=("v4", "v3"), default="v4")
    parser.add_argument("--form", choices=("text", "dots"), default="text", help="prompting mode, or Hermes calls")
    parser.add_argument("--official", type=Path, help="interpreter with the full official package")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    python = given.official or bfcl_official.environment(given.version)
    record = {"benchmark": "bfcl", **compare(given.version, given.form, python, given.seed)}
    if given.json:
        print(json.dumps(record))
        return
    for key, value in record.items():
        print(f"{key:>38}  {value}")


if __name__ == "__main__":
    main()
