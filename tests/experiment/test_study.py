"""The study: its recipe repeats itself, and its page says what its raw numbers say."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import polars as pl
import pytest
from support.tiny_model import task_row, tiny_model

from toolsample_cli.config import read_recipe
from toolsample_cli.experiment import runner as stage
from toolsample_cli.experiment.recipe import plans
from toolsample_cli.shards import schema
from toolsample_cli.shards.writing import Output
from toolsample_cli.stage import Options

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "study"))

import study  # noqa: E402

MEASURED = ("cpu_seconds",)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The [run] settings of a tiny corpus that a random policy sometimes answers rightly."""
    folder = tmp_path_factory.mktemp("study")
    tiny_model(folder)
    texts = {"gold_kind": "response", "gold_json": "[]", "gold_text": "no"}
    rows = [task_row(i, f"please tell me about number {i}", **texts) for i in range(24)]
    for name, some in (("corpus", rows), ("fresh", rows[:5])):
        with Output(folder / name, schema.TASKS, {}) as output:
            output.write(0, schema.frame(schema.TASKS, some))
            output.finish()
    return {"model": str(folder / "tiny"), "corpus": str(folder / "corpus"), "heldout": str(folder / "fresh")}


@pytest.mark.parametrize("arm", ["uniform", "everything"])
def test_a_run_of_the_study_repeats_itself(world: dict[str, str], tmp_path: Path, arm: str):
    """One arm and seed of the recipe, made small, twice: the same raw numbers, with the columns of those kept."""
    recipe = read_recipe(ROOT / "examples" / "study-small.toml")
    found = []
    for name in ("first", "again"):
        [plan] = plans(recipe, {**world, "rounds": 2}, [arm], [3])
        small = {"rollout": {"n": 4, "max_new_tokens": 8}, "curriculum": {"tasks_per_round": 6}}
        for part, changes in small.items():
            plan.configs[part] = dataclasses.replace(plan.configs[part], **changes)
        stage.run([plan], tmp_path / name, Options())
        found.append(pl.DataFrame(study.rows_of("tiny", tmp_path / name), infer_schema_length=None))
    first, again = (frame.drop(MEASURED) for frame in found)
    assert first.equals(again)
    assert first["round"].to_list() == [0, 1, 2] and first["rollouts"].to_list() == [0, 24, 48]
    assert found[0].columns == pl.read_parquet(study.RAW).columns


def test_the_recipe_has_the_arms_of_the_page():
    """Nine arms, five seeds each, at the same rollouts a round; what an arm changes is what its name says."""
    found = plans(read_recipe(ROOT / "examples" / "study-small.toml"), {}, [], [])
    assert tuple(dict.fromkeys(plan.arm for plan in found)) == (*study.ARMS, *study.TRIED)
    assert {plan.seed for plan in found} == set(range(5))
    spent = {(p.configs["rollout"].n, p.configs["curriculum"].tasks_per_round, p.run.rounds) for p in found}
    assert len(spent) == 1
    by_arm = {plan.arm: plan.configs for plan in found}
    assert [arm for arm in study.ARMS if by_arm[arm]["filter"].method == "rds"] == ["rds", "dscl", "everything"]
    assert [arm for arm in study.ARMS if by_arm[arm]["curriculum"].weighting == "weights"] == [
        "tdcl",
        "dscl",
        "everything",
    ]
    assert [arm for arm in study.ARMS if by_arm[arm]["curriculum"].hard == "fewshot"] == [
        "dmhs",
        "toolexpander",
        "everything",
    ]
    for arm in study.ARMS:
        assert by_arm[arm]["rollout"].self_examples == (by_arm[arm]["curriculum"].bonus > 0)
        assert by_arm[arm]["train"].kl == 0.0


def test_the_page_says_what_the_raw_numbers_say():
    """Every table of the page is made from docs/study/runs.parquet, and every run in it spent the same rollouts."""
    frame = pl.read_parquet(study.RAW)
    text = study.PAGE.read_text(encoding="utf-8")
    assert study.page(text, frame) == text
    assert set(study.POLICIES) <= set(frame["policy"])
    ends = frame.group_by("policy", "arm", "seed").agg(pl.col("rollouts").max())
    assert ends["rollouts"].n_unique() == 1
    seeds = {(policy, arm): n for policy, arm, n in ends.group_by("policy", "arm").len().iter_rows()}
    assert all(seeds["policy", arm] >= 5 for arm in study.ARMS)
    assert seeds["policy-weak", "uniform"] >= 5 and min(seeds.values()) >= 2
    for name in study.plots(frame):
        assert (study.FOLDER / name).exists() and f"({name})" in text


def test_reaching_a_score_is_interpolated():
    """Half way between two evaluations is half way between their rollouts; never is infinite."""
    rounds = tuple({"rollouts": 100 * i, "held_exact": score} for i, score in enumerate((0.2, None, 0.4, 0.3)))
    run = study.RunRecord("a", 0, rounds)
    assert study.reach(run, 0.3, "rollouts") == pytest.approx(100)
    assert study.reach(run, 0.1, "rollouts") == 0
    assert study.reach(run, 0.5, "rollouts") == float("inf")
    assert study.average(run) == pytest.approx((200 * 0.3 + 100 * 0.35) / 300)
