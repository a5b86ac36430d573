"""Measures how much a training of Stable-Baselines3 is slowed down by saving: DQN on Pong, from frames.

Trainings with and without the callback take turns. All of them start alike, so they must end with the same
weights. The checkpoints of the start and of the end are outside the clock, since a run has one of each.
"""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
from blake3 import blake3
from stable_baselines3 import DQN
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage

from benchmarks.frames import Frames
from benchmarks.ours import blocked_in
from benchmarks.records import Sizes, TrainingRow
from benchmarks.workloads import as_bytes
from unbroken.sb3 import CheckpointCallback, Every

WARM_UP = 20
"""Steps before the clock starts: the first one takes the checkpoint of the start."""
TRIAL = 0.25
"""Share of a training after which its pace is known."""
UNLIMITED = 10**9
JOB = "dqn"


def measure(frames: Path, folder: Path, sizes: Sizes) -> TrainingRow:
    """Train in turn with and without saves."""
    steps = _steps_in(sizes.training_seconds, frames, sizes)
    plain, saving, blocked, saves = list[float](), list[float](), list[float](), list[int]()
    ends: set[str] = set()
    for _ in range(sizes.trainings):
        clock = _Clock()
        ends.add(_train(_model(frames, sizes), steps, clock))
        plain.append(clock.taken)
        callback = CheckpointCallback(
            save_path=folder, name_prefix=JOB, every=Every(seconds=sizes.training_interval), keep_last=1000
        )
        clock = _Clock()
        ends.add(_train(_model(frames, sizes), steps, clock, callback))
        saving.append(clock.taken)
        found = blocked_in(folder, JOB)
        blocked += found
        saves.append(len(found))
        shutil.rmtree(folder)
    return TrainingRow(
        steps=steps - WARM_UP,
        plain=plain,
        saving=saving,
        saves=saves,
        blocked=blocked,
        verified=len(ends) == 1,
    )


class _Clock(BaseCallback):
    """Takes the time from the end of the warm-up on; ends the training after some seconds, if asked to."""

    def __init__(self, seconds: float = math.inf) -> None:
        super().__init__()
        self.steps = 0
        self._seconds = seconds
        self._started = self._ended = 0.0

    @property
    def taken(self) -> float:
        return self._ended - self._started

    def _on_step(self) -> bool:
        self._ended = time.perf_counter()
        self.steps = self.n_calls - WARM_UP
        if self.steps <= 0:
            self._started = self._ended
        return self.taken < self._seconds


def _steps_in(seconds: float, frames: Path, sizes: Sizes) -> int:
    """Return how many steps a training takes that lasts so long, by the pace of a shorter one."""
    clock = _Clock(TRIAL * seconds)
    _train(_model(frames, sizes), UNLIMITED, clock)
    return WARM_UP + max(1, round(clock.steps * seconds / clock.taken))


def _train(model: DQN, steps: int, clock: _Clock, *more: BaseCallback) -> str:
    """Train and return the digest of the weights."""
    model.learn(steps, callback=CallbackList([clock, *more]))
    digest = blake3()
    for tensor in model.policy.state_dict().values():
        digest.update(as_bytes(tensor).data)
    env = model.get_env()
    assert env is not None
    env.close()
    return digest.hexdigest()


def _model(frames: Path, sizes: Sizes) -> DQN:
    """Return a model whose buffer is full, as it is for most of a training."""
    model = DQN(
        "CnnPolicy",
        VecTransposeImage(VecFrameStack(_env(), 4)),
        buffer_size=sizes.frame_rows,
        learning_starts=0,
        train_freq=4,
        target_update_interval=1_000,
        exploration_fraction=1e-6,
        exploration_final_eps=0.05,
        seed=0,
        device="cpu",
    )
    source = Frames(frames)
    assert model.replay_buffer is not None
    observation = source.take()[None]
    for row in range(sizes.frame_rows):
        following = source.take()[None]
        model.replay_buffer.add(observation, following, np.array([[row % 6]]), np.zeros(1), np.zeros(1), [{}])
        observation = following
    return model


def _env() -> VecEnv:
    gymnasium.register_envs(ale_py)

    def make() -> gymnasium.Env[Any, Any]:
        return AtariWrapper(gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0))

    return DummyVecEnv([make])
