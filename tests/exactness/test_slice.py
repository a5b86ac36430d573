"""A slice of the matrix: something of each algorithm's kind, each family of environments, each way of capture, and what
others have lost (tests/test_fault_kinds.py names the cells).

`make exactness` proves all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exactness.matrix import BY_KEY
from exactness.oracle import Oracle

SLICE = [
    "PPO/schedule",
    "PPO/normalized",
    "PPO/noisy-workers",
    "PPO/past-the-end",
    "PPO/evaluated",
    "A2C/two",
    "DQN/wrapped-buffer",
    "DQN/target",
    "DQN/her",
    "SAC/schedule",
    "SAC/gsde",
    "SAC/warm-up",
    "TD3/episodes",
    "DDPG/noise",
    "contrib/recurrent-gsde",
    "contrib/crossq",
    "toy text/Blackjack",
    "Box2D/LunarLander-dqn",
    "MuJoCo/Ant",
    "ALE/Pong",
    "wrappers/vec-monitor",
    "hand-written loops/sync-next-step",
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    made = Oracle(tmp_path_factory.mktemp("cells"))
    yield made
    made.close()


@pytest.mark.parametrize("key", SLICE)
def test_a_killed_run_ends_as_the_undisturbed_one(key: str, oracle: Oracle) -> None:
    row = oracle.prove(BY_KEY[key])
    assert row.holds, row.reason
