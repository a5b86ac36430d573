"""What the matrix covers, and the choice of cells."""

from __future__ import annotations

import gymnasium
import pytest
import sb3_contrib
import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm

from exactness.matrix import BY_KEY, CELLS, chosen


def test_names_are_unique_and_there_are_enough() -> None:
    assert len(BY_KEY) == len(CELLS) >= 60


@pytest.mark.parametrize("package", [stable_baselines3, sb3_contrib], ids=lambda package: package.__name__)
def test_every_algorithm_has_a_cell(package: object) -> None:
    there = {
        name
        for name, value in vars(package).items()
        if isinstance(value, type) and issubclass(value, BaseAlgorithm)
    }
    assert there
    assert there - {cell.algorithm.replace("-", "") for cell in CELLS} == set()


def test_every_robot_of_gymnasium_has_a_cell() -> None:
    there = {
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith("gymnasium.envs.mujoco") and name.endswith("-v5")
    }
    assert len(there) == 11
    assert there - {cell.environment for cell in CELLS} == set()


def test_only_what_cannot_be_captured_is_claimed_to_be_less_than_exact() -> None:
    less = {cell.key: cell.claim for cell in CELLS if cell.claim != "exact"}
    assert less == {
        "of one's own/clock": "approximate",
        "of one's own/handle": "approximate",
        "of one's own/address-restored": "refused",
        "hand-written loops/atari-in-c": "impossible",
    }
    assert all(bool(cell.because) == (cell.claim != "exact") for cell in CELLS)


def test_patterns_choose_cells_whatever_their_case() -> None:
    assert {cell.group for cell in chosen(["ppo/*"])} == {"PPO"}
    assert {cell.environment for cell in chosen(["*LUNAR*"])} == {"LunarLander-v3"}
    assert {cell.group for cell in chosen(["Contrib"])} == {"contrib"}
    assert {cell.environment for cell in chosen(["Lunar"])} >= {"LunarLander-v3"}
    assert chosen(["nothing"]) == []
    assert chosen([]) == list(CELLS)
