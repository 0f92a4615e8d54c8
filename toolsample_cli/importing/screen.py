"""What is looked at once a row has become a task: contamination by test items, repeats, doubts about its gold."""

from __future__ import annotations

import json
from collections import Counter

from toolsample_cli.config import ImportConfig
from toolsample_cli.importing.base import Reject
from toolsample_cli.importing.catalogue import Catalogue
from toolsample_cli.importing.contamination import Benchmark, read_benchmark, request_of, words_of
from toolsample_cli.json_types import Row
from toolsample_cli.stage import Account
from toolsample_cli.toolcalls.call import canonical

SHOWN = 3


class Screen:
    """Judges tasks one after another by the settings; files they name are read when it is made."""

    def __init__(self, config: ImportConfig) -> None:
        from pathlib import Path

        self.config = config
        self.catalogue = Catalogue.read(Path(config.tools)) if config.tools else None
        against = [part.strip() for part in config.decontaminate.split(",") if part.strip()]
        self.benchmark: Benchmark | None = read_benchmark(against, config.near) if against else None
        self.counts: Counter[str] = Counter()
        self.named: list[str] = []
        self._seen: set[tuple[tuple[str, ...], str]] = set()

    def judge(self, task: Row) -> Row | Reject:
        """The task, with what is doubtful about it noted, or the reason why it is left out."""
        request, gold = request_of(json.loads(task["messages_json"])), json.loads(task["gold_json"])
        if self.benchmark is not None and task["split"] != "test":
            match = self.benchmark.match(request, gold)
            if match is not None:
                self.counts[match.how] += 1
                self.named.append(f"{task['task_id']} ({match.how}, {match.where})")
                words = f"{match.how} as {match.where}, {match.share:.0%} of the words"
                if self.config.contaminated == "drop":
                    return Reject("contaminated", words)
                issues = [*json.loads(task["gold_issues_json"]), _issue("contaminated", words)]
                task = {**task, "gold_issues_json": canonical(issues)}
        if self.config.dedup:
            key = (tuple(words_of(request)), canonical(gold))
            if key in self._seen:
                return Reject("duplicate", "the same request, but for case and punctuation, with the same gold calls")
            self._seen.add(key)
        if self.config.flagged == "drop" and task["gold_issues_json"] != "[]":
            return Reject("flagged", task["gold_issues_json"][:400])
        return task

    def tell(self, account: Account) -> None:
        """What was found, in the account."""
        if self.benchmark is not None:
            account.extra["test items compared with"] = len(self.benchmark.exact)
            account.extra["contaminated"] = sum(self.counts.values())
        if self.counts:
            account.extra["of these"] = ", ".join(f"{how} {count}" for how, count in sorted(self.counts.items()))
            account.extra["first contaminated"] = "; ".join(self.named[:SHOWN])


def _issue(word: str, detail: str) -> Row:
    return {"issue": word, "call": 0, "at": "", "detail": detail[:200]}
