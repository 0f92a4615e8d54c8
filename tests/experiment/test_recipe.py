"""Recipes become plans: arms, seeds, precedence, and refusals that name the nearest valid word."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolsample_cli.config import RunConfig, TrainConfig, read_recipe
from toolsample_cli.config.settings import resolve
from toolsample_cli.errors import ConfigError
from toolsample_cli.experiment.recipe import plans
from toolsample_cli.train.loss import advantage_of, rule_of
from toolsample_cli.train.schedule import schedule_of

TEXT = """
[run]
corpus = "c"
model = "m"
seeds = "0,3"
[train]
lr = 1e-3
[arms.uniform.filter]
method = "none"
[arms.dscl.train]
steps = 2
"""


def recipe(tmp_path: Path, text: str = TEXT) -> dict:
    path = tmp_path / "r.toml"
    path.write_text(text, encoding="utf-8")
    return read_recipe(path)


def test_every_arm_and_seed_becomes_a_plan_of_its_own(tmp_path: Path):
    """Arms override the common tables, seeds reach every seeded stage, folders do not collide."""
    found = plans(recipe(tmp_path), {}, [], [])
    assert [(p.arm, p.seed, p.folder) for p in found] == [
        ("uniform", 0, "uniform/seed-0"),
        ("uniform", 3, "uniform/seed-3"),
        ("dscl", 0, "dscl/seed-0"),
        ("dscl", 3, "dscl/seed-3"),
    ]
    assert [p.configs["train"].steps for p in found] == [TrainConfig().steps] * 2 + [2, 2]
    assert {p.configs["train"].lr for p in found} == {1e-3}
    assert found[0].configs["filter"].method == "none"
    assert [p.configs["rollout"].seed for p in found] == [0, 3, 0, 3]


def test_selection_of_arms_and_seeds(tmp_path: Path):
    """--arm and --seed pick; an unknown arm names the nearest."""
    assert [p.folder for p in plans(recipe(tmp_path), {}, ["dscl"], [3])] == ["dscl/seed-3"]
    with pytest.raises(ConfigError, match="no arm 'dcsl'") as caught:
        plans(recipe(tmp_path), {}, ["dcsl"], [])
    assert "dscl" in caught.value.hint


def test_a_flag_wins_over_the_recipe_over_the_default(tmp_path: Path):
    """Precedence, stated once."""
    table = recipe(tmp_path)["run"]
    assert resolve(RunConfig, {"model": "flag", "rounds": None}, table) == RunConfig(
        corpus="c", model="flag", seeds="0,3"
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[train]\nlerning_rate = 1.0", "unknown key in [train]: 'lerning_rate'", "lr"),
        ("[trian]\nlr = 1.0", "unknown table: 'trian'", "train"),
        ("[arms.a.trian]\nlr = 1.0", "arm a: unknown table: 'trian'", "train"),
        ("[arms.a.train]\nlrr = 1.0", "arm a: unknown key in [train]: 'lrr'", "lr"),
        ("train = 3", "train must be a table", None),
        ("[train\nlr = 1", "not valid TOML", None),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_nearest_word(tmp_path: Path, text: str, message: str, hint: str | None):
    """Nothing is silently ignored."""
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text)
    assert message in str(caught.value)
    if hint:
        assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": "fast"}, "expected float, got str"),
        ({"steps": 1.5}, "expected int, got float"),
        ({"steps": True}, "expected int, got bool"),
        ({"steps": 0}, "must be at least 1"),
        ({"clip_low": 2.0}, "must be at most 1"),
        ({"objective": "gpro"}, "did you mean 'grpo'"),
        ({"lr": float("nan")}, "finite number"),
    ],
)
def test_values_out_of_range_are_refused(values: dict, message: str):
    """Type, choice and range are checked for recipe keys as for flags."""
    with pytest.raises(ConfigError) as caught:
        resolve(TrainConfig, {}, values)
    assert message in f"{caught.value} {caught.value.hint}"


def test_arm_toolrl_is_toolrls():
    """Its scripts' numbers (methods 3.6) and its fork's defaults, after resolving what the recipe leaves open."""
    recipe = read_recipe(Path(__file__).resolve().parents[2] / "examples" / "qwen2.5-1.5b.toml")
    configs = plans(recipe, {}, ["toolrl"], [])[0].configs
    rollout, train, draw = configs["rollout"], configs["train"], configs["curriculum"]
    assert (rollout.n, rollout.temperature, rollout.max_prompt_tokens, rollout.max_new_tokens) == (4, 1.0, 2048, 1024)
    assert (draw.tasks_per_round, draw.tasks_per_round // train.steps, configs["run"].rounds) == (512, 128, 105)
    assert rule_of(train).describe() == "grpo clip 0.2/0.2, no dual clip, over tokens, entropy 0.001"
    assert advantage_of(train) == "group_sample_std"
    assert schedule_of(train).describe(15, 105, 420) == "1e-06 from start to end"
    assert (train.max_grad_norm, train.weight_decay, train.kl, train.epochs) == (1.0, 0.01, 0.0, 1)
    assert (configs["filter"].method, draw.weighting, draw.hard) == ("none", "none", "keep")
