"""Runs inside the environment of bfcl-eval: prints the official checker's verdict for each line of a file.

Usage: python reward_bfcl_child.py PREDICTIONS PACKAGE_HOME. A line is {category, index, calls}; a tuple is written as
{"__tuple__": [...]}. The registry of models, which needs every vendor's package, is replaced by a stand-in.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import types


def revived(value):
    if isinstance(value, dict):
        if set(value) == {"__tuple__"}:
            return tuple(revived(item) for item in value["__tuple__"])
        return {key: revived(item) for key, item in value.items()}
    return [revived(item) for item in value] if isinstance(value, list) else value


def stand_in_registry() -> types.ModuleType:
    registry = types.ModuleType("bfcl_eval.constants.model_config")

    class Entries(dict):
        def __missing__(self, _):
            return types.SimpleNamespace(underscore_to_dot=False)

    registry.MODEL_CONFIG_MAPPING = Entries()
    return registry


def main(predictions: str, home: str) -> None:
    os.environ["BFCL_PROJECT_ROOT"] = home
    sys.modules["bfcl_eval.constants.model_config"] = stand_in_registry()
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry

    languages = {"simple_java": Language.JAVA, "simple_javascript": Language.JAVASCRIPT}
    known = {}
    for line in pathlib.Path(predictions).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        category = row["category"]
        if category not in known:
            entries = load_dataset_entry(category, include_language_specific_hint=False)
            known[category] = (entries, load_ground_truth_entry(category))
        entries, truths = known[category]
        language = languages.get(category, Language.PYTHON)
        calls = [{name: revived(arguments)} for name, arguments in row["calls"]]
        functions, truth = entries[row["index"]]["function"], truths[row["index"]]["ground_truth"]
        try:
            verdict = ast_checker(functions, calls, truth, language, category, "stand-in")["valid"]
        except Exception as error:
            verdict = f"raised {type(error).__name__}"
        print(json.dumps(verdict))


if __name__ == "__main__":
    main(*sys.argv[1:])
