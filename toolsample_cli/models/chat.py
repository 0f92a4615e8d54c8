"""The only place that tokenises: task rows to prompt ids by the model's own chat template, ids to text and back.

Tools go through the template (arguments as mappings, never strings) for protocols that say so, or stand in the
messages already (RLLA). Demonstrations become earlier turns before the request. The self-exemplifying addition is
our reading of ToolExpander (its prompt text is unpublished).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from toolsample_cli.errors import ConfigError, DataError
from toolsample_cli.json_types import Row
from toolsample_cli.models.deadline import TooLong, at_most

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SELF_EXAMPLES = (
    "Before you answer, think inside <think> and </think>. First write one or two short examples of your own there, "
    "each inside <example> and </example>: a made-up request and, as one JSON object, the call of an offered tool that "
    "answers it, other than the call you are about to make; do not write tool call tags inside the examples. "
    "Say in a sentence why each is right, then think about the real request, close the thought and answer."
)
"""Prompt addition for self-exemplifying thinking."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
TEMPLATE_SECONDS = 10.0
"""Time that rendering one prompt may take; a template is a program that the model brings along."""
_PROBE = "zqxprobe"


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a local model folder or a hub id; DataError when there is none."""
    refuse_no_tokenizer(model)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model))
    except (OSError, ValueError, ImportError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"{model}: no tokenizer could be loaded: {first}",
            hint="expected a local model folder, or a hub id while the hub can be reached",
        ) from error


def refuse_no_tokenizer(model: str | Path) -> None:
    """DataError for a folder without tokenizer files, and for what is neither a folder nor may be a hub id."""
    folder = Path(model)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DataError(
            f"{folder}: a model folder without tokenizer (none of {', '.join(TOKENIZER_FILES)})",
            hint="save the tokenizer beside the weights: tokenizer.save_pretrained(folder)",
        )
    if folder.is_file() or (not folder.exists() and not _may_be_hub_id(str(model))):
        raise DataError(f"{model}: no such model folder", hint="expected a folder with config.json, or a hub id")


def _may_be_hub_id(name: str) -> bool:
    return name.count("/") <= 1 and not name.startswith(("/", ".", "~"))


@dataclass(frozen=True)
class Conversation:
    """A prompt before its template: turns, tools to go through the template (or [] ), the protocol of the answer."""

    messages: list[Row]
    tools: list[Row]
    protocol: str


class Chat:
    """One tokenizer with its chat template. Ids are plain lists of ints; nothing here needs torch.

    `self_examples` adds SELF_EXAMPLES to the system turn of every prompt.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, self_examples: bool = False) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the model's tokenizer has no chat template",
                hint="use an instruction-tuned model, or put a chat_template.jinja beside its tokenizer",
            )
        self.tokenizer = tokenizer
        self.self_examples = self_examples

    @classmethod
    def load(cls, model: str | Path, *, self_examples: bool = False) -> Chat:
        """`Chat(load_tokenizer(model))`."""
        return cls(load_tokenizer(model), self_examples=self_examples)

    def prompt_text(self, task: Row) -> str:
        """The rendered prompt of a row of tasks, ready for the model to go on.

        Raises DataError when the row's JSON is broken or the template refuses its messages.
        """
        asked = task_conversation(task, self_examples=self.self_examples)
        if asked.tools and not self.template_shows_tools:
            raise ConfigError(
                "the model's chat template leaves the tools out, so the model would never see them",
                hint="import the tasks with --protocol rlla, which writes the tools into the prompt, or put a "
                "chat_template.jinja that renders `tools` into the model's folder (docs/engines.md has one)",
            )
        return self._render(asked.messages, asked.tools, f"task {task.get('task_id', '?')}")

    def render(self, messages: list[Row]) -> str:
        """Turns without tools as a prompt."""
        return self._render(messages, [], "messages")

    def prompt_ids(self, task: Row) -> list[int]:
        """`prompt_text` as token ids: what is sent to an engine and stored."""
        return self.encode(self.prompt_text(task))

    def completion_ids(self, text: str) -> list[int]:
        """A finished answer as token ids, with the end-of-turn token that the template puts after it."""
        return [*self.encode(text), self.end_of_turn]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, nothing added; lone surrogates become question marks, as UTF-8 cannot hold them."""
        return self.tokenizer.encode(_utf8(text), add_special_tokens=False)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text; one call into the tokenizer, which is several times faster for many."""
        if not texts:
            return []
        return self.tokenizer([_utf8(text) for text in texts], add_special_tokens=False)["input_ids"]

    def text(self, completion_ids: Sequence[int]) -> str:
        """A completion as text: special tokens of the protocol kept, the end token dropped."""
        return self.texts([completion_ids])[0]

    def texts(self, completions: Iterable[Sequence[int]]) -> list[str]:
        """`text` of each completion."""
        bodies = [list(ids[:-1]) if len(ids) and ids[-1] in self.end_ids else list(ids) for ids in completions]
        return self.tokenizer.batch_decode(bodies, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def end_of_turn(self) -> int:
        """The token that closes an assistant turn: what the template writes after one, else the tokenizer's EOS."""
        asked = {"role": "user", "content": "a"}
        answer = {"role": "assistant", "content": _PROBE}
        text = self._render([asked, answer], [], "probe of the chat template", generation=False)
        after = self.encode(text[text.rindex(_PROBE) + len(_PROBE) :]) if _PROBE in text else []
        special = set(self.tokenizer.all_special_ids) | set(getattr(self.tokenizer, "added_tokens_decoder", {}))
        if after and after[0] in special:
            return after[0]
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("neither the chat template nor the tokenizer says how a turn ends (no EOS token)")
        return self.tokenizer.eos_token_id

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens at which generation stops."""
        eos = self.tokenizer.eos_token_id
        return tuple(sorted({self.end_of_turn} | ({eos} if eos is not None else set())))

    @cached_property
    def template_shows_tools(self) -> bool:
        """Whether an offered tool's name occurs in the rendered prompt at all."""
        tool = {"name": _PROBE, "description": "a", "parameters": {"type": "object", "properties": {}, "required": []}}
        text = self._render([{"role": "user", "content": "a"}], [tool], "probe of the chat template")
        return _PROBE in text

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """16 hex digits each for the tokenizer and for its template."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        body = backend.to_str() if backend is not None else json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        template = json.dumps(self.tokenizer.chat_template, sort_keys=True)
        return {"tokenizer": _digest(body), "template": _digest(template)}

    def _render(self, messages: list[Row], tools: list[Row], where: str, *, generation: bool = True) -> str:
        from jinja2.exceptions import TemplateError, UndefinedError

        functions: list[Row | Callable[..., object]] = [{"type": "function", "function": tool} for tool in tools]
        try:
            with at_most(TEMPLATE_SECONDS):
                return str(
                    self.tokenizer.apply_chat_template(
                        messages, tools=functions or None, add_generation_prompt=generation, tokenize=False
                    )
                )
        except TooLong:
            raise DataError(
                f"{where}: the model's chat template does not end within {TEMPLATE_SECONDS:g} s",
                hint="mend the template in the model's folder",
            ) from None
        except (TemplateError, UndefinedError, TypeError) as error:
            raise DataError(f"{where}: the model's chat template refuses these messages: {error}") from error


def task_conversation(task: Row, *, self_examples: bool = False) -> Conversation:
    """A row of tasks as turns and offered tools, before any template. Raises DataError when its JSON is broken."""
    where = f"task {task.get('task_id', '?')}"
    try:
        messages = json.loads(task["messages_json"])
        demos = json.loads(task.get("demos_json") or "[]")
        tools = json.loads(task.get("tools_json") or "[]")
    except ValueError as error:
        raise DataError(f"{where}: messages, tools or demonstrations are not valid JSON: {error}") from None
    turns = [turn for demo in demos for turn in demo["messages"]]
    messages = [_for_template(turn, where) for turn in _before_request(messages, turns)]
    if self_examples:
        messages = _with_system(messages, SELF_EXAMPLES)
    return Conversation(messages, tools if tools_in_template(task["protocol"]) else [], task["protocol"])


def tools_in_template(protocol: str) -> bool:
    """Whether this protocol's tools go through the chat template; ConfigError for an unknown protocol."""
    from toolsample_cli.toolcalls.protocols import PROTOCOLS

    if protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {protocol!r}", hint=f"known: {', '.join(sorted(PROTOCOLS))}")
    return PROTOCOLS[protocol].tools_in_template


def _before_request(messages: list[Row], demonstrations: list[Row]) -> list[Row]:
    """Demonstrations as earlier turns: after the system turn and the history, before the last user message."""
    if not demonstrations:
        return messages
    last = max((i for i, turn in enumerate(messages) if turn.get("role") == "user"), default=len(messages))
    return [*messages[:last], *demonstrations, *messages[last:]]


def _for_template(turn: Row, where: str) -> Row:
    """A turn as templates want it: content a string, tool-call arguments mappings."""
    turn = dict(turn)
    if turn.get("content") is None:
        turn["content"] = ""
    if not turn.get("tool_calls"):
        turn.pop("tool_calls", None)
        return turn
    calls = []
    for call in turn["tool_calls"]:
        function = dict(call.get("function", call))
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):  # OpenAI sends JSON text; templates would encode it a second time
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError as error:
                raise DataError(f"{where}: arguments of {function.get('name')} are not valid JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise DataError(f"{where}: arguments of {function.get('name')} are not an object")
        function["arguments"] = arguments
        calls.append({**{k: v for k, v in call.items() if k == "id"}, "type": "function", "function": function})
    turn["tool_calls"] = calls
    return turn


def _with_system(messages: list[Row], addition: str) -> list[Row]:
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{addition}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": addition}, *messages]


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
