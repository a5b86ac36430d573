"""A simulator whose state no attribute shows, and the two functions that save it. Kill it, start it again."""

import ctypes
import hashlib

import gymnasium
import numpy as np

import unbroken


class Physics:
    """Stands for a simulator in C: its state lies behind an address, and only its own calls reach it."""

    def __init__(self):
        memory = (ctypes.c_double * 3)()
        self._memory, self.address = memory, ctypes.addressof(memory)

    def dump(self):
        return bytes(self._memory)

    def load(self, state):
        ctypes.memmove(self.address, state, len(state))

    def push(self, force):
        place, speed, time = self._memory
        self._memory[:] = place + 0.1 * speed, speed + 0.1 * force - 0.05 * np.sin(place), time + 1
        return tuple(self._memory)


class Swing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self):
        self.physics = Physics()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.physics.load(np.array([self.np_random.normal(), 0.0, 0.0]).tobytes())
        return np.frombuffer(self.physics.dump())[:2].copy(), {}

    def step(self, action):
        place, speed, time = self.physics.push(float(action) - 1.0)
        return np.array([place, speed]), -abs(place), False, time >= 200, {}


unbroken.register_env_capturer(
    Swing,
    capture=lambda env: {"physics": env.physics.dump()},  # the state itself, never a handle to it
    restore=lambda env, state: env.physics.load(state["physics"]),
    attributes=False,  # env.physics holds an address: the new process keeps its own
)

rng, values = np.random.default_rng(0), np.zeros((8, 3))
env = Swing()
run = unbroken.Run("runs", job="swing", every=500)
run.track(env=env, rng=rng, values=values)
run.vars.obs, _ = env.reset(seed=0)

for _ in run.steps(3_000):  # Q-learning over eight stretches of the way
    here = int(np.clip(run.vars.obs[0] + 4, 0, 7))
    action = int(values[here].argmax()) if rng.random() > 0.1 else int(rng.integers(3))
    run.vars.obs, reward, _, over, _ = env.step(action)
    following = int(np.clip(run.vars.obs[0] + 4, 0, 7))
    values[here, action] += 0.1 * (reward + 0.95 * values[following].max() - values[here, action])
    if over:
        run.vars.obs, _ = env.reset()

print(f"values {hashlib.sha256(values.tobytes()).hexdigest()[:16]}")
