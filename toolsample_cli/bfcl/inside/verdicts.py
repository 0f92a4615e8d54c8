"""Verdicts on answers by the official checkers, in the official runner's order of steps, and steps of dialogues."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pycalls
from official import DOTTED, UNDERSCORED, Official


class Judge:
    """Judges answers and runs the calls of dialogues on one release's simulated tools."""

    def __init__(self, official: Official) -> None:
        self.official = official

    def judge_ast(self, entry: dict, truth: list, category: str, language: str, answer: dict) -> dict[str, Any]:
        """Verdict on a single-turn answer that should call."""
        try:
            varied = entry["id"].startswith("format_sensitivity")
            calls = (
                self.official.decoded_varied(answer["text"], entry["id"])
                if varied
                else self.official.decoded(answer, language)
            )
        except pycalls.Refused:
            raise
        except Exception as error:
            return _wrong("ast_decoder:decoder_failed", f"{type(error).__name__}: {error}")
        if not self.official.utils.is_function_calling_format_output(calls):
            return _wrong("ast_decoder:decoder_wrong_output_format", "", calls)
        category = entry["id"].rsplit(":", 1)[-1] if varied else category
        name = UNDERSCORED if answer.get("underscores") else DOTTED
        try:
            verdict = self.official.ast_checker(
                entry["function"], calls, truth, self.official.language(language), category, name
            )
        except Exception as error:  # the official checker stumbles over some values outside its own data
            return _wrong(f"checker_error:{type(error).__name__}", str(error), calls)
        if verdict["valid"]:
            return {"valid": True, "calls": _spoken(calls)}
        return _wrong(verdict["error_type"], verdict["error"], calls)

    def judge_relevance(self, category: str, answer: dict) -> dict[str, Any]:
        """Verdict on an answer that should (relevance) or should not (irrelevance) hold any call."""
        calls, why = None, ""
        try:
            calls = self.official.decoded(answer, "python")
        except pycalls.Refused:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        called = calls is not None and not self.official.utils.is_empty_output(calls)
        if called != ("irrelevance" in category):
            return {"valid": True, "calls": _spoken(calls)}
        if called:
            return _wrong("irrelevance_error:decoder_success", "a call where none is right", calls)
        return _wrong("relevance_error:decoder_failed", why, calls)

    def judge_dialogue(self, entry: dict, truth: list, category: str, turns: list[list[dict]]) -> dict[str, Any]:
        """Verdict on a multi-turn dialogue: `turns` holds the answers of every step of every turn."""
        if len(turns) != len(truth):
            return _wrong("multi_turn:force_terminated", f"{len(turns)} of {len(truth)} turns")
        decoded: list[list[list[str]]] = []
        spoken: list[Any] = []
        for steps in turns:
            decoded.append([])
            for answer in steps:
                try:
                    calls = self.official.executable(answer)
                except pycalls.Refused:
                    raise
                except Exception:  # as in the official runner: chatting is not a call
                    continue
                if not self.official.steps.is_empty_execute_response(calls):
                    decoded[-1].append(calls)
                    spoken += self._heard(answer)
        self.forget()
        try:
            verdict = self.official.multi_turn_checker(decoded, truth, entry, category, "toolsample")
        finally:
            self.forget()
        if verdict["valid"]:
            return {"valid": True, "calls": _spoken(spoken)}
        return _wrong(verdict["error_type"], verdict["error_message"], spoken)

    def judge_agentic(self, truth: list, turns: list[list[dict]]) -> dict[str, Any]:
        """Verdict on a memory or web search dialogue: the last reply without a call must name an accepted answer."""
        if len(turns) != 1:
            return _wrong("agentic:inference_error", f"{len(turns)} turns, expected one")
        last, spoken = None, []
        for answer in turns[0]:
            try:
                calls = self.official.executable(answer)
            except pycalls.Refused:
                raise
            except Exception:  # as in the official runner: what is no call is the message looked for
                calls = []
            if self.official.steps.is_empty_execute_response(calls):
                last = answer.get("hermes", answer.get("text"))
            else:
                spoken += self._heard(answer)
        if not last:
            return _wrong("agentic:no_last_message", "no reply without a call", spoken)
        verdict = self.official.agentic_checker(last, truth)
        if verdict["valid"]:
            return {"valid": True, "calls": _spoken(spoken)}
        return _wrong(verdict["error_type"], verdict["error_message"], spoken)

    def forget(self, owner: str = "toolsample", entry_id: str = "") -> None:
        """Drop simulated objects, which would else answer the next dialogue of the same id with old state."""
        space = self.official.steps.__dict__
        start = f"{owner}_{re.sub('[-./:]', '_', entry_id)}_" if entry_id else f"{owner}_"
        for name in [n for n in space if n.startswith(start) and n.endswith("_instance")]:
            del space[name]

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Verdict on one answer: {valid, calls, error_type?, error?}; `entry` and `truth` may come with the request."""
        category, kind = request["category"], request["kind"]
        try:
            if kind in ("relevance", "irrelevance"):
                return self.judge_relevance(kind, request["answer"])
            if kind in ("memory", "web_search"):
                return self.judge_agentic(self.official.answers(category)[request["id"]], request["turns"])
            entry = request.get("entry") or self.official.entry(category, request["id"])
            truth = request["truth"] if "truth" in request else self.official.answers(category)[request["id"]]
            if kind == "multi_turn":
                return self.judge_dialogue(entry, truth, category, request["turns"])
            return self.judge_ast(entry, truth, category, request["language"], request["answer"])
        except pycalls.Refused as refused:
            return _wrong("refused:code", str(refused))

    def execute(self, entry: dict, answer: dict, history: list[list[str]] | None) -> dict[str, Any]:
        """Run one step's calls: {strings, results, calls, refused}; no strings where the reply holds no call.

        `history`: the call strings of all steps so far, when the simulated tools have to be set up anew.
        """
        if history is not None:
            self.forget("asked", entry["id"])
            for strings in history:
                self._run(entry, strings)
        try:
            strings = self.official.executable(answer)
        except pycalls.Refused:
            return {"strings": [], "results": [], "calls": [], "refused": True}
        except Exception:  # as in the official loop: a reply that cannot be read ends the turn
            strings = []
        if self.official.steps.is_empty_execute_response(strings):
            return {"strings": [], "results": [], "calls": [], "refused": False}
        return {
            "strings": strings,
            "results": self._run(entry, strings),
            "calls": _spoken(self._heard(answer)),
            "refused": False,
        }

    def _heard(self, answer: dict) -> list[dict]:
        """Calls of an answer for the record; the official readers for steps and for single turns differ a little."""
        try:
            return [] if "strings" in answer else self.official.decoded(answer, "python")
        except (AttributeError, KeyError, TypeError, ValueError):
            return []

    def remember(self, entry: dict) -> list[dict]:
        """First turn of a memory dialogue: the official instruction with what is in memory now goes before it."""
        self.forget("asked", entry["id"])
        turns = self.official.handler.add_memory_instruction_system_prompt(
            deepcopy(entry["question"]),
            self.official.utils.extract_test_category_from_id(entry["id"]),
            entry["scenario"],
            self._tools(entry, [])[1][entry["involved_classes"][0]],
        )
        return turns[0]

    def flush(self, entry: dict) -> None:
        """Keep what a memory dialogue has remembered for those after it."""
        self._tools(entry, [])[1][entry["involved_classes"][0]]._flush_memory_to_local_file()
        self.forget("asked", entry["id"])

    def _run(self, entry: dict, strings: list[str]) -> list[str]:
        return self._tools(entry, strings)[0]

    def _tools(self, entry: dict, strings: list[str]) -> tuple[list[str], dict[str, Any]]:
        category = entry["id"].rsplit("_", 1)[0]
        return self.official.steps.execute_multi_turn_func_call(
            strings,
            self.official.initial_config(entry),
            entry["involved_classes"],
            "asked",
            entry["id"],
            long_context="long_context" in category or "composite" in category,
            is_evaL_run=False,
        )


def _wrong(error_type: str, error: Any, calls: Any = ()) -> dict[str, Any]:
    text = error if isinstance(error, str) else "; ".join(str(item) for item in error)
    return {"valid": False, "error_type": error_type, "error": text[:2000], "calls": _spoken(calls)}


def _spoken(calls: Any) -> list[dict[str, Any]]:
    """What was decoded as [{name: {parameter: value}}]; whatever has another shape is left out."""
    items = calls if isinstance(calls, list | tuple) else []
    return [
        _plain(call) for call in items if isinstance(call, dict) and all(isinstance(v, dict) for v in call.values())
    ]


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: tuples as lists, odd keys and values as their text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int) and value.bit_length() < 10_000:
        return value
    text = repr(value) if not isinstance(value, int) else f"an integer of {value.bit_length()} bits"
    return re.sub(r"\s+", " ", text)[:200]
