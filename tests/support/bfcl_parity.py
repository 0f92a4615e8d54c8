"""The same synthetic answers to every question, judged by our scorer and by the official command, entry by entry."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import bfcl_official
from support.bfcl_synthetic import CODE_TEXTS, agentic, dialogue, single, varied
from toolsample_cli.bfcl import categories, environment, official_files
from toolsample_cli.bfcl.aggregate import CategoryTally, overall
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.bfcl.inside import pycalls
from toolsample_cli.bfcl.judging import judge_all
from toolsample_cli.bfcl.prompts import PROMPTING
from toolsample_cli.bfcl.questions import Question, official_question

PROTOCOL = {"text": PROMPTING, "dots": "hermes"}
FAILED = "Error during inference: timeout"


@dataclass
class Answers:
    """Questions with what was drawn for them: for us the journal's records, for the official command its `result`."""

    questions: list[Question] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, question: Question, kind: str, answer: Any) -> None:
        """One question and its answer: a text, a list of turns, or None for a failed inference."""
        self.questions.append(question)
        self.kinds[question.id] = kind
        if answer is None:
            record, result = {"prompt": "", "error": "timeout"}, FAILED
        elif isinstance(answer, str):
            record, result = {"prompt": "", "text": answer, "finish_reason": "stop"}, answer
        else:
            turns = [[{"text": text, "finish_reason": "stop"} for text in steps] for steps in answer]
            record, result = {"prompt": "", "turns": turns}, answer
        self.records[question.id] = record
        self.results.setdefault(question.category, {})[question.id] = result


def _read(line: str) -> list[tuple[str, dict]]:
    return [(name, arguments) for call in pycalls.decode(line) for name, arguments in call.items()]


def draw(version: str, form: str, seed: int, names: tuple[str, ...] = ()) -> Answers:
    """Answers to every question of a release, or of some categories."""
    rng = random.Random(seed)
    drawn = Answers()
    with Checker(environment.provide(version)) as scorer:
        for category in names or categories.SCORED[version]:
            plain = {row["id"]: row for row in scorer.ask("entries", category=category, hint=False, seconds=100)}
            truths = scorer.ask("answers", category=category, seconds=100)
            language = categories.language_of(category)
            for entry_id, row in plain.items():
                question, truth = official_question(category, row), truths.get(entry_id)
                if rng.random() < 0.03:
                    drawn.add(question, "failed inference", None)
                elif category == categories.FORMATS:
                    asked = dict(part.split("=") for part in entry_id.split(":")[1].split("&"))
                    shape, tagged = asked["ret_fmt"], asked["tool_call_tag"] == "True"
                    drawn.add(question, *varied(row["function"], truth, shape, tagged, rng))
                elif question.kind == "multi_turn":
                    drawn.add(question, *dialogue(truth, _read, form, rng))
                elif question.kind in ("memory", "web_search"):
                    drawn.add(question, *agentic(truth, form, rng))
                else:
                    drawn.add(question, *single(row["function"], truth, language, form, rng))
    return drawn


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def compare(version: str, form: str, python: Path, seed: int = 0, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Both verdicts on the same answers: disagreements by id and kind, totals, seconds of either (CPU and wall)."""
    drawn = draw(version, form, seed, names)
    ours: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        cpu, wall = _seconds(), time.perf_counter()
        with Checker(environment.provide(version)) as scorer:
            judged = judge_all(scorer, drawn.questions, drawn.records, PROTOCOL[form])
        official_files.write(root / "ours", judged, version, form)
        ours = {"cpu": _seconds() - cpu, "wall": time.perf_counter() - wall}
        bfcl_official.write_results(root, version, form, drawn.results)
        cpu, wall = _seconds(), time.perf_counter()
        bfcl_official.evaluate(python, root, form)
        official = {"cpu": _seconds() - cpu, "wall": time.perf_counter() - wall}
        theirs = bfcl_official.verdicts(root, version, form, drawn.results)
        total = bfcl_official.overall(root)
    mine = {row["entry_id"]: official_files.official_verdict(row) for row, _ in judged}
    differing = [entry_id for entry_id in mine if mine[entry_id] != theirs[entry_id]]
    code = [entry_id for entry_id in differing if drawn.kinds[entry_id] in CODE_TEXTS]
    executed = {**mine, **{entry_id: theirs[entry_id] for entry_id in code}}
    return {
        "version": version,
        "form": form,
        "entries": len(mine),
        "right": sum(mine.values()),
        "disagreements": len(differing) - len(code),
        "differing": {key: [drawn.kinds[key], mine[key], theirs[key]] for key in differing},
        "refused_code_that_officially_counts": len(code),
        "overall_ours": _overall(drawn, mine, version),
        "overall_ours_had_code_run": _overall(drawn, executed, version),
        "overall_official": total,
        "ours": ours,
        "official": official,
        "ratio_vs_official": ours["cpu"] / official["cpu"],
    }


def _overall(drawn: Answers, verdicts: dict[str, bool], version: str) -> float:
    counts: dict[str, CategoryTally] = {}
    for question in drawn.questions:
        old = counts.get(question.category, CategoryTally())
        counts[question.category] = CategoryTally(old.right + verdicts[question.id], old.n + 1)
    return round((overall(counts, version)["overall"] or 0.0) * 100, 2)


if __name__ == "__main__":
    import sys

    print(json.dumps(compare(sys.argv[1], sys.argv[2], Path(sys.argv[3]), names=tuple(sys.argv[4:]))))
