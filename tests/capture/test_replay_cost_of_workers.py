from __future__ import annotations

import gc
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from unbroken.capture.replay import Recorder
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.capture.watched import WatchedEnvironments

pytest.importorskip("Box2D")


def notes(envs: Any, steps: int) -> list[str]:
    """Return what the checkpoint says after a reset and some steps."""
    watched = WatchedEnvironments()
    envs.reset(seed=1)
    watched.watch({"envs": envs})
    source = GraftSource({"envs": envs}, policy_of_loaded())
    source.capture()
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, np.int64))
    found = [note.detail for note in source.capture().notes if note.kind == "replay"]
    assert not source.is_good_moment()
    envs.close()
    return found


def test_what_environments_in_workers_replay_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the workers, which are forked with it, each step takes half a second. Nobody has measured the reset."""
    ticks = count()
    defaults = Recorder.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", lambda: next(ticks) * 0.5)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    envs = AsyncVectorEnv([partial(gym.make, "LunarLander-v3")] * 2, context="fork")
    assert notes(envs, 7) == ["a restore replays 14 steps of 2 environments, about 3.5 s"]


def test_of_workers_in_which_nothing_is_replayed_nobody_is_asked() -> None:
    assert notes(AsyncVectorEnv([partial(gym.make, "CartPole-v1")] * 2), 3) == []


def test_environments_in_workers_that_are_closed_and_dropped_cost_no_save() -> None:
    envs = AsyncVectorEnv([partial(gym.make, "LunarLander-v3")] * 2)
    envs.reset(seed=1)
    live: dict[str, Any] = {"envs": envs}
    watched = WatchedEnvironments()
    watched.watch(live)
    source = GraftSource(live, policy_of_loaded())
    assert [note.kind for note in source.capture().notes].count("replay") == 1
    envs.close()
    assert not source.is_good_moment()
    live.clear()
    watched.release()
    del envs, watched
    gc.collect()
    assert not source.is_good_moment()
    assert [note.kind for note in source.capture().notes].count("replay") == 0
