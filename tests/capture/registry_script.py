"""A person's own program: an environment with a simulator in C, and two functions that read and write it.

Arguments: folder, name of the log, kind of vector, step at which to die (-1: never), and `cold` if the simulator
is to be left as it is at a restore. Each line of the log is a step and a digest of what came back.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import unbroken

STEPS, EVERY, COUNT = 60, 5, 2


class Arm(gymnasium.Env[Any, Any]):
    """Its place and its time lie in memory that no attribute shows."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.memory = (ctypes.c_double * 2)()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.memory[:] = [self.np_random.normal(), 0.0]
        return np.array([self.memory[0]]), {}

    def step(self, action: Any) -> Any:
        self.memory[0] += 0.1 * float(action[0]) + 0.1 * self.np_random.normal()
        self.memory[1] += 1
        return np.array([self.memory[0]]), -abs(self.memory[0]), False, self.memory[1] >= 23, {}


def register(*, cold: bool) -> None:
    """`cold`: what was saved is only told again, so that the reading after the restore finds nothing."""
    told: dict[int, Any] = {}

    def capture(env: Arm) -> dict[str, Any]:
        return {"memory": told.pop(id(env), None) or tuple(env.memory)}

    def restore(env: Arm, state: dict[str, Any]) -> None:
        if cold:
            told[id(env)] = state["memory"]
        else:
            env.memory[:] = state["memory"]

    unbroken.register_env_capturer(Arm, capture=capture, restore=restore)


def digest_of(answer: tuple[Any, ...]) -> str:
    """Return what a vector gave: observations, rewards, ends."""
    return hashlib.sha256(b"".join(part.tobytes() for part in answer[:4])).hexdigest()


def vectored(kind: str) -> Any:
    if kind == "sync":
        return SyncVectorEnv([Arm] * COUNT)
    return AsyncVectorEnv([Arm] * COUNT, context="spawn" if kind == "async, spawned" else "fork")


def loop(root: Path, log: Path, kind: str, kill_at: int) -> None:
    envs = vectored(kind)
    envs.reset(seed=4)
    run = unbroken.Run(root, every=EVERY, quiet=True)
    run.track(envs=envs)
    with log.open("a", buffering=1) as lines:
        for step in run.steps(STEPS):
            run.wait()
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            actions = np.full((COUNT, 1), np.sin(step), np.float32)
            lines.write(f"{step} {digest_of(envs.step(actions))}\n")
    envs.close()


def sb3(root: Path, log: Path, method: str, kill_at: int) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from unbroken.sb3 import CheckpointCallback

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == kill_at:
                session: Any = save._session
                session._engine.wait()  # so that there is a checkpoint to go on from
                os.kill(os.getpid(), signal.SIGKILL)
            seen = self.locals["new_obs"].tobytes() + self.locals["rewards"].tobytes()
            with log.open("a") as lines:
                lines.write(f"{self.n_calls} {hashlib.sha256(seen).hexdigest()}\n")
            return True

    envs = SubprocVecEnv([partial(Arm) for _ in range(COUNT)], start_method=method)
    model = PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu")
    save = CheckpointCallback(every=EVERY * COUNT, save_path=str(root), verbose=0)
    model.learn(48 * COUNT, callback=[Watch(), save])
    weights = b"".join(p.detach().numpy().tobytes() for p in model.policy.parameters())
    with log.open("a") as lines:
        lines.write(f"end {hashlib.sha256(weights).hexdigest()}\n")
    envs.close()


def main() -> None:
    folder, name, kind, kill_at, *rest = sys.argv[1:]
    register(cold=rest == ["cold"])
    arguments = (Path(folder) / "run", Path(folder) / name)
    if kind.startswith("sb3, "):
        sb3(*arguments, kind.removeprefix("sb3, "), int(kill_at))
    else:
        loop(*arguments, kind, int(kill_at))


if __name__ == "__main__":
    main()
