"""The official questions, prompts, decoders and checkers of one release, imported unchanged.

The model registry, which would pull in every vendor's SDK, is replaced by a table that answers the one thing the
checker asks: whether dots in names were written as underscores. Simulated classes run through `callstrings`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import types
from copy import deepcopy
from typing import Any

import callstrings
import hermes_blocks
import pycalls

HOME = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
DOTTED, UNDERSCORED = "toolsample/dots", "toolsample/underscores"


def _registry() -> types.ModuleType:
    module = types.ModuleType("bfcl_eval.constants.model_config")
    module.MODEL_CONFIG_MAPPING = {
        name: types.SimpleNamespace(underscore_to_dot=name == UNDERSCORED) for name in (DOTTED, UNDERSCORED)
    }
    return module


def _without_tree_sitter() -> bool:
    """Whether Java and JavaScript text can be read; their parser has no builds for Python 3.13 and newer."""
    try:
        importlib.import_module("tree_sitter")
    except ImportError:
        for language, function in (("java", "parse_java_function_call"), ("js", "parse_javascript_function_call")):
            module = types.ModuleType(f"bfcl_eval.model_handler.parser.{language}_parser")
            setattr(module, function, _no_parser)
            sys.modules[module.__name__] = module
        return False
    return True


def _no_parser(_: str) -> None:
    raise RuntimeError("tree_sitter is not installed")


class Official:
    """One release of bfcl_eval; `version` is v3 or v4."""

    def __init__(self, version: str) -> None:
        self.version = version
        sys.modules["bfcl_eval.constants.model_config"] = _registry()
        self.parsers = _without_tree_sitter()
        self.utils = importlib.import_module("bfcl_eval.utils")
        self.handler = importlib.import_module("bfcl_eval.model_handler.utils")
        self.mapping = importlib.import_module("bfcl_eval.constants.category_mapping")
        self.config = importlib.import_module("bfcl_eval.constants.eval_config")
        self.enums = importlib.import_module("bfcl_eval.constants.enums") if version == "v4" else None
        self.ast_checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
        self.steps = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
        self.steps.eval = lambda text: callstrings.run(text, self.steps.__dict__, HOME)
        checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
        self.multi_turn_checker = checker.multi_turn_checker
        if version == "v4":
            agentic = importlib.import_module("bfcl_eval.eval_checker.agentic_eval.agentic_checker")
            self.agentic_checker = agentic.agentic_checker
            for name in ("memory_kv", "memory_rec_sum"):  # before the guard, which forbids loading libraries
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"{HOME}.{name}")
        self._entries: dict[tuple[str, bool], list[dict]] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._by_id: dict[str, dict[str, dict]] = {}

    # ---- questions -------------------------------------------------------------------------------------------

    def entries(self, category: str, hint: bool) -> list[dict[str, Any]]:
        """Questions of a category; with `hint`, function texts are those that a model is shown."""
        key = (category, hint)
        if key not in self._entries:
            load = self._load_v3 if self.version == "v3" else self._load_v4
            self._entries[key] = load(category, hint)
        return self._entries[key]

    def _load_v4(self, category: str, hint: bool) -> list[dict]:
        return self.utils.load_dataset_entry(
            category, include_prereq=hint and "memory" in category, include_language_specific_hint=hint
        )

    def _load_v3(self, category: str, hint: bool) -> list[dict]:
        entries = self.utils.load_file(
            self.config.PROMPT_PATH / self.mapping.TEST_FILE_MAPPING[category], sort_by_id=True
        )
        for entry in entries:
            if "involved_classes" in entry:
                self._give_functions(entry)
            if hint:
                self.handler.func_doc_language_specific_pre_processing(entry["function"], category)
        return entries

    def _give_functions(self, entry: dict) -> None:
        """v3 keeps this step in its generation script, which cannot be imported here."""
        files = self.mapping.MULTI_TURN_FUNC_DOC_FILE_MAPPING
        folder = self.config.MULTI_TURN_FUNC_DOC_PATH
        offered = [doc for name in entry["involved_classes"] for doc in self.utils.load_file(folder / files[name])]
        for turn, names in entry.get("missed_function", {}).items():
            held = [next(doc for doc in offered if doc["name"] == name) for name in names]
            offered = [doc for doc in offered if doc not in held]
            entry["missed_function"][turn] = held
        entry["function"] = offered

    def answers(self, category: str) -> dict[str, Any]:
        """Question id -> ground truth ({} for categories without one)."""
        if category not in self._answers:
            if "relevance" in category:
                self._answers[category] = {}
            else:
                questions = self.entries(category, False)
                self._answers[category] = {
                    question["id"]: truth["ground_truth"]
                    for question, truth in zip(questions, self._truths(category))  # noqa: B905 (checked below)
                }
        return self._answers[category]

    def _truths(self, category: str) -> list[dict]:
        if self.version == "v3":
            file = self.config.POSSIBLE_ANSWER_PATH / self.mapping.TEST_FILE_MAPPING[category]
            truths = self.utils.load_file(file, sort_by_id=True)
        else:
            truths = self.utils.load_ground_truth_entry(category)
        if len(truths) != len(self.entries(category, False)):
            raise RuntimeError(f"{category}: {len(truths)} answers for {len(self.entries(category, False))} questions")
        return truths

    def entry(self, category: str, entry_id: str) -> dict[str, Any]:
        """One question as the checker wants it."""
        if category not in self._by_id:
            # memory's earlier conversations come with the shown questions only
            earlier = self.entries(category, True) if "memory" in category else []
            self._by_id[category] = {entry["id"]: entry for entry in [*earlier, *self.entries(category, False)]}
        return self._by_id[category][entry_id]

    def prompted(self, entry: dict[str, Any]) -> list[dict[str, str]]:
        """Messages of the first turn in the official prompting mode: its system prompt goes before the question."""
        third = entry["id"].rsplit("_", 1)[0] if self.version == "v3" else entry["id"]
        return self.handler.system_prompt_pre_processing_chat_model(
            deepcopy(entry["question"][0]), deepcopy(entry["function"]), third
        )

    def initial_config(self, entry: dict[str, Any]) -> dict[str, Any]:
        """What the simulated tools start from; memories lie in the work folder, one file a scenario."""
        if "memory" not in entry["id"]:
            return entry.get("initial_config", {})
        place = {
            "model_result_dir": self.config.PROJECT_ROOT / "memory",
            "scenario": entry["scenario"],
            "test_id": entry["id"],
            "test_category": self.utils.extract_test_category_from_id(entry["id"]),
        }
        return {entry["involved_classes"][0]: place}

    def constants(self) -> dict[str, Any]:
        """What the official loop of dialogues says and when it gives up."""
        prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
        return {
            "more_functions": prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC,
            "most_steps": prompts.MAXIMUM_STEP_LIMIT,
        }

    # ---- decoding --------------------------------------------------------------------------------------------

    def decoded(self, answer: dict[str, Any], language: str) -> list[dict[str, Any]]:
        """Calls of an answer as [{name: arguments}]; raises where the official decoder fails.

        An answer is {"calls": [[name, arguments]]} as they are, {"hermes": text} in Qwen's form, or {"text"} in that
        of the official prompting mode.
        """
        if "calls" in answer:
            return [{name: arguments} for name, arguments in answer["calls"]]
        if "hermes" in answer:
            return [{call["name"]: dict(call["arguments"].items())} for call in self._hermes(answer)]
        text = answer["text"]
        if language == "python":
            return pycalls.decode(text, self.version)
        if len(text) > pycalls.MAX_CHARS:
            raise pycalls.Refused("the answer is too long")
        if self.version == "v3":
            return self.handler.default_decode_ast_prompting(
                text, {"java": "Java", "javascript": "JavaScript"}[language]
            )
        return self.handler.default_decode_ast_prompting(text, self.enums.ReturnFormat(language), False)

    def decoded_varied(self, text: str, entry_id: str) -> list[dict[str, Any]]:
        """Calls of an answer in the form that a question of format_sensitivity asked for."""
        asked = self.handler.parse_prompt_variation_params(self.utils.extract_prompt_format_from_id(entry_id))
        form, tagged = asked[:2]
        if form == "python":
            return pycalls.decode(text, tagged=tagged)
        if len(text) > pycalls.MAX_CHARS:
            raise pycalls.Refused("the answer is too long")
        return self.handler.default_decode_ast_prompting(text, self.enums.ReturnFormat(form), tagged)

    def _hermes(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        if len(answer["hermes"]) > hermes_blocks.LONGEST:
            raise pycalls.Refused("the answer is too long")
        return hermes_blocks.hermes_calls(answer["hermes"], self.version)

    def language(self, language: str) -> Any:
        """The checker's word for a language."""
        if self.version == "v3":
            return {"python": "Python", "java": "Java", "javascript": "JavaScript"}[language]
        return self.enums.Language(language)

    def executable(self, answer: dict[str, Any]) -> list[str]:
        """Call strings of one step of a dialogue; raises what the official decoder raises.

        {"strings"} holds them ready, which is how the official ground truth is written.
        """
        if "strings" in answer:
            return answer["strings"]
        if "hermes" in answer:
            calls = [{call["name"]: call["arguments"]} for call in self._hermes(answer)]
            return self.handler.convert_to_function_call(calls)
        decoded = self.decoded(answer, "python")
        if "calls" in answer:
            return self.handler.convert_to_function_call(decoded)
        return self.handler.decoded_output_to_execution_list(decoded)


def dumps(value: Any) -> str:
    """JSON text in ASCII, so that any text passes through a pipe."""
    return json.dumps(value, ensure_ascii=True, allow_nan=True)
