"""A verdict is of the whole chain: a wrapper of the user's own is tried, whatever stands below or above it."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from unbroken.adapters.sb3.workers import workers_of
from unbroken.capture.environments import How, Verdict, known
from unbroken.capture.probe import own_layers, probe, probe_factory
from unbroken.capture.source import policy_of_loaded
from unbroken.capture.uncovered import uncovered
from unbroken.capture.workers import look_at
from unbroken.state import walk
from unbroken.types import Fidelity

WORLDS = Path(__file__).parent / "worlds"


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(WORLDS))
    importlib.import_module("liars")
    return importlib.import_module("wrappers")


def placed(name: str, worlds: Any, base: str) -> gym.Env[Any, Any]:
    env = gym.make(base)
    limited = partial(gym.wrappers.TimeLimit, max_episode_steps=50)
    places: dict[str, Callable[[], gym.Env[Any, Any]]] = {
        "outermost": lambda: worlds.Fading(env),
        "in Monitor": lambda: Monitor(worlds.Fading(env)),
        "in TimeLimit": lambda: limited(worlds.Fading(env)),
        "between two": lambda: Monitor(worlds.Fading(limited(env))),
        "recorded": lambda: worlds.Recorded(env),
        "recorded, in Monitor": lambda: Monitor(worlds.Recorded(env)),
        "around Monitor": lambda: worlds.Fading(Monitor(env)),
        "around a good one": lambda: worlds.Fading(worlds.Counting(env)),
        "in a good one": lambda: worlds.Counting(worlds.Fading(env)),
        "a function": lambda: gym.wrappers.TransformReward(env, worlds.faded),
        "a function, in Monitor": lambda: Monitor(gym.wrappers.TransformReward(env, worlds.faded)),
    }
    return places[name]()


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("outermost", "CartPole-v1"),
        ("in Monitor", "Honest-v0"),
        ("in TimeLimit", "CartPole-v1"),
        ("between two", "Honest-v0"),
        ("recorded", "Honest-v0"),
        ("recorded, in Monitor", "CartPole-v1"),
        ("around Monitor", "CartPole-v1"),
        ("around a good one", "CartPole-v1"),
        ("in a good one", "Honest-v0"),
        ("a function", "CartPole-v1"),
        ("a function, in Monitor", "Honest-v0"),
    ],
)
def test_a_wrapper_that_keeps_state_out_of_reach_is_found(name: str, base: str, worlds: Any) -> None:
    verdict = probe(placed(name, worlds, base))
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "out of reach, in wrappers.steps" in verdict.reason


@pytest.mark.parametrize(
    ("base", "how"),
    [("CartPole-v1", How.STRUCTURAL), ("Honest-v0", How.STRUCTURAL), ("Hidden-v0", How.REPLAY)],
)
def test_a_wrapper_that_keeps_all_in_its_attributes_is_exact(base: str, how: How, worlds: Any) -> None:
    assert probe(Monitor(worlds.Counting(gym.make(base)))) == Verdict(how)


def test_a_twin_that_lacks_a_layer_or_has_another_is_none(worlds: Any) -> None:
    real: Any = Monitor(worlds.Fading(gym.make("CartPole-v1")))
    assert [name.partition(":")[2] for name in own_layers(real)] == ["Fading", "CartPoleEnv"]
    bare = partial(gym.make, "CartPole-v1")
    verdict = probe_factory(bare, layers=own_layers(real))
    assert verdict.fidelity is Fidelity.APPROXIMATE
    assert "could not be built again (what comes out is" in verdict.reason
    assert probe_factory(bare, layers=own_layers(gym.make("CartPole-v1"))) == Verdict(How.STRUCTURAL)


def test_a_librarys_own_transformations_are_known_by_name_and_a_persons_are_not(worlds: Any) -> None:
    env = gym.make("Pendulum-v1")
    ours = gym.wrappers.TransformReward(env, worlds.faded)
    theirs: Any = gym.wrappers.ClipReward(
        gym.wrappers.FlattenObservation(gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))), 0, 1
    )
    assert known(theirs) == Verdict(How.STRUCTURAL)
    assert known(ours) is None
    assert known(gym.wrappers.TransformReward(env, partial(worlds.faded))) is None


def test_a_wrapper_in_a_worker_is_found(worlds: Any) -> None:
    vector = SubprocVecEnv([lambda: Monitor(worlds.Fading(gym.make("CartPole-v1")))], start_method="fork")
    try:
        vector.reset()

        def ask(kind: str, sure: Verdict | None, find_out: Callable[[], Verdict]) -> Verdict:
            return sure or find_out()

        (seen,) = look_at(workers_of(vector), ask)
    finally:
        vector.close()
    assert seen.verdict.fidelity is Fidelity.APPROXIMATE
    assert "wrappers.steps" in seen.verdict.reason


def test_a_wrapper_of_a_vector_is_named_by_what_it_changes_beside_the_state(worlds: Any) -> None:
    make = partial(gym.make, "CartPole-v1")
    ours = worlds.FadingVector(gym.vector.SyncVectorEnv([make]))
    theirs = worlds.FadingVecEnv(DummyVecEnv([make]))
    for vector in (ours, theirs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [note.detail for note in uncovered(walk.walk({"env": vector}, policy_of_loaded()))]
        assert found == ["assigns steps, a global of wrappers"]
