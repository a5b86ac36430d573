"""A person's own program: environments that keep a handle, and what it leads to elsewhere.

Arguments: folder, name of the log, step at which to die (-1: never), `attributes` if the capturer leaves attributes
to the walk, and `cold` if its restore does nothing. Each line of the log is a step and what came back.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

import unbroken

STEPS, EVERY = 40, 5
_simulators: dict[object, list[float]] = {}


class Handled(gymnasium.Env[Any, Any]):
    """Its handle is an address."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.handle = self.make_handle()
        _simulators[self.handle] = [0.0, 0.0]

    def make_handle(self) -> object:
        return id(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        _simulators[self.handle][:] = [self.np_random.normal(), 0.0]
        return np.array(_simulators[self.handle][:1]), {}

    def step(self, action: Any) -> Any:
        simulator = _simulators[self.handle]
        simulator[0] += 0.1 * float(action[0]) + 0.1 * self.np_random.normal()
        simulator[1] += 1
        return np.array(simulator[:1]), -abs(simulator[0]), False, simulator[1] >= 23, {}


class Named(Handled, EzPickle):
    """Its handle is a name that no other process has. A second one can be built."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        super().__init__()

    def make_handle(self) -> object:
        return uuid.uuid4().hex


class Puts(Handled):
    """It keeps an address for nothing."""

    def make_handle(self) -> object:
        self.address = id(self)
        return "the only one"


def read(env: Any) -> dict[str, Any]:
    return {"simulator": list(_simulators[env.handle])}


def write(env: Any, state: dict[str, Any]) -> None:
    _simulators[env.handle][:] = state["simulator"]


def read_with_handle(env: Any) -> dict[str, Any]:
    return {"handle": env.handle, **read(env)}


def write_by_handle(env: Any, state: dict[str, Any]) -> None:
    _simulators[state["handle"]][:] = state["simulator"]


def main() -> None:
    folder, name, kill_at, *how = sys.argv[1:]
    cold = "cold" in how
    told: dict[str, Any] = {}

    def restore(env: Any, state: dict[str, Any]) -> None:
        told.update(state) if cold else write(env, state)

    def capture(env: Any) -> dict[str, Any]:
        return {"simulator": told.pop("simulator", None) or read(env)["simulator"]}

    unbroken.register_env_capturer(Handled, capture=capture, restore=restore, attributes="attributes" in how)
    env = Handled()
    env.reset(seed=3)
    run = unbroken.Run(Path(folder) / "run", every=EVERY, quiet=True)
    run.track(env=env)
    with (Path(folder) / name).open("a", buffering=1) as lines:
        for step in run.steps(STEPS):
            run.wait()
            if step == int(kill_at):
                os.kill(os.getpid(), signal.SIGKILL)
            answer = env.step(np.full(1, np.sin(step), np.float32))
            lines.write(f"{step} {answer[0].tobytes().hex()}{float(answer[1]).hex()}{answer[3]}\n")
            if answer[3]:
                env.reset()


if __name__ == "__main__":
    main()
