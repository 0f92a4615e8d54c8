"""The simulator: its learner's gradient is the true one, runs repeat, and the project's own rules drive it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def modules(root):
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        yield {name: importlib.import_module(name) for name in ("simulated_world", "simulated_fleet", "simulate")}
    finally:
        sys.path.remove(str(root / "benchmarks"))


@pytest.fixture(scope="module")
def small(modules):
    return modules["simulated_world"].Settings(tasks=120, tools=6)


def log_likelihood(world, tasks, shots, parts):
    """Of every completion, from the coins it was made of: an oracle for the gradient."""
    chance = np.clip(world.chances(tasks, shots), 1e-300, 1)
    wanted = world.arguments[tasks][:, None]
    keys = np.rint(parts["key"] * wanted)
    pairs = [
        (parts["format"], np.ones_like(keys), 0),
        (parts["name"], np.broadcast_to(world.has_call[tasks][:, None], keys.shape), 1),
        (keys, wanted * parts["name"], 2),
        (parts["value"], keys, 3),
    ]
    return sum(hits * np.log(chance[:, [k]]) + (tries - hits) * np.log1p(-chance[:, [k]]) for hits, tries, k in pairs)


def test_the_gradient_is_that_of_the_log_likelihood(modules, small):
    """Central differences in the shared skill of each sub-task, on tasks whose values can be hit."""
    world = modules["simulated_world"].World(small, 3)
    tasks = np.flatnonzero(~world.broken)[:40]
    shots = np.zeros(len(tasks), int)
    parts, gradient = world.roll(tasks, shots, 5)
    for k in range(4):
        world.shared[k] += 1e-5
        above = log_likelihood(world, tasks, shots, parts)
        world.shared[k] -= 2e-5
        below = log_likelihood(world, tasks, shots, parts)
        world.shared[k] += 1e-5
        assert np.allclose((above - below) / 2e-5, gradient[..., k], atol=1e-5)


def test_expected_value_is_the_mean_of_many_completions(modules, small):
    """`value` is computed, `roll` is sampled: they agree within five standard errors."""
    world = modules["simulated_world"].World(small, 1)
    tasks = np.arange(small.tasks)
    parts, _ = world.roll(tasks, np.zeros(small.tasks, int), 400)
    wanted = world.arguments[:, None]
    reward = parts["format"] + 6 * (parts["name"] + parts["key"] + parts["value"]) / (2 + wanted)
    scaled = np.where(world.has_call[:, None], reward / 7, parts["format"])
    error = scaled.std(axis=1).max() / np.sqrt(400 * small.tasks)
    assert abs(scaled.mean() - world.value()) < 5 * error
    assert world.value() < world.ceiling() < 1


@pytest.mark.parametrize("arm", ["none", "rds", "greso", "adarft", "dscl + dmhs", "drop"])
def test_a_run_repeats_and_every_world_is_its_own(modules, small, arm):
    """The same seeds give the same numbers, and a world alone goes the way it goes among others."""
    fleet, arms = modules["simulated_fleet"].Fleet, modules["simulate"].ARMS
    first = fleet(arms[arm], range(2), small, per_round=16).go(4)
    assert first == fleet(arms[arm], range(2), small, per_round=16).go(4)
    assert first[0] == fleet(arms[arm], range(1), small, per_round=16).go(4)[0]


def test_training_helps_and_hard_tasks_get_demonstrations(modules, small):
    """The learner's value rises; few-shot forms appear where the arm asks for them."""
    fleet = modules["simulated_fleet"].Fleet(modules["simulate"].ARMS["dmhs"], range(2), small, per_round=32)
    tracks = fleet.go(10)
    assert all(track["value"][-1] > track["value"][0] + 0.05 for track in tracks)
    assert fleet.history["shots"].max() >= 2


def test_reach_interpolates_and_knows_never(modules):
    reach = modules["simulate"].reach
    assert reach({"value": [0.0, 0.5, 1.0]}, 1.0, 100, share=0.75) == 150
    assert reach({"value": [0.0, 0.5]}, 1.0, 100) == float("inf")


def test_the_command_prints_one_object(root):
    """`--json` gives every arm with its interval."""
    command = [
        sys.executable,
        "benchmarks/simulate.py",
        "--json",
        "--seeds",
        "2",
        "--rounds",
        "2",
        "--arms",
        "none,dapo",
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["arms"]
    assert list(found) == ["none", "dapo"] and set(found["none"]["gain"]) == {"mean", "half"}
