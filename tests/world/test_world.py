"""The small world (tasks) and the small policies that the fixtures hold."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
sys.path.insert(0, str(FIXTURES))

from world import export, tools  # noqa: E402
from world.requests import CATEGORIES  # noqa: E402

POLICIES = [name for name in ("policy", "policy-weak") if (FIXTURES / name / "model.safetensors").is_file()]
DIGEST = "ee75ea11c9530a78"


def write(out: Path, *options: str) -> Path:
    subprocess.run(
        [sys.executable, str(FIXTURES / "make_tasks.py"), str(out), *options], check=True, capture_output=True
    )
    return out


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.json*")):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("world") / "a")


@pytest.fixture(scope="module")
def splits(folder) -> dict[str, list[dict]]:
    return {split: lines(folder / f"{split}.jsonl") for split in export.SPLITS}


def test_two_runs_give_the_same_bytes_and_another_seed_others(folder, tmp_path):
    assert digest(folder) == digest(write(tmp_path / "b"))
    assert digest(folder) == DIGEST, "the world changed: retrain the policies, then update the digest"
    assert digest(write(tmp_path / "c", "--seed", "1", "--n", "50", "--heldout", "20")) != digest(
        write(tmp_path / "d", "--n", "50", "--heldout", "20")
    )


def test_sizes_ids_and_shares(splits):
    assert {split: len(rows) for split, rows in splits.items()} == {
        "train": 4000, "heldout_fresh": 400, "heldout_phrasing": 400, "heldout_tools": 400,
    }  # fmt: skip
    rows = [row for split in splits.values() for row in split]
    assert len({row["id"] for row in rows}) == len(rows)
    for split in splits.values():
        count = Counter(row["category"] for row in split)
        assert {c: n / len(split) for c, n in count.items()} == pytest.approx(CATEGORIES)


def test_no_request_occurs_twice_in_the_world(splits):
    texts = [row["messages"][0]["content"] for split in splits.values() for row in split]
    assert len(set(texts)) == len(texts)


def test_known_and_unseen_tools_are_apart(splits):
    names = {
        split: {tool["function"]["name"] for row in rows for tool in row["tools"]} for split, rows in splits.items()
    }
    assert len(names["train"]) >= 60
    assert len(tools.pairs(unseen=False)) == 76 and len(tools.pairs(unseen=True)) == 24
    assert not names["train"] & names["heldout_tools"]
    assert names["heldout_fresh"] | names["heldout_phrasing"] <= names["train"]


def test_every_gold_call_is_offered_and_fits_its_schema(splits):
    checked = 0
    for rows in splits.values():
        for row in rows:
            gold = row["messages"][-1]
            offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in row["tools"]}
            assert len(offered) == len(row["tools"])
            calls = [call["function"] for call in gold.get("tool_calls", [])]
            assert bool(calls) == (row["category"] != "irrelevance") == (not gold["content"])
            for call in calls:
                schema = offered[call["name"]]
                assert set(call["arguments"]) <= set(schema["properties"])
                Draft202012Validator(schema).validate(call["arguments"])
                checked += 1
    assert checked > 4500


def test_categories_mean_what_bfcl_means(splits):
    for row in splits["train"]:
        names = [call["function"]["name"] for call in row["messages"][-1].get("tool_calls", [])]
        offered = len(row["tools"])
        shape = {
            "simple_python": offered == 1 and len(names) == 1,
            "multiple": offered > 1 and len(names) == 1,
            "parallel": offered == 1 and len(names) > 1,
            "parallel_multiple": offered > 1 and len(set(names)) > 1,
            "irrelevance": not names,
        }
        assert shape[row["category"]], row["id"]


def test_mappings_are_in_key_order(splits):
    def check(value):
        if isinstance(value, dict):
            assert list(value) == sorted(value)
            for item in value.values():
                check(item)

    for row in splits["train"][:500]:
        for tool in row["tools"]:
            check(tool["function"]["parameters"]["properties"])
        for call in row["messages"][-1].get("tool_calls", []):
            check(call["function"]["arguments"])


def accepts(options: list, value) -> bool:
    """Whether a value is among BFCL's options for it (options of an object hold a list for every key)."""
    for option in options:
        if isinstance(option, dict) and isinstance(value, dict):
            if set(option) == set(value) and all(value[k] in option[k] for k in option):
                return True
        elif option == value:
            return True
    return False


def test_bfcl_form_says_what_the_chat_form_says(folder, splits):
    fresh = {row["id"]: row for row in splits["heldout_fresh"]}
    seen = set()
    for category in CATEGORIES:
        entries = lines(folder / "bfcl" / f"BFCL_v4_{category}.json")
        answers = folder / "bfcl" / "possible_answer" / f"BFCL_v4_{category}.json"
        assert answers.is_file() == (category != "irrelevance")
        truths = {row["id"]: row["ground_truth"] for row in lines(answers)} if answers.is_file() else {}
        assert list(truths) in ([], [entry["id"] for entry in entries])
        for entry in entries:
            split, number = entry["id"].removeprefix(f"{category}_").rsplit("-", 1)
            row = fresh[f"{split}-{category}-{number}"]
            seen.add(row["id"])
            assert entry["question"] == [[row["messages"][0]]]
            assert [f["name"] for f in entry["function"]] == [t["function"]["name"] for t in row["tools"]]
            assert all(f["parameters"]["type"] == "dict" for f in entry["function"])
            gold = [call["function"] for call in row["messages"][-1].get("tool_calls", [])]
            for call, truth in zip(gold, truths.get(entry["id"], []), strict=True):
                ((name, options),) = truth.items()
                assert name == call["name"]
                assert all(accepts(options[k], v) for k, v in call["arguments"].items())
                assert all("" in options[k] for k in set(options) - set(call["arguments"]))
    assert seen == set(fresh)


@pytest.fixture(scope="module", params=POLICIES)
def policy(request):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    folder = FIXTURES / request.param
    return folder, AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def test_both_policies_are_committed_and_small():
    assert POLICIES == ["policy", "policy-weak"]
    for name in POLICIES:
        assert (FIXTURES / name / "model.safetensors").stat().st_size < 10_000_000


def test_policy_is_a_plain_transformers_folder(policy):
    _, model, tokenizer = policy
    assert model.config.model_type == "qwen3"
    assert 500_000 < sum(p.numel() for p in model.parameters()) < 4_000_000
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert len(tokenizer) <= model.config.vocab_size
    text = 'Zwölf Boxkämpfer "jagen" <tool_call>\n{"name": "x", "arguments": {"a": [1, null]}}\n</tool_call> 漢字\n'
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_template_renders_what_training_showed(policy, splits):
    from world.chat import calls_text, system_text

    _, _, tokenizer = policy
    for row in splits["train"][:50]:
        functions = [tool["function"] for tool in row["tools"]]
        demo = splits["train"][0]["messages"]
        text = tokenizer.apply_chat_template(
            [*demo, row["messages"][0]], tools=row["tools"], add_generation_prompt=True, tokenize=False
        )
        calls = [call["function"] for call in demo[1]["tool_calls"]]
        ask = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        expected = system_text(functions) + ask.format(demo[0]["content"]) + calls_text(calls) + "<|im_end|>\n"
        assert text == expected + ask.format(row["messages"][0]["content"])


def test_a_taught_answer_is_what_the_prompt_addition_asks_for(policy, splits):
    """The system turn equals that of `rollout --self-examples`, and the thought earns the bonus as it is taught."""
    from world.chat import calls_text, system_text, thought

    from toolsample_cli.models.chat import Chat
    from toolsample_cli.score.self_example import self_example
    from toolsample_cli.toolcalls.protocols import PROTOCOLS
    from toolsample_cli.toolcalls.tools import Toolbox

    _, _, tokenizer = policy
    chat = Chat(tokenizer, self_examples=True)
    rows = [row for row in splits["train"][:60] if row["messages"][-1].get("tool_calls")]
    for row, other in pairwise(rows):
        tools = [tool["function"] for tool in row["tools"]]
        task = {"messages_json": json.dumps(row["messages"][:1]), "tools_json": json.dumps(tools), "protocol": "hermes"}
        prompt = tokenizer.decode(chat.prompt_ids({"task_id": "x", "demos_json": "[]", **task}))
        assert prompt.startswith(system_text(tools, asked=True))
        made = {"name": tools[0]["name"], "arguments": {"made": "up"}}
        calls = [call["function"] for call in row["messages"][-1]["tool_calls"]]
        text = thought(other["messages"][0]["content"], made) + calls_text(calls)
        parsed = PROTOCOLS["hermes"].parse(text, "calls")
        assert parsed.format_ok and [call.name for call in parsed.calls] == [call["name"] for call in calls]
        assert self_example(text, parsed, Toolbox(json.dumps(tools)))


def test_compact_forward_equals_transformers(policy, splits):
    import torch
    from world.model import load_policy

    folder, model, tokenizer = policy
    row = splits["heldout_fresh"][0]
    ids = tokenizer.apply_chat_template(row["messages"], tools=row["tools"], return_tensors="pt", return_dict=True)[
        "input_ids"
    ]
    compact = load_policy(folder).eval()
    t = ids.shape[1]
    mask = torch.ones(t, t, dtype=torch.bool).tril()[None, None]
    with torch.inference_mode():
        ours = compact.logits(compact(ids, torch.arange(t)[None], mask))
        theirs = model(ids).logits
    assert torch.allclose(ours, theirs.float(), atol=2e-3), (ours - theirs).abs().max()


def test_policy_writes_right_calls_greedily(folder):
    """The policy is right about one time in three, the weak one hardly ever until it sees demonstrations."""
    from tokenizers import Tokenizer
    from world.evaluate import Evaluator
    from world.export import draw_tasks
    from world.model import load_policy

    tasks = draw_tasks("heldout_fresh", 400, 0, set())[:60]
    exact = {}
    for name in POLICIES:
        evaluator = Evaluator(
            load_policy(FIXTURES / name).eval(), Tokenizer.from_file(str(FIXTURES / name / "tokenizer.json"))
        )
        exact[name] = evaluator.greedy(tasks)["exact"]
        exact[f"{name} with demonstrations"] = evaluator.greedy(tasks, demos=2)["exact"]
    assert 0.15 <= exact["policy"] <= 0.5, exact
    assert exact["policy-weak"] <= 0.15, exact
    assert exact["policy-weak with demonstrations"] >= exact["policy-weak"] + 0.4, exact


def test_compact_sampler_writes_what_transformers_generates(policy, splits):
    from world.model import load_policy
    from world.sampling import sample

    folder, model, tokenizer = policy
    prompts = [
        tokenizer.apply_chat_template(
            row["messages"][:-1], tools=row["tools"], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for row in splits["heldout_fresh"][:3]
    ]
    ours = sample(load_policy(folder).eval(), prompts, tokenizer.eos_token_id, temperature=0.0, limit=100)
    for prompt, one in zip(prompts, ours, strict=True):
        import torch

        ids = torch.tensor([prompt])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=100)
        assert theirs[0, len(prompt) :].tolist() == one.ids
