"""A task's prompt as another trainer will tokenise it, compared token by token with ours.

Hardly any trainer hands a row's own tools to the chat template. So the tools travel inside the prompt: as text that
is already rendered, or as the system message that makes the template write the same prompt without any tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.json_types import Row
from toolsample_cli.models.chat import Chat, task_conversation
from toolsample_cli.toolcalls.call import Call
from toolsample_cli.toolcalls.protocols import PROTOCOLS

_PROBE = "zqxprobe{}zqx"


@dataclass(frozen=True)
class Prompt:
    """`form` is text or messages; `tokens` counts our own prompt; `same`: the trainer's ids will equal ours."""

    form: str | list[Row]
    tokens: int = 0
    same: bool = True


class PromptWriter:
    """Prompts of one tokenizer."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def messages(self, task: Row) -> Prompt:
        """Messages for a trainer that hands each row's tools to the same template; ours by construction."""
        return Prompt([dict(turn) for turn in task_conversation(task).messages], len(self.chat.prompt_ids(task)))

    def rendered(self, task: Row, adds_special: bool) -> Prompt:
        """The prompt as one text.

        `adds_special`: the trainer's tokenizer call adds a start token by itself, so it is left out of the text.
        """
        text = self.chat.prompt_text(task)
        ours = self.chat.encode(text)
        start = self._start
        if adds_special and start and text.startswith(start):
            text = text[len(start) :]
        return Prompt(text, len(ours), (self._with_specials(text) if adds_special else self.chat.encode(text)) == ours)

    def system(self, task: Row) -> Prompt | None:
        """Messages of {role, content} alone: tools and calls of earlier turns become text.

        None when this template has no text that would put the tools into the prompt.
        """
        text = self.chat.prompt_text(task)
        ours = self.chat.encode(text)
        messages = [dict(turn) for turn in task_conversation(task).messages]
        tools = bool(task_conversation(task).tools)
        if tools and (not messages or messages[0]["role"] != "system"):
            messages.insert(0, {"role": "system", "content": ""})
        unknown = [at for at, turn in enumerate(messages) if turn.get("tool_calls") or (tools and at == 0)]
        plain = [{"role": str(turn["role"]), "content": str(turn.get("content") or "")} for turn in messages]
        found = self._contents(text, plain, unknown) if unknown else []
        if found is None:
            return None
        for at, content in zip(unknown, found, strict=True):
            plain[at]["content"] = content
        return Prompt(plain, len(ours), self._plain_render(plain) == text)

    def keeps_calls(self, protocol: str) -> bool:
        """Whether a call survives decoding without special tokens, which is how verl's own managers decode."""
        text = PROTOCOLS[protocol].render([Call("probe", {"a": 1})])
        return bool(self.chat.tokenizer.decode(self.chat.encode(text), skip_special_tokens=True) == text)

    def _contents(self, text: str, messages: Sequence[Row], unknown: Sequence[int]) -> list[str] | None:
        """What `text` has in the place of these messages' contents; None when the template writes it otherwise."""
        probed = [dict(turn) for turn in messages]
        probes = [_PROBE.format(at) for at in unknown]
        for at, probe in zip(unknown, probes, strict=True):
            probed[at]["content"] = probe
        rest = self._plain_render(probed)
        contents: list[str] = []
        for probe in probes:
            before, met, rest = rest.partition(probe)
            start = text.find(before)
            if not met or start < 0 or (not contents and start):
                return None
            if contents:
                contents[-1] = text[:start]
            text = text[start + len(before) :]
            contents.append(text)
        if not text.endswith(rest):
            return None
        contents[-1] = text[: len(text) - len(rest)]
        return contents

    def _plain_render(self, messages: Sequence[Row]) -> str:
        """The template's text for messages alone; empty when it refuses them, as some do a system turn."""
        try:
            return self.chat.render([dict(turn) for turn in messages])
        except DataError:
            return ""

    @cached_property
    def _start(self) -> str | None:
        """The start token that the tokenizer puts before any text, if it does."""
        with_it, without = self._with_specials("a"), self.chat.encode("a")
        added = with_it[: len(with_it) - len(without)]
        return str(self.chat.tokenizer.decode(added)) if added and with_it[len(added) :] == without else None

    def _with_specials(self, text: str) -> list[int]:
        """Ids as a trainer makes them from a text prompt: with whatever the tokenizer adds."""
        ids: list[int] = self.chat.tokenizer(text)["input_ids"]
        return ids


def refuse_without_tools(chat: Chat) -> None:
    """ConfigError when the template would leave the tools out, so that no prompt could hold them."""
    if not chat.template_shows_tools:
        raise ConfigError(
            "the model's chat template leaves the tools out",
            hint="export for the model you train, whose template renders tools, or import with --protocol rlla",
        )
