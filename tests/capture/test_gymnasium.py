from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers

from unbroken.capture.environments import attach, env_policy
from unbroken.errors import StateMismatch
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.testing.env_oracle import _follow as follow
from unbroken.testing.env_oracle import three_way
from unbroken.types import Fidelity


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("CartPole-v1", 30),
        ("Pendulum-v1", 230),  # in the second episode: the limit of 200 steps counts in a wrapper
        ("Acrobot-v1", 30),
        ("MountainCar-v0", 30),
        ("MountainCarContinuous-v0", 30),
        ("FrozenLake-v1", 4),
        ("Taxi-v3", 11),
        ("Blackjack-v1", 3),
        ("CliffWalking-v1", 9),
    ],
)
def test_an_environment_goes_on_in_a_fresh_process(name: str, before: int) -> None:
    outcome = three_way(partial(gym.make, name), before=before)
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart
    assert outcome.verdict.fidelity is Fidelity.EXACT


def stacked() -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = gym.make("Pendulum-v1")
    env = wrappers.RecordEpisodeStatistics(env)
    env = wrappers.ClipAction(env)
    env = wrappers.NormalizeObservation(env)
    env = wrappers.NormalizeReward(env)
    env = wrappers.FrameStackObservation(env, 3)
    return wrappers.DelayObservation(env, 2)


def minigrid() -> gym.Env[Any, Any]:
    from minigrid.wrappers import FlatObsWrapper  # the package registers its environments

    return FlatObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))


@pytest.mark.parametrize("make", [stacked, minigrid])
def test_a_chain_of_wrappers_goes_on_in_a_fresh_process(make: Callable[[], Any]) -> None:
    outcome = three_way(make, before=210)
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart


def test_generators_of_spaces_come_back_and_stay_apart() -> None:
    one, other = gym.make("Pendulum-v1"), gym.make("Pendulum-v1")
    for env, seed in ((one, 3), (other, 4)):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        env.observation_space.seed(seed)
    snapshot = capture({"env": one}, env_policy())
    plan(snapshot, {"env": other}, env_policy()).apply()
    for _ in range(3):
        assert np.array_equal(one.action_space.sample(), other.action_space.sample())
        assert np.array_equal(one.observation_space.sample(), other.observation_space.sample())
    drawn = other.unwrapped.np_random.bit_generator.state
    other.action_space.sample()
    assert other.unwrapped.np_random.bit_generator.state == drawn


class Common(gym.Env[Any, Any]):
    """What most people write: spaces in the body of the class."""

    action_space = gym.spaces.Discrete(100)
    observation_space = gym.spaces.Box(-1, 1, (2,))


class OfItsOwn(Common):
    """One of its spaces stands on the class, one on the object."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.Discrete(100)


def test_spaces_of_a_class_come_back_and_stay_shared() -> None:
    def state() -> dict[str, Any]:
        return {"one": Common(), "other": Common(), "third": OfItsOwn()}

    live = state()
    for number, space in enumerate(
        (Common.action_space, Common.observation_space, live["third"].action_space)
    ):
        space.seed(number)
        space.sample()
    snapshot = capture(live, env_policy())
    expected = [(live[name].action_space.sample(), *live[name].observation_space.sample()) for name in live]
    twin = state()
    own = twin["third"].action_space
    plan(snapshot, twin, env_policy()).apply()
    assert compare(snapshot, capture(twin, env_policy())) == []
    assert [
        (twin[name].action_space.sample(), *twin[name].observation_space.sample()) for name in twin
    ] == expected
    assert twin["one"].action_space is twin["other"].action_space is Common.action_space
    assert twin["third"].action_space is own
    assert not {"action_space", "observation_space"} & vars(twin["one"]).keys()


def test_spaces_that_a_class_remembers_for_its_agents_come_back() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")

    class Pair(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined]
        possible_agents: ClassVar[list[str]] = ["left", "right"]

        @cache  # noqa: B019 - as PettingZoo's own guide has it
        def action_space(self, agent: str) -> Any:
            return gym.spaces.Discrete(100)

        def observation_space(self, agent: str) -> Any:
            return self.spaces[agent]

        spaces: ClassVar[dict[str, Any]] = {agent: gym.spaces.Box(-1, 1) for agent in ("left", "right")}

    def drawn(env: Any) -> list[Any]:
        names = ("action_space", "observation_space")
        return [np.asarray(getattr(env, n)(a).sample()).tolist() for n in names for a in env.possible_agents]

    one, other = Pair(), Pair()
    for number, agent in enumerate(Pair.possible_agents):
        one.action_space(agent).seed(number)
        one.observation_space(agent).seed(number)
    drawn(one)
    snapshot = capture({"env": one}, env_policy())
    expected = drawn(one)
    plan(snapshot, {"env": other}, env_policy()).apply()
    assert drawn(other) == expected


def test_a_vector_of_environments_goes_on() -> None:
    def make() -> gym.vector.SyncVectorEnv:
        return gym.vector.SyncVectorEnv([partial(gym.make, "CartPole-v1") for _ in range(3)])

    def answers(env: gym.vector.SyncVectorEnv) -> list[bytes]:
        actions = np.random.default_rng(1).integers(0, 2, size=(80, 3))
        return [env.step(a)[0].tobytes() for a in actions]

    one, other, cold = make(), make(), make()
    one.reset(seed=1)
    other.reset(seed=50)
    cold.reset(seed=50)
    for action in np.random.default_rng(0).integers(0, 2, size=(30, 3)):
        one.step(action)
    attachments = [attach(env) for env in (one, other)]
    assert all(a.verdict.fidelity is Fidelity.EXACT for a in attachments)
    plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
    expected = answers(one)
    assert answers(other) == expected
    assert answers(cold) != expected


def test_pictures_stay_behind() -> None:
    pytest.importorskip("pygame")
    one = gym.make("CartPole-v1", render_mode="rgb_array")
    one.reset(seed=1)
    one.render()
    other = gym.make("CartPole-v1", render_mode="rgb_array")
    other.reset(seed=2)
    snapshot = capture({"env": one}, env_policy())
    assert {note.kind for note in snapshot.notes} == {"external"}
    graft = plan(snapshot, {"env": other}, env_policy())
    assert graft.errors == []
    graft.apply()
    assert follow(one, [0, 1, 1, 0]) == follow(other, [0, 1, 1, 0])
    assert other.render() is not None


def test_another_environment_is_an_error_before_anything_is_touched() -> None:
    one, other = gym.make("CartPole-v1"), gym.make("Pendulum-v1")
    one.reset(seed=1)
    other.reset(seed=2)
    before = other.unwrapped.np_random.bit_generator.state
    graft = plan(capture({"env": one}, env_policy()), {"env": other}, env_policy())
    with pytest.raises(StateMismatch, match="CartPole"):
        graft.apply()
    assert other.unwrapped.np_random.bit_generator.state == before


def test_nothing_is_left_on_an_environment_after_detach() -> None:
    for name in ("CartPole-v1", "LunarLander-v3"):
        env = gym.make(name)
        env.reset(seed=1)
        attach(env).detach()
        assert not {"step", "reset"} & vars(env.unwrapped).keys()
