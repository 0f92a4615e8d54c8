"""The plain ToolRL reward, written slowly and straight from its formulas (methods 3.3, 3.4): the oracle of ours.

It works on text, knows nothing of our parsers, and lets one `except` turn every slip into the lowest score.
"""

from __future__ import annotations

import json
import re
from collections import Counter

FORMS = {
    (False, True): r"<think>.*?</think>\n<response>.*?</response>",
    (True, False): r"<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>",
    (True, True): r"<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>\n<response>.*?</response>",
    (False, False): r"<think>.*?</think>",
}


def total(reply: str, truth: str) -> float:
    """Format in {0, 1} plus correctness in [-3, 3]."""
    return form(reply.strip(), truth) + correctness(reply.strip(), truth)


def form(reply: str, truth: str) -> float:
    has = tuple(f"<{tag}>" in truth for tag in ("tool_call", "response"))
    tags = [tag for tag, needed in zip(("tool_call", "response"), has, strict=True) if needed]
    once = all(reply.count(f"<{tag}>") == 1 and reply.count(f"</{tag}>") == 1 for tag in tags)
    return 1.0 if once and re.fullmatch(FORMS[has], reply, re.DOTALL) else 0.0


def correctness(reply: str, truth: str) -> float:
    if "<tool_call>" not in truth:
        return 0.0
    gold = lines_of(truth)
    try:
        if "<tool_call>" not in reply or "</tool_call>" not in reply:
            raise ValueError("no block")
        found = lines_of(reply)
        score, most = similarity(gold, found)
    except Exception:
        return -3.0
    return 6.0 * score / most - 3.0


def lines_of(text: str) -> list:
    block = text.split("<tool_call>")[1].split("</tool_call>")[0].strip()
    return [json.loads(line) for line in block.split("\n")]


def similarity(gold: list, found: list) -> tuple[float, float]:
    if gold == found:
        return 1.0, 1.0
    score = overlap([g["name"] for g in gold], [p["name"] for p in found])
    most = 1.0
    taken = []
    for g in gold:
        most += 1.0 + len(g["parameters"])
        best, at = 0.0, None
        for i, p in enumerate(found):
            if i in taken or p["name"] != g["name"]:
                continue
            here = overlap(list(g["parameters"].keys()), list(p["parameters"].keys()))
            here += sum(1.0 for k, v in g["parameters"].items() if k in p["parameters"] and p["parameters"][k] == v)
            if here > best:
                best, at = here, i
        if at is not None:
            taken.append(at)
            score += best
    return score, most


def overlap(a: list, b: list) -> float:
    if a == b:
        return 1.0
    if not a or not b:
        return 0.0
    one, two = Counter(a), Counter(b)
    common = sum((one & two).values())
    return common / (len(a) + len(b) - common)
