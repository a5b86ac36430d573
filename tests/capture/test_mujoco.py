from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from unbroken.capture.environments import How, Verdict, env_policy
from unbroken.errors import StateMismatch
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.testing.env_oracle import _follow as follow
from unbroken.testing.env_oracle import three_way

pytest.importorskip("mujoco")
pytest.importorskip("imageio", reason="gymnasium.envs.mujoco needs it: pip install gymnasium[mujoco]")


def pair(name: str) -> tuple[Any, Any]:
    one, other = gym.make(name), gym.make(name)
    one.reset(seed=1)
    other.reset(seed=2)
    return one, other


CHOSEN = ("HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Humanoid-v5", "Pusher-v5")
"""Each needs something else of the simulator: see the next test and the module."""
EVERY = [
    name
    for name, spec in sorted(gym.registry.items())
    if str(spec.entry_point).startswith("gymnasium.envs.mujoco") and name.endswith(("-v4", "-v5"))
    if name != "Pusher-v4"  # which Gymnasium has only with MuJoCo 2
]


def product(name: str, before: int) -> Any:
    marks = [] if name in CHOSEN and before == 25 else [pytest.mark.exactness]
    return pytest.param(name, before, marks=marks, id=f"{name}, {before} steps")


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
@pytest.mark.parametrize(("name", "before"), [product(name, n) for name in EVERY for n in (25, 1_030)])
def test_a_simulation_goes_on_in_a_fresh_process(name: str, before: int) -> None:
    # 1,030 steps are past the time limit of each.
    outcome = three_way(partial(gym.make, name), before=before, after=40)
    assert outcome.verdict == Verdict(How.CAPTURER)
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart


def test_every_family_of_gymnasium_is_among_them() -> None:
    families = {name.rpartition("-")[0] for name in EVERY if name.endswith("-v5")}
    assert families == {
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
        "InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d",
    }  # fmt: skip


def test_positions_and_velocities_alone_would_not_do() -> None:
    # The reason for writing every array: what Gymnasium itself offers gives other rewards.
    one, other = pair("Ant-v5")
    actions = [one.action_space.sample() for _ in range(20)]
    follow(one, actions[:10])
    data = one.unwrapped.data
    other.unwrapped.set_state(data.qpos.copy(), data.qvel.copy())
    assert follow(one, actions[10:]) != follow(other, actions[10:])


def test_numbers_of_the_model_that_were_changed_in_the_run_come_back() -> None:
    one, other = pair("HalfCheetah-v5")
    one.unwrapped.model.body_mass[:] *= 1.25
    one.unwrapped.model.opt.gravity[2] = -3.7
    one.unwrapped.model.opt.timestep = 0.005
    follow(one, [one.action_space.sample() for _ in range(5)])
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    assert other.unwrapped.model.opt.timestep == 0.005
    assert np.array_equal(one.unwrapped.model.body_mass, other.unwrapped.model.body_mass)
    actions = [one.action_space.sample() for _ in range(10)]
    assert follow(one, actions) == follow(other, actions)


def test_the_data_is_restored_in_place() -> None:
    one, other = pair("Hopper-v5")
    data, view = other.unwrapped.data, other.unwrapped.data.qpos
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    assert other.unwrapped.data is data
    assert np.array_equal(view, one.unwrapped.data.qpos)


def test_another_model_is_an_error_that_names_the_sizes() -> None:
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    one, other = pair("HalfCheetah-v5")
    hopper = gym.make("Hopper-v5").unwrapped
    base = other.unwrapped
    assert isinstance(base, HalfCheetahEnv)
    base.model, base.data = hopper.model, hopper.data  # type: ignore[attr-defined]
    before = base.data.qpos.copy()
    graft = plan(capture({"env": one}, env_policy()), {"env": other}, env_policy())
    with pytest.raises(StateMismatch, match="nq=6"):
        graft.apply()
    assert np.array_equal(base.data.qpos, before)
