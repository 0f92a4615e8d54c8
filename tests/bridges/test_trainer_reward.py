"""The reward inside other trainers: `score`'s numbers and the same keys always, in threads and in processes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.bridge_world import POLICY, ROOT, World, special_tokenizer, world_task

from toolsample_cli.bridges import trainer_reward
from toolsample_cli.bridges.label import Label
from toolsample_cli.bridges.trainer_reward import KEYS, BadLabel, TrlReward, compute_score, reward_func, slime_reward
from toolsample_cli.errors import ConfigError
from toolsample_cli.models.chat import Chat

FILE = Path(trainer_reward.__file__)


@pytest.fixture(scope="module")
def rows(world: World) -> list[dict]:
    """1,000 rollouts with label and score."""
    labels = {task["task_id"]: Label.of(task).text for task in world.load("tasks").to_dicts()}
    frame = world.load("rollouts").join(world.load("scores").drop("task_id", "round", "sample"), on="rollout_id")
    return [{**row, "label": labels[row["task_id"]]} for row in frame.to_dicts()]


def _expected(row: dict) -> dict[str, float]:
    shares = {name: 1.0 if row[name] is None or not row[f"{name}_max"] else row[name] / row[f"{name}_max"]
              for name in ("format", "name", "key", "value")}  # fmt: skip
    return {
        "score": row["reward"], "acc": float(row["exact"]), **shares,
        "schema_valid": float(row["schema_valid"] is not False),
        "parsed": float(row["parse_status"] in ("ok", "no_call")),
        "reward_scaled": (row["reward"] - row["reward_min"]) / (row["reward_max"] - row["reward_min"]),
    }  # fmt: skip


def _compute(row: dict) -> dict[str, float]:
    return compute_score(data_source="x", solution_str=row["text"], ground_truth=row["label"], extra_info={"a": 1})


def _same(found: dict[str, float], row: dict) -> bool:
    """Equal but for `parsed` of cut answers: verl does not say that an answer was cut."""
    wanted = _expected(row)
    if row["finish_reason"] == "length":
        found, wanted = {**found, "parsed": 0.0}, {**wanted, "parsed": 0.0}
    return found == wanted


def test_it_gives_the_numbers_of_score(rows: list[dict]):
    """1,000 of 1,000 rows: every key, every row, to the last bit."""
    assert len(rows) == 1000 and len({row["reward"] for row in rows}) == 8
    for row in rows:
        found = _compute(row)
        assert tuple(found) == KEYS and all(type(value) is float for value in found.values())
        assert _same(found, row)


def test_threads_and_processes_give_the_same(rows: list[dict]):
    """Eight threads over a shuffled load, and spawned processes that get the function by pickle."""
    with ThreadPoolExecutor(8) as pool:
        assert all(map(_same, pool.map(_compute, rows[::-1]), rows[::-1]))
    assert pickle.loads(pickle.dumps(compute_score)) is compute_score
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.starmap(compute_score, [("", row["text"], row["label"]) for row in rows[:50]])
    assert all(map(_same, found, rows[:50]))


def test_it_loads_by_path(rows: list[dict]):
    """As verl and OpenRLHF load it: from the file, under a name of their own."""
    spec = importlib.util.spec_from_file_location("custom_module", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert _same(module.compute_score("", rows[0]["text"], rows[0]["label"], None), rows[0])


def test_it_is_light():
    """Neither torch nor transformers, polars or numpy: it starts at once in eight reward workers."""
    code = f"""
import runpy, sys
module = runpy.run_path({str(FILE)!r})
module["compute_score"]("", "x", {Label.of(world_task(0)).text!r})
print([name for name in ("torch", "transformers", "polars", "numpy", "rich", "typer", "httpx") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_three_packages_are_enough():
    """A trainer's environment needs jsonschema, jsonschema-rs and msgspec of ours, and nothing else that we need."""
    ours = ("httpx", "numpy", "polars", "rank_bm25", "rich", "safetensors", "torch", "transformers", "typer", "xxhash")
    code = f"""
import sys
for name in {ours!r}:
    sys.modules[name] = None
import runpy
module = runpy.run_path({str(FILE)!r})
print(module["compute_score"]("", "x", {Label.of(world_task(0)).text!r})["score"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "-3.0"


def test_settings_are_those_of_score():
    """A known setting changes the number, an unknown one is refused, verl's own keywords are not settings."""
    task = world_task(0)
    label, text = Label.of(task).text, task["gold_text"].replace("Porto", "porto")
    strict = compute_score("", text, label, None, reward_router_address="x", reward_model_tokenizer=None)
    assert strict["acc"] == 0.0
    assert compute_score("", text, label, None, values="lenient")["acc"] == 1.0
    with pytest.raises(ConfigError, match="valeus"):
        compute_score("", text, label, None, valeus="lenient")
    with pytest.raises(ConfigError, match="values"):
        compute_score("", text, label, None, values="nothing")


@pytest.mark.parametrize(
    "label", ["", "x", "{}", None, 7, "[" * 5000, '{"task_id": 1}', json.dumps({"task_id": "a", "protocol": "hermes",
     "gold_kind": "calls", "gold": [{"name": "x"}], "tools": []})]
)  # fmt: skip
def test_a_foreign_label_is_an_error(label: object):
    """Not a silent 0: the ground truth of another data set stops the run and says why."""
    with pytest.raises((BadLabel, TypeError)):
        compute_score("", "x", label)


def test_any_text_gets_numbers(rows: list[dict]):
    """None, emptiness, NUL, surrogates, deep nesting and a megabyte: the worst reward, never an exception."""
    for text in (None, "", "\x00", "\ud800", "<tool_call>" * 2000, "{" * 100_000, "x" * 1_100_000):
        found = compute_score("", text, rows[0]["label"])
        assert tuple(found) == KEYS and found["acc"] == 0.0 and -3.0 <= found["score"] <= 1.0


def test_openrlhf_gets_lists(rows: list[dict]):
    """Queries are prompt, answer and end token in one text; a query that lost its prompt is an error."""
    some = rows[:24]
    prompt = "<|im_start|>user\nx<|im_end|>\n"
    found = reward_func(
        [prompt + row["text"] + "<|im_end|>" for row in some], [prompt] * 24, [r["label"] for r in some]
    )
    assert found["rewards"] == [row["reward"] for row in some]
    assert found["extra_logs"]["acc"] == [float(row["exact"]) for row in some]
    with pytest.raises(ValueError, match="does not begin with its prompt"):
        reward_func(["user\nx"], [prompt], [some[0]["label"]])


def test_an_answer_keeps_its_own_line_ends():
    """Only the end token goes, and line ends behind it: what stands before belongs to the answer."""
    assert trainer_reward.without_end("a\n<|im_end|>\n") == "a\n"
    assert trainer_reward.without_end("a\n") == "a\n"


def test_slime_gets_one_number_and_metadata(rows: list[dict]):
    """slime leaves the end token in the text and marks cut samples by status."""
    for row in rows[:16]:
        status = "Status.TRUNCATED" if row["finish_reason"] == "length" else "Status.COMPLETED"
        end = "" if row["finish_reason"] == "length" else "<|im_end|>"
        sample = SimpleNamespace(response=row["text"] + end, label=row["label"], metadata={}, status=status)
        assert asyncio.run(slime_reward(None, sample)) == row["reward"]
        assert sample.metadata["toolsample"] == _expected(row)


def test_trl_reads_ids_and_logs_what_trl_would_lose(rows: list[dict]):
    """Rewards by ids; task ids, ids and means are logged; a copy by pickle gives the same."""
    extra: dict[str, list] = {}
    metrics: dict[str, float] = {}
    some = rows[:80]
    reward = pickle.loads(pickle.dumps(TrlReward(Chat.load(POLICY).tokenizer)))
    found = reward(
        prompts=["p"] * 80, completions=["?"] * 80, completion_ids=[row["completion_ids"] for row in some],
        label=[row["label"] for row in some], task_id=["not this"] * 80, trainer_state=None,
        log_extra=extra.__setitem__, log_metric=metrics.__setitem__,
    )  # fmt: skip
    assert found == [row["reward"] for row in some]
    assert extra["task_id"] == [row["task_id"] for row in some]
    assert extra["completion_ids"] == [row["completion_ids"] for row in some]
    assert metrics["toolsample/acc"] == pytest.approx(sum(row["exact"] for row in some) / 80)
    said = [[{"role": "assistant", "content": row["text"]}] for row in some]
    assert reward(prompts=[], completions=said, label=[row["label"] for row in some]) == found
    assert reward.__name__ == "toolsample_reward"


def test_a_special_token_reaches_the_reward_in_trl(tmp_path: Path):
    """Mistral's right answer is right by ids, though TRL's own text has lost the mark."""
    model = special_tokenizer(tmp_path / "tokenizer", special=("[TOOL_CALLS]",))
    chat, task = Chat.load(model), world_task(0, "mistral")
    ids = chat.completion_ids(task["gold_text"])
    text = chat.tokenizer.decode(ids, skip_special_tokens=True)
    label = [Label.of(task).text]
    assert TrlReward(chat.tokenizer)(["p"], [text], [ids], label) == [4.0]
    assert TrlReward(chat.tokenizer)(["p"], [text], None, label) != [4.0]
