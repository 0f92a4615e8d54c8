"""Slow: our scorer against the official command on the same answers, and our prompts against the official handlers'.

    python -m pytest tests/test_bfcl_official.py -m slow        makes the full official package's environment once

Set TOOLSAMPLE_BFCL_V4 or TOOLSAMPLE_BFCL_V3 to the interpreter of an installation that is there already.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support import bfcl_official
from support.bfcl_parity import compare

from toolsample_cli.bfcl import categories, environment
from toolsample_cli.bfcl.answering import Reply
from toolsample_cli.bfcl.checker import Checker
from toolsample_cli.errors import MissingDependency
from toolsample_cli.shards.journal import Journal

pytestmark = pytest.mark.slow


def _official(version: str) -> Path:
    given = os.environ.get(f"TOOLSAMPLE_BFCL_{version.upper()}")
    try:
        return Path(given) if given else bfcl_official.environment(version)
    except (MissingDependency, subprocess.CalledProcessError) as error:
        pytest.skip(f"the full official package cannot be installed here: {error}")


@pytest.mark.parametrize("form", ["text", "dots"])
@pytest.mark.parametrize("version", ["v4", "v3"])
def test_every_verdict_and_the_total_are_the_official_ones(version: str, form: str):
    """5,106 and 4,441 answers of every kind, as prompted Python and as Hermes calls.

    One exception: the official checker runs code that stands in an argument's arithmetic, and then takes the answer for
    a call. We run nothing, so where any call is right, such an answer is wrong here.
    """
    record = compare(version, form, _official(version), seed=1)
    assert record["entries"] == {"v4": 5106, "v3": 4441}[version]
    assert record["disagreements"] == 0
    assert {tuple(verdicts) for _, *verdicts in record["differing"].values()} <= {(False, True)}
    assert all("relevance" in entry_id for entry_id in record["differing"])
    assert record["overall_ours_had_code_run"] == record["overall_official"]
    assert record["ratio_vs_official"] <= 1.0
    assert 0.3 < record["right"] / record["entries"] < 0.8  # the answers are neither all right nor all wrong


def test_every_verdict_on_the_forms_of_prompt_is_the_official_one():
    """5,200 answers as Python, JSON and two kinds of XML, with and without tags."""
    record = compare("v4", "text", _official("v4"), seed=1, names=(categories.FORMATS,))
    assert record["entries"] == 5200
    assert record["differing"] == {}


PROMPTS = """
import json, sys
from copy import deepcopy
version, name, wanted = sys.argv[1], sys.argv[2], json.loads(sys.stdin.read())
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING as table
config = table[name]
if version == "v3":
    handler = config.model_handler(name, 0)
else:
    handler = config.model_handler(
        model_name=config.model_name, temperature=0, registry_name=name, is_fc_model=config.is_fc_model)
texts = {}
for entry in wanted:
    entry = deepcopy(entry)
    data = handler._pre_query_processing_prompting(entry)
    data = handler.add_first_turn_message_prompting(data, entry["question"][0])
    texts[entry["id"]] = handler._format_prompt(data["message"], data["function"])
print(json.dumps(texts))
"""

CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.mark.parametrize("version", ["v4", "v3"])
def test_prompting_mode_gives_the_official_handlers_text(version: str, tmp_path: Path):
    """Five questions a category, rendered by a ChatML template, against Qwen's official prompting handler."""
    from support.tiny_model import tiny_tokenizer

    from toolsample_cli.bfcl import prompts
    from toolsample_cli.bfcl.questions import official_question
    from toolsample_cli.models.chat import Chat

    tiny_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    chat = Chat.load(tmp_path)
    ours, raw = {}, []
    with Checker(environment.provide(version)) as scorer:
        style = prompts.Style(prompts.PROMPTING, lambda q: scorer.ask("prompted", entry=q.official))
        for category in categories.SCORED[version]:
            if categories.kind_of(category) in ("memory", "web_search"):
                continue
            shown, plain = scorer.entries(category), scorer.ask("entries", category=category, hint=False)
            step = max(1, len(shown) // 5)
            for row, bare in list(zip(shown, plain, strict=True))[::step][:5]:
                question = official_question(category, row)
                prompt = style.prompt(question.id, style.first(question), question.functions)
                ours[question.id] = chat.prompt_text(prompts.task_row(prompt, prompts.PROMPTING))
                raw.append(bare if version == "v3" else row)
    done = subprocess.run(
        [str(_official(version)), "-c", PROMPTS, version, "Qwen/Qwen3-8B"],
        input=json.dumps(raw), capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "BFCL_PROJECT_ROOT": str(tmp_path)},
    )  # fmt: skip
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert len(ours) == 17 * 5
    assert ours == theirs


ASKED = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
asked, noted = json.loads(sys.stdin.read()), sys.argv[1]
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING as table
from bfcl_eval.utils import load_dataset_entry, populate_initial_settings_for_memory_test_cases
name = "Qwen/Qwen3-8B"
handler = table[name].model_handler(model_name=name, temperature=0, registry_name=name, is_fc_model=False)
handler.model_path_or_id, handler.max_context_length = name, 100_000
handler.tokenizer = SimpleNamespace(tokenize=str.split)
sent = []
def create(prompt, **_):
    sent.append(prompt)
    text = noted if len(sent) == 1 else "Noted."
    usage = SimpleNamespace(prompt_tokens=1, completion_tokens=1)
    return SimpleNamespace(choices=[SimpleNamespace(text=text)], usage=usage)
handler.client = SimpleNamespace(completions=SimpleNamespace(create=create))
texts = {}
for category, ids in asked.items():
    entries = {entry["id"]: entry for entry in load_dataset_entry(category, include_prereq=True)}
    chosen = [entries[entry_id] for entry_id in ids]
    populate_initial_settings_for_memory_test_cases(chosen, Path("result").resolve())
    for entry in chosen:
        sent.clear()
        handler.inference(entry, False, True)
        texts[entry["id"]] = sent[0]
print(json.dumps(texts))
"""


class Noting:
    """A model that answers like the stub above; remembers the first prompt of each question."""

    def __init__(self, noted: str) -> None:
        self.noted, self.first = noted, {}

    def plan(self, prompts, known):
        return [list(prompts)] if prompts else []

    def answer(self, group):
        for prompt in group:
            opening = prompt.key.endswith(" turn 1 step 0")
            self.first.setdefault(prompt.key.split(" ")[0], prompt)
            yield Reply(prompt.key, "", self.noted if opening else "Noted.", finish_reason="stop")


@pytest.mark.parametrize(
    ("category", "noted"),
    [
        ("memory_rec_sum", "[memory_append(text='the customer is Ana')]"),
        ("memory_kv", "[core_memory_add(key='customer', value='Ana')]"),
        (categories.FORMATS, ""),
    ],
)
def test_memories_and_forms_of_prompt_are_asked_in_the_official_text(category: str, noted: str, tmp_path: Path):
    """The official handler's own loop with a stub for the server: what it sends first, memory and all, is what we send.

    Five questions about one scenario after all its conversations; a question in each of the 26 forms.
    """
    from support.tiny_model import tiny_tokenizer

    from toolsample_cli.bfcl import memory_tasks, prompts
    from toolsample_cli.bfcl.questions import official_question
    from toolsample_cli.models.chat import Chat

    tiny_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    chat, model = Chat.load(tmp_path), Noting(noted)
    with Checker(environment.provide("v4", memory=category == "memory_kv")) as scorer:
        style = prompts.Style(prompts.PROMPTING, lambda q: scorer.ask("prompted", entry=_shown(q)))
        rows = scorer.entries(category)
        if category == categories.FORMATS:
            rows = list({row["id"].split(":")[1]: row for row in rows[::-1]}.values())
            assert len(rows) == 26
            questions = [official_question(category, row) for row in rows]
            asked = {q.id: style.prompt(q.id, style.first(q), q.functions) for q in questions}
        else:
            rows = [row for row in rows if row["scenario"] == "customer"]
            questions = [official_question(category, r) for r in rows if not memory_tasks.is_conversation(r["id"])][:5]
            with Journal(tmp_path / "journal", {}) as journal:
                memory_tasks.Memories(model, scorer, style, scorer.ask("constants"), journal).hold_all(
                    questions, lambda _: None
                )
            rows = [row for row in rows if row["id"] in model.first]
            asked = model.first
        ours = {key: chat.prompt_text(prompts.task_row(prompt, prompts.PROMPTING)) for key, prompt in asked.items()}
    done = subprocess.run(
        [str(_official("v4")), "-c", ASKED, noted],
        input=json.dumps({category: [row["id"] for row in rows]}),
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "BFCL_PROJECT_ROOT": str(tmp_path)},
    )  # fmt: skip
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert ours == theirs
    assert len(ours) >= 15 or category == categories.FORMATS
    if noted:
        assert all("Ana" in ours[question.id] for question in questions)


def _shown(question) -> dict:
    return {"id": question.id, "question": question.turns, "function": question.functions}
