"""Multi-turn dialogues: the official loop of asking, running the calls on the simulated tools, and telling the results.

A turn ends when a reply holds no call; after more than 20 steps with calls the dialogue is given up, which fails it, as
officially. Dialogues go in fixed groups, step by step, so that a group asked again after a kill repeats itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from toolsample_cli.bfcl.answering import Model, Reply
from toolsample_cli.bfcl.checker import Checker, Overrun
from toolsample_cli.bfcl.prompts import (
    PROMPTING,
    Prompt,
    Style,
    parsed_reply,
    read_answer,
    through_template,
    too_long,
    without_thought,
)
from toolsample_cli.bfcl.questions import Question
from toolsample_cli.json_types import Row
from toolsample_cli.shards.journal import Journal

GROUP = 32
"""Dialogues that advance together."""


@dataclass
class Dialogue:
    """One dialogue on its way; `turns` holds the replies of every step of every turn so far.

    `constants` are the official loop's; `messages` is the history, of which `style` makes what is sent.
    """

    question: Question
    style: Style
    constants: Row
    functions: list[Row]
    messages: list[Row] = field(default_factory=list)
    turns: list[list[Row]] = field(default_factory=list)
    executed: list[list[str]] = field(default_factory=list)
    steps: int = 0
    first_prompt: str = ""
    generation: int = 0
    ended: bool = False
    error: str | None = None
    fault: str | None = None

    @property
    def key(self) -> str:
        """Name of the next step's prompt."""
        return f"{self.question.id} turn {len(self.turns)} step {self.steps}"

    def prompt(self) -> Prompt:
        """What the model is asked next."""
        return self.style.prompt(self.key, self.messages, self.functions)

    def next_turn(self) -> None:
        """Begin the next turn, or end the dialogue after the last one."""
        number = len(self.turns)
        if number == len(self.question.turns):
            self.ended = True
            return
        self.messages += self._said(number)
        self.turns.append([])
        self.steps = 0

    def _said(self, number: int) -> list[Row]:
        held = self.question.official.get("missed_function", {}).get(str(number))
        if held is None:
            return deepcopy(self.style.first(self.question) if number == 0 else self.question.turns[number])
        self.functions += held  # the official prompting mode says them in words instead
        if self.style.protocol != PROMPTING:
            return [{"role": "user", "content": self.constants["more_functions"]}]
        return [{"role": "user", "content": f"{held}\n{self.constants['more_functions']}"}]

    def take(self, reply: Reply, checker: Checker) -> None:
        """One reply: run its calls and go on, or end the turn."""
        self.first_prompt = self.first_prompt or reply.prompt
        if reply.error is not None:
            self.error, self.ended = f"{self.key}: {reply.error}", True
            return
        record = reply.record()
        self.turns[-1].append(record)
        if too_long(record):
            self.fault, self.ended = "refused:too_long", True
            return
        answer = read_answer(record, self.style.protocol, self.functions)
        try:
            done = checker.ask(
                "execute",
                id=self.question.id,
                category=self.question.category,
                answer=answer,
                history=self.executed if checker.generation != self.generation else None,
            )
        except Overrun as overrun:
            self.fault, self.ended = str(overrun), True
            return
        self.generation = checker.generation
        if done["refused"]:
            self.fault, self.ended = "refused:code", True
            return
        self._remember(record["text"], done)
        if not done["strings"]:
            self.next_turn()
            return
        self.executed.append(done["strings"])
        self.steps += 1
        self.ended = self.steps > self.constants["most_steps"]  # the official loop gives up here

    def _remember(self, text: str, done: Row) -> None:
        """Put the reply and the results of its calls into the history."""
        results = zip(done["strings"], done["results"], strict=True)
        told = [{"role": "tool", "name": call, "content": result} for call, result in results]
        if not through_template(self.style.protocol):
            content = without_thought(text) if self.style.protocol == PROMPTING else text
            self.messages += [{"role": "assistant", "content": content}, *told]
            return
        parsed = parsed_reply(text, self.style.protocol, self.functions)
        spoken: Row = {"role": "assistant", "content": parsed.response or ""}
        if done["strings"]:
            spoken["tool_calls"] = [
                {"type": "function", "function": {"name": name, "arguments": arguments}, "id": self._call_id(number)}
                for number, (name, arguments) in enumerate(pair for call in done["calls"] for pair in call.items())
            ]
            for number, tool in enumerate(told):
                tool["tool_call_id"] = self._call_id(number)
        if parsed.thought:
            spoken["reasoning_content"] = parsed.thought
        self.messages += [spoken, *told]

    def _call_id(self, number: int) -> str:
        return f"call_{len(self.executed)}_{number}"

    def record(self) -> Row:
        """The dialogue as the journal keeps it."""
        base = {"id": self.question.id, "prompt": self.first_prompt}
        if self.error is not None:
            return {**base, "error": self.error}
        return {**base, "turns": self.turns, **({"fault": self.fault} if self.fault else {})}


def hold_all(
    model: Model,
    checker: Checker,
    dialogues: Sequence[Dialogue],
    journal: Journal,
    tick: Callable[[int], None],
) -> None:
    """Hold every dialogue that has no record yet and put it into the journal."""
    for start in range(0, len(dialogues), GROUP):
        group = dialogues[start : start + GROUP]
        if all(journal.answered(dialogue.question.id) for dialogue in group):
            tick(len(group))
            continue
        hold(model, checker, group)
        checker.ask("forget", ids=[dialogue.question.id for dialogue in group])
        for dialogue in group:
            if not journal.answered(dialogue.question.id):
                journal.add(dialogue.record())
            tick(1)


def hold(model: Model, checker: Checker, group: Sequence[Dialogue]) -> None:
    """Hold these dialogues side by side to their ends."""
    for dialogue in group:
        dialogue.next_turn()
    while waiting := {dialogue.key: dialogue for dialogue in group if not dialogue.ended}:
        for batch in model.plan([dialogue.prompt() for dialogue in waiting.values()], lambda _: False):
            for reply in list(model.answer(batch)):
                waiting[reply.key].take(reply, checker)
