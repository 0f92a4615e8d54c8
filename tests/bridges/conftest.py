"""One scored world for all tests of this folder."""

from __future__ import annotations

import pytest
from support.bridge_world import World, bridge_world, world_task


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """125 tasks with eight answers each: 1,000 scored rollouts."""
    return bridge_world(tmp_path_factory.mktemp("bridge"), [world_task(number) for number in range(125)])
