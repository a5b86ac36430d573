"""Gymnasium's vectors of environments go on in a fresh process, in this process and in others."""

from __future__ import annotations

import gc
import importlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from unbroken.capture import registry
from unbroken.capture.replay_cost import teller_of
from unbroken.capture.seeds import seeds_of
from unbroken.capture.source import policy_of_loaded
from unbroken.capture.watched import WatchedEnvironments
from unbroken.errors import NotCapturable, StateMismatch
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.testing.env_oracle import three_way_vector
from unbroken.types import Fidelity

Vector = VectorEnv[Any, Any, Any]


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "worlds"))
    import roomy  # type: ignore[import-not-found]

    return roomy


def of_rooms(name: str, kind: Callable[..., Vector], **options: Any) -> Vector:
    """Importable in the fresh process, whose path the oracle sets."""
    roomy: Any = importlib.import_module("roomy")
    return kind([getattr(roomy, name)] * 3, **options)


def vector_of(name: str, kind: Callable[..., Vector], count: int = 2, **options: Any) -> Vector:
    return kind([partial(gym.make, name)] * count, **options)


def proved(outcome: Any) -> None:
    assert outcome.readback == []
    assert outcome.restored == outcome.undisturbed
    assert outcome.exact
    assert outcome.told_apart
    assert outcome.promise.fidelity is Fidelity.EXACT


@pytest.mark.parametrize(
    ("mode", "shared"),
    [
        (AutoresetMode.NEXT_STEP, True),
        (AutoresetMode.NEXT_STEP, False),
        (AutoresetMode.SAME_STEP, True),
        (AutoresetMode.DISABLED, False),
    ],
)
def test_environments_in_processes_of_gymnasium_go_on(mode: AutoresetMode, shared: bool) -> None:
    kind = partial(AsyncVectorEnv, shared_memory=shared, autoreset_mode=mode)
    proved(three_way_vector(partial(of_rooms, "Roomy", kind), before=until_an_end(kind)))


def until_an_end(kind: Callable[..., Vector]) -> int:
    """Return after how many steps an episode has just ended, and the others go on."""
    vector = of_rooms("Roomy", kind)
    vector.reset(seed=7)
    vector.action_space.seed(7)
    steps = 0
    while True:
        _, _, ended, _, _ = vector.step(vector.action_space.sample())
        steps += 1
        if ended.any():
            vector.close()
            return steps


@pytest.mark.parametrize(
    ("name", "mode"), [("Quiet", AutoresetMode.NEXT_STEP), ("Paired", AutoresetMode.SAME_STEP)]
)
def test_environments_in_this_process_go_on(name: str, mode: AutoresetMode) -> None:
    kind = partial(SyncVectorEnv, autoreset_mode=mode, copy=False)
    proved(three_way_vector(partial(of_rooms, name, kind), before=until_an_end(kind)))


def wrapped(kind: Callable[..., Vector]) -> Vector:
    vector: Vector = vector_of("Pendulum-v1", kind)
    vector = wrappers.RecordEpisodeStatistics(vector)
    vector = wrappers.RescaleAction(vector, -1.0, 1.0)
    vector = wrappers.ClipAction(vector)
    vector = wrappers.RescaleObservation(vector, np.float32(-1), np.float32(1))
    vector = wrappers.NormalizeObservation(vector)
    vector = wrappers.TransformReward(vector, np.negative)
    vector = wrappers.NormalizeReward(vector, gamma=0.9)
    vector = wrappers.ClipReward(vector, -5, 5)
    return wrappers.DictInfoToList(vector)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_wrappers_of_a_vector_go_on(kind: Callable[..., Vector]) -> None:
    proved(three_way_vector(partial(wrapped, kind), before=230, after=190))


def tall() -> gym.Env[Any, Any]:
    """A chain of wrappers around each environment."""
    env: gym.Env[Any, Any] = gym.make("LunarLander-v3", continuous=True)
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env = gym.wrappers.ClipAction(env)
    env = gym.wrappers.NormalizeObservation(env)
    env = gym.wrappers.NormalizeReward(env)
    env = gym.wrappers.FrameStackObservation(env, 3)
    return gym.wrappers.TimeLimit(env, 40)


def test_chains_of_wrappers_and_a_replay_go_on_in_workers() -> None:
    pytest.importorskip("Box2D")
    proved(three_way_vector(lambda: AsyncVectorEnv([tall] * 2), before=55))


def play_of_atari() -> gym.Env[Any, Any]:
    import ale_py

    gym.register_envs(ale_py)
    env: gym.Env[Any, Any] = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=10)
    return gym.wrappers.FrameStackObservation(env, 2)


@pytest.mark.exactness
def test_emulators_go_on_in_workers() -> None:
    pytest.importorskip("ale_py")
    proved(three_way_vector(lambda: AsyncVectorEnv([play_of_atari] * 2), before=30, after=30))


def test_what_the_next_step_resets_is_remembered(roomy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the loop's own variable an episode that is over would be stepped on."""
    assert restored_in_another(roomy, stepped_before=0) == ["the same"]
    monkeypatch.setattr("unbroken.capture.async_vectors.AsyncAgent.remembered", ())
    assert restored_in_another(roomy, stepped_before=0) == ["another"]


def test_a_reset_of_some_after_the_restore_tells_where_the_others_stand(roomy: Any) -> None:
    def make() -> Vector:
        return AsyncVectorEnv([roomy.Quiet] * 3, shared_memory=False, autoreset_mode="Disabled")

    one, other = make(), make()
    try:
        other.reset(seed=50)
        one.reset(seed=7)
        ended = np.zeros(3, bool)
        while not ended.any():
            _, _, ended, _, _ = one.step(np.ones(3, int))
        assert not ended.all()
        WatchedEnvironments().watch({"one": one, "other": other})
        policy = policy_of_loaded()
        plan(capture({"env": one}, policy), {"env": other}, policy).apply()
        wanted, found = (vector.reset(options={"reset_mask": ended})[0] for vector in (one, other))
        assert np.array_equal(wanted["at"], found["at"])
        assert np.array_equal(wanted["room"], found["room"])
    finally:
        one.close()
        other.close()


def test_a_worker_about_to_reset_can_be_brought_to_where_it_is_not(roomy: Any) -> None:
    found = restored_in_another(roomy, stepped_before=until_an_end(AsyncVectorEnv), cut_at=12)
    assert found == ["the same"]


def restored_in_another(roomy: Any, stepped_before: int, cut_at: int | None = None) -> list[str]:
    """Lay the state of one vector over another one, and say whether both go on in the same way."""
    one, other = AsyncVectorEnv([roomy.Roomy] * 3), AsyncVectorEnv([roomy.Roomy] * 3)
    try:
        for vector, steps in ((one, cut_at or until_an_end(AsyncVectorEnv)), (other, stepped_before)):
            vector.reset(seed=7)
            vector.action_space.seed(7)
            for _ in range(steps):
                vector.step(vector.action_space.sample())
        WatchedEnvironments().watch({"one": one, "other": other})
        policy = policy_of_loaded()
        plan(capture({"env": one}, policy), {"env": other}, policy).apply()
        actions = np.ones((30, 3), int)
        expected: list[list[float]] = [list(one.step(action)[1]) for action in actions]
        return ["the same" if [list(other.step(a)[1]) for a in actions] == expected else "another"]
    finally:
        one.close()
        other.close()


def test_statistics_of_wrappers_are_read_back_from_every_worker() -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.wrappers.NormalizeObservation(gym.make("Pendulum-v1"))

    one, other = AsyncVectorEnv([make] * 2), AsyncVectorEnv([make] * 2)
    try:
        for vector, steps in ((one, 20), (other, 3)):
            vector.reset(seed=steps)
            for _ in range(steps):
                vector.step(np.zeros((2, 1), np.float32))
        WatchedEnvironments().watch({"one": one, "other": other})
        wanted = [rms.mean.tolist() for rms in one.get_attr("obs_rms")]
        assert [rms.mean.tolist() for rms in other.get_attr("obs_rms")] != wanted
        policy = policy_of_loaded()
        plan(capture({"env": one}, policy), {"env": other}, policy).apply()
        assert [rms.mean.tolist() for rms in other.get_attr("obs_rms")] == wanted
    finally:
        one.close()
        other.close()


def test_an_environment_that_is_a_vector_by_itself_goes_on() -> None:
    make = partial(gym.make_vec, "CartPole-v1", 3, vectorization_mode="vector_entry_point")
    proved(three_way_vector(make, before=33))


def test_what_a_replay_in_workers_costs_is_known_here() -> None:
    pytest.importorskip("Box2D")
    vector = AsyncVectorEnv([partial(gym.make, "LunarLander-v3")] * 2)
    try:
        vector.reset(seed=1)
        watched = WatchedEnvironments()
        watched.watch({"env": vector})
        teller = teller_of(vector)
        assert teller is not None
        for _ in range(5):
            vector.step(np.zeros(2, int))
        cost = teller()
        assert (cost.environments, cost.steps) == (2, 10)
        watched.release()
        assert teller().environments == 0, "a recorder is left in a worker"
    finally:
        vector.close()


def test_a_vector_that_nobody_holds_any_more_goes() -> None:
    vector = AsyncVectorEnv([partial(gym.make, "CartPole-v1")])
    WatchedEnvironments().watch({"env": vector})
    (process,) = vector.processes
    del vector
    gc.collect()
    assert not process.is_alive()


class Engine(gym.Env[Any, Any]):
    """Its state is in an object that no walk gets into."""

    observation_space = gym.spaces.Box(-1000, 1000, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.state: Iterator[int] = iter(deque[int]())

    def put(self, at: int) -> None:
        self.at, self.state = at, iter(deque(range(at, 10_000)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.put(int(self.np_random.integers(100)))
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = next(self.state) + 1
        return np.array([self.at], float), 0.0, False, False, {}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_users_capturer_is_known_in_the_workers_too(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    makers = [Engine]
    one, other = AsyncVectorEnv(makers, context=context), AsyncVectorEnv(makers, context=context)
    monkeypatch.setattr(registry, "_captors", {})
    registry.register_env_capturer(
        Engine, capture=lambda env: {"at": env.at}, restore=lambda env, state: env.put(state["at"])
    )
    try:
        for vector, seed in ((one, 1), (other, 2)):
            vector.reset(seed=seed)
            vector.step(np.zeros(1, int))
        promise = WatchedEnvironments().watch({"one": one, "other": other})["env_states"]
        assert promise.fidelity is Fidelity.EXACT
        policy = policy_of_loaded()
        plan(capture({"env": one}, policy), {"env": other}, policy).apply()
        for _ in range(3):
            assert np.array_equal(one.step(np.zeros(1, int))[0], other.step(np.zeros(1, int))[0])
    finally:
        one.close()
        other.close()


def test_an_answer_that_is_awaited_is_in_the_way_of_a_save() -> None:
    vector = AsyncVectorEnv([partial(gym.make, "CartPole-v1")])
    vector.reset(seed=1)
    WatchedEnvironments().watch({"env": vector})
    vector.step_async(np.zeros(1, int))
    with pytest.raises(NotCapturable, match="step_async is under way") as refused:
        capture({"env": vector}, policy_of_loaded())
    assert "step_wait()" in str(refused.value.hint)
    vector.step_wait()
    capture({"env": vector}, policy_of_loaded())
    vector.close()
    with pytest.raises(NotCapturable, match="closed"):
        capture({"env": vector}, policy_of_loaded())


def test_a_worker_of_the_users_own_is_not_captured_and_named() -> None:
    from gymnasium.vector.async_vector_env import _async_worker

    def own(*args: Any) -> None:
        _async_worker(*args)

    vector = AsyncVectorEnv([partial(gym.make, "CartPole-v1")], worker=own, context="fork")
    try:
        promise = WatchedEnvironments().watch({"env": vector})["env_states"]
        assert promise.fidelity is Fidelity.NOT_CAPTURED
        assert "its worker is a function of the program" in promise.reason
        capture({"env": vector}, policy_of_loaded())
    finally:
        vector.close()


def test_another_number_of_environments_is_an_error_before_anything_is_touched(roomy: Any) -> None:
    one, other = AsyncVectorEnv([roomy.Roomy] * 2), AsyncVectorEnv([roomy.Roomy] * 3)
    try:
        one.reset(seed=1)
        other.reset(seed=2)
        WatchedEnvironments().watch({"one": one, "other": other})
        before = other.get_attr("at")
        graft = plan(capture({"env": one}, policy_of_loaded()), {"env": other}, policy_of_loaded())
        with pytest.raises(StateMismatch, match="2 workers were saved and the program has 3"):
            graft.apply()
        assert all(map(np.array_equal, other.get_attr("at"), before))
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_the_seed_of_each_environment_is_told_by_its_index(kind: Callable[..., Vector]) -> None:
    vector = wrappers.RecordEpisodeStatistics(vector_of("CartPole-v1", kind, count=3))
    vector.reset(seed=40)
    WatchedEnvironments().watch({"env": vector})
    capture({"env": vector}, policy_of_loaded())
    assert seeds_of(vector) == [40, 41, 42]
    vector.close()


def test_the_seed_of_a_single_environment_is_told_too() -> None:
    env = gym.make("CartPole-v1")
    assert seeds_of(env) == [None]
    env.reset(seed=5)
    assert seeds_of(env) == [5]
