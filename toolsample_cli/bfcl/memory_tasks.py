"""v4's memory categories: conversations that fill a memory, scenario by scenario, then questions about them.

A scenario's conversations follow one another, each starting from what the last one left; scenarios go side by side.
After a kill the conversations that were held are replayed from the journal, which fills the memory anew. Where one
failed, the questions of its scenario are errors: the official generator asks them with an empty memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from toolsample_cli.bfcl.answering import Model
from toolsample_cli.bfcl.checker import Checker, Overrun
from toolsample_cli.bfcl.dialogue import GROUP, Dialogue, hold
from toolsample_cli.bfcl.prompts import Style, read_answer
from toolsample_cli.bfcl.questions import Question, official_question
from toolsample_cli.json_types import Row
from toolsample_cli.shards.journal import Journal


def is_conversation(entry_id: str) -> bool:
    """Whether an entry fills the memory rather than asks about it; such entries are not judged."""
    return "prereq" in entry_id


class Memories:
    """Holds the memory dialogues of one run."""

    def __init__(self, model: Model, checker: Checker, style: Style, constants: Row, journal: Journal) -> None:
        self.model, self.checker, self.style, self.constants, self.journal = model, checker, style, constants, journal

    def hold_all(self, questions: Sequence[Question], tick: Callable[[int], None]) -> None:
        """Put every question's dialogue into the journal, after the conversations it is about."""
        for category in dict.fromkeys(question.category for question in questions):
            asked = [question for question in questions if question.category == category]
            if not all(self.journal.answered(question.id) for question in asked):
                failed = self._converse(category, {question.official["scenario"] for question in asked})
                self._ask(asked, failed)
            tick(len(asked))

    def _converse(self, category: str, scenarios: set[str]) -> dict[str, str]:
        """Fill the memories; scenario -> why one of its conversations failed."""
        chains: dict[str, list[Question]] = {}
        for row in self.checker.entries(category):
            if is_conversation(row["id"]) and _scenario(row["id"]) in scenarios:
                chains.setdefault(_scenario(row["id"]), []).append(official_question(category, row))
        failed: dict[str, str] = {}
        for turn in range(max(map(len, chains.values()), default=0)):
            going = []
            for scenario, chain in chains.items():
                if turn >= len(chain) or scenario in failed:
                    continue
                if self.journal.answered(chain[turn].id):
                    self._replay(chain[turn])
                else:
                    going.append(self._dialogue(chain[turn]))
            hold(self.model, self.checker, going)
            for dialogue in going:
                self.journal.add(dialogue.record())
                if dialogue.error is not None:
                    failed[_scenario(dialogue.question.id)] = f"conversation {dialogue.error}"
                else:
                    self._flush(dialogue.question, dialogue.executed)
        return failed

    def _ask(self, questions: Sequence[Question], failed: Mapping[str, str]) -> None:
        for start in range(0, len(questions), GROUP):
            group = questions[start : start + GROUP]
            if all(self.journal.answered(question.id) for question in group):
                continue
            going = [self._dialogue(question) for question in group if question.official["scenario"] not in failed]
            hold(self.model, self.checker, going)
            self.checker.ask("forget", ids=[question.id for question in group])
            records = {dialogue.question.id: dialogue.record() for dialogue in going}
            for question in group:
                why = failed.get(question.official["scenario"])
                if not self.journal.answered(question.id):
                    self.journal.add(records.get(question.id) or {"id": question.id, "prompt": "", "error": why})

    def _dialogue(self, question: Question) -> Dialogue:
        opening = self.checker.ask("remember", category=question.category, id=question.id)
        opened = replace(question, turns=[opening, *question.turns[1:]])
        return Dialogue(opened, self.style, self.constants, list(question.functions))

    def _replay(self, question: Question) -> None:
        """Run a conversation's calls again, without asking the model."""
        self.checker.ask("remember", category=question.category, id=question.id)
        executed: list[list[str]] = []
        for step in self._steps(question):
            answer = read_answer(step, self.style.protocol, question.functions)
            try:
                done = self.checker.ask(
                    "execute", id=question.id, category=question.category, answer=answer, history=None
                )
            except Overrun:
                break
            executed += [done["strings"]] if done["strings"] else []
        self._flush(question, executed)

    def _steps(self, question: Question) -> Iterator[Row]:
        return (step for turn in self.journal.records[question.id]["turns"] for step in turn)

    def _flush(self, question: Question, executed: list[list[str]]) -> None:
        """Run the conversation's calls in one go and keep the memory they leave; the process may be another by now."""
        category, entry = question.category, question.id
        self.checker.ask("execute", answer={"strings": []}, history=executed, category=category, id=entry)
        self.checker.ask("flush", category=category, id=entry)


def _scenario(entry_id: str) -> str:
    """`student` from `memory_kv_prereq_22-student-0`."""
    return entry_id.rsplit("-", 2)[1]
