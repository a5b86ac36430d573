from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import pytest

from unbroken.capture.environments import How, Verdict, attach, env_policy, put_in
from unbroken.errors import ConfigError, RestoreFailed
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.testing.env_oracle import _follow as follow
from unbroken.testing.env_oracle import three_way
from unbroken.types import Fidelity

pytest.importorskip("Box2D")
from unbroken.envs import FreshWorld


def walker(**options: Any) -> gym.Env[Any, Any]:
    return gym.make("BipedalWalker-v3", **options)


def fresh(**options: Any) -> gym.Env[Any, Any]:
    return FreshWorld(walker(**options))


def inside(**options: Any) -> gym.Env[Any, Any]:
    """The wrapper between others."""
    base = walker(**options).unwrapped
    return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(FreshWorld(base), 70))


@pytest.mark.parametrize(
    ("make", "before"),
    [(fresh, 0), (fresh, 40), (fresh, 400), (partial(fresh, hardcore=True), 400), (inside, 320)],
    ids=["after the reset", "first episode", "many episodes", "hardcore", "between wrappers"],
)
def test_in_new_worlds_a_replay_of_the_episode_is_exact(make: Any, before: int) -> None:
    outcome = three_way(make, before=before, after=120)
    assert outcome.verdict == Verdict(How.REPLAY)
    assert outcome.readback == []
    assert outcome.exact
    assert outcome.told_apart


def replays(make: Any, cuts: int = 8) -> list[bool]:
    """Cut at many places of one run, each with its actions since the last reset alone; say which held."""
    one, other = make(), make()
    held: list[bool] = []
    for seed, env in enumerate((one, other)):
        env.action_space.seed(3)
        env.reset(seed=seed)
        put_in(env, Verdict(How.REPLAY))
    for _ in range(cuts):
        follow(one, [one.action_space.sample() for _ in range(60)])
        one.reset()
        follow(one, [one.action_space.sample() for _ in range(30)])
        try:
            plan(capture({"env": one}, env_policy()), {"env": other}, env_policy()).apply()
        except RestoreFailed:
            held.append(False)
        else:
            actions = [one.action_space.sample() for _ in range(20)]
            held.append(follow(one, actions) == follow(other, actions))
    return held


def test_in_one_world_for_all_episodes_it_is_not() -> None:
    # The reason for the wrapper, and the control of the test above.
    assert not all(replays(walker))
    assert all(replays(fresh))


def test_the_first_episode_is_the_same_as_without_the_wrapper() -> None:
    plain, wrapped = walker(), fresh()
    actions = [plain.action_space.sample() for _ in range(60)]
    assert plain.reset(seed=4)[0].tobytes() == wrapped.reset(seed=4)[0].tobytes()
    for action in actions:
        one, other = plain.step(action), wrapped.step(action)
        assert one[0].tobytes() == other[0].tobytes()
        if one[2]:
            break


def test_an_episode_depends_on_its_own_start_alone() -> None:
    used, new = fresh(), fresh()
    used.reset(seed=1)
    follow(used, [used.action_space.sample() for _ in range(200)])
    actions = [new.action_space.sample() for _ in range(60)]
    used.reset(seed=9)
    new.reset(seed=9)
    assert follow(used, actions) == follow(new, actions)


def test_it_is_refused_around_anything_else() -> None:
    lander = gym.make("LunarLander-v3")
    with pytest.raises(ConfigError, match="LunarLander is none") as refusal:
        FreshWorld(lander)
    assert "Leave the wrapper out" in refusal.value.hint


def test_without_the_wrapper_the_whole_history_is_replayed() -> None:
    env = walker(hardcore=True)
    env.reset(seed=1)
    verdict = attach(env).verdict
    assert (verdict.how, verdict.fidelity) == (How.WHOLE_REPLAY, Fidelity.EXACT)
    outcome = three_way(partial(walker, hardcore=True), before=300, after=60)
    assert outcome.exact
    assert outcome.told_apart
