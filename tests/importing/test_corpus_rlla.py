"""Every answer of ToolRL's public files earns the maximum, except those that are broken in themselves, by reason.

Reads the data beside the repository and is skipped where it is absent.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from toolsample_cli.config import ScoreConfig
from toolsample_cli.score.scorer import Gold, score_text
from toolsample_cli.toolcalls.call import Call


@pytest.fixture(scope="module")
def answers(shared_data: Path) -> dict[str, list[str]]:
    test = pl.read_parquet(shared_data / "rlla_4k" / "test.parquet")["reward_model"].struct["ground_truth"]
    tuned = json.loads((shared_data / "rlla_4k" / "rlla_sft.json").read_text())
    return {"test": test.to_list(), "sft": [row["output"] for row in tuned]}


def gold_of(answer: str) -> Gold:
    """The gold of an answer, read as an importer does: behind the thought."""
    rest = answer.split("</think>", 1)[1]
    kind = {(1, 0): "calls", (0, 1): "response", (1, 1): "both", (0, 0): "none"}[
        (int("<tool_call>" in rest), int("<response>" in rest))
    ]
    lines = rest.split("<tool_call>")[1].split("</tool_call>")[0].strip().split("\n") if "<tool_call>" in rest else []
    records = [json.loads(line) for line in lines]
    return Gold(tuple(Call(record["name"], record["parameters"]) for record in records), kind)


def why_not(answer: str) -> str:
    """The fault of an answer that cannot earn the maximum under ToolRL's reading."""
    thought, _, rest = answer.partition("</think>")
    if any(tag in thought for tag in ("<tool_call>", "</tool_call>")) and "<tool_call>" in rest:
        return "tag of a call mentioned while thinking"
    if any(tag in thought for tag in ("<response>", "</response>")) and "<response>" in rest:
        return "tag of a response mentioned while thinking"
    return "?"


def test_answers_earn_the_maximum(answers: dict[str, list[str]]) -> None:
    """All 80 test golds; of the 400 tuning answers all but those that name the tags in their thoughts."""
    faults: dict[str, Counter] = {"test": Counter(), "sft": Counter()}
    for name, texts in answers.items():
        for text in texts:
            scored = score_text(text, gold_of(text), "rlla", ScoreConfig())
            if scored.reward != scored.reward_max:
                faults[name][why_not(text)] += 1
    print(faults)
    assert len(answers["test"]) == 80 and len(answers["sft"]) == 400
    assert not faults["test"]
    assert faults["sft"] == {"tag of a call mentioned while thinking": 17}
