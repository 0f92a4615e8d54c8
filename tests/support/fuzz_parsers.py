"""Fuzz target, outside the default tests: no mutated completion makes a parser raise or linger.

    python tests/fuzz_parsers.py [--count 1000000] [--seed 0] [--json]

Mutates the hard cases (cut, splice, repeat, swap, flip, wrap, escape) and scores each by a protocol drawn at random and
by `auto`. Reports the count, statuses, the slowest completion and the time of texts ten times as long.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))
import hard_cases

from toolsample_cli.config import ScoreConfig
from toolsample_cli.score.scorer import Rules, Scorer
from toolsample_cli.toolcalls.protocols import PROTOCOLS

BITS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<response>",
    "</response>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "```json\n",
    "```",
    "<function=f>",
    "</function>",
    "<parameter=x>",
    "</parameter>",
    "<|python_tag|>",
    '{"name": "find", ',
    '"parameters"',
    '"arguments"',
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    '"',
    "'",
    "\\",
    ",",
    ":",
    ";",
    "\n",
    " ",
    "\x00",
    "\ud800",
    "é",
    "\u2028",
    "null",
    "None",
    "True",
    "NaN",
    "1e999",
    "-",
    "0x1",
    "9" * 50,
    "{" * 150,
    "[" * 150,
    "find(city=",
    "=",
    "\\u00",
    "\\x",
    "<",
]
LIMIT = 0.25
"""Seconds of CPU that one completion may take; typical is a tenth of a millisecond."""


def mutated(text: str, other: str, pick: random.Random) -> str:
    for _ in range(pick.choice((1, 1, 2, 4))):
        at, end = sorted((pick.randrange(len(text) + 1), pick.randrange(len(text) + 1)))
        match pick.randrange(8):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + pick.choice(BITS) + text[at:]
            case 2:
                text = text[:at] + text[at:end] * pick.choice((2, 3, 30)) + text[end:]
            case 3:
                text = text[:at]
            case 4:
                text = text[:at] + other[pick.randrange(len(other) + 1) :]
            case 5:
                text = text[:at] + chr(pick.choice((pick.randrange(128), pick.randrange(0x3000)))) + text[at + 1 :]
            case 6:
                text = text.replace(pick.choice(BITS), pick.choice(BITS), pick.choice((1, -1)))
            case 7:
                text = text[:at] + json.dumps(text[at:end]) + text[end:]
    return text[:20_000]


def fuzz(count: int, seed: int) -> dict:
    """Score `count` mutants; raises whatever a parser raises."""
    pick, statuses, slowest = random.Random(seed), Counter(), (0.0, "", "")
    cases = hard_cases.cases()
    rules = [
        Rules.of(ScoreConfig(rewards="all")),
        Rules.of(ScoreConfig(reading="lenient", lift="all")),
        Rules.of(ScoreConfig()),
    ]
    names = [*PROTOCOLS, "auto"]
    start = time.process_time()
    characters = 0
    for _ in range(count):
        case = pick.choice(cases)
        text = mutated(case["text"], pick.choice(cases)["text"], pick)
        name = pick.choice(names) if pick.random() < 0.5 else case["protocol"]
        scorer = Scorer(case["gold"], name, pick.choice(rules), case["tools"])
        before = time.process_time()
        row = scorer.score(text, pick.choice(("stop", "length")), len(text)).columns
        took = time.process_time() - before
        row["calls_json"].encode("utf-8")
        row["extra_json"].encode("utf-8")
        if not row["reward_min"] <= row["reward"] <= row["reward_max"]:
            raise AssertionError(f"reward {row['reward']} out of range for {text!r}")
        statuses[row["parse_status"]] += 1
        characters += len(text)
        if took > slowest[0]:
            slowest = (took, name, text[:200])
        if took > LIMIT:
            raise AssertionError(f"{took:.3f} s for {name}: {text!r}")
    seconds = time.process_time() - start
    return {
        "completions": count, "raised": 0, "seconds": round(seconds, 1), "us_each": round(seconds / count * 1e6, 1),
        "mean_characters": round(characters / count), "slowest_ms": round(slowest[0] * 1000, 2), "slowest": slowest[1:],
        "statuses": dict(statuses.most_common()), "linear": linear(cases),
    }  # fmt: skip


def linear(cases: list[dict]) -> dict[str, float]:
    """CPU time of a text repeated 200 times over 10 times that of 20 times: 1 is linear, 10 would be quadratic."""
    found = {}
    for name in PROTOCOLS:
        texts = [case["text"] for case in cases if case["protocol"] == name and len(case["text"]) > 20]
        scorer = Scorer(cases[0]["gold"], name, Rules.of(ScoreConfig()), cases[0]["tools"])
        times = []
        for repeat in (20, 200):
            best = min(_timed(scorer, [text * repeat for text in texts]) for _ in range(3))
            times.append(best)
        found[name] = round(times[1] / (10 * times[0]), 2)
    return found


def _timed(scorer: Scorer, texts: list[str]) -> float:
    start = time.process_time()
    for text in texts:
        scorer.score(text)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = fuzz(arguments.count, arguments.seed)
    print(json.dumps(result) if arguments.json else "\n".join(f"{key}: {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
