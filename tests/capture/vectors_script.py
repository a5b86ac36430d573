"""A small training over three environments in a vector: `python vectors_script.py ROOT OUT KIND KILL COLD`.

KIND is sync or async. KILL: `kill` ends the process at once where an episode has just ended, `-` never.
COLD: what comes back cold, `envs` (they are reset) or `loop` (the workers' loops forget whom to reset next).
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import vector as wrappers

import unbroken
from unbroken.capture import async_vectors
from unbroken.capture.worker_agent import AGENT, Answer
from unbroken.capture.worker_locals import LoopLocals

sys.path.insert(0, str(Path(__file__).parent / "worlds"))
from roomy import Roomy  # type: ignore[import-not-found]


class ForgetfulAgent(async_vectors.AsyncAgent):
    """Can make its loop forget that the next step has to reset."""

    def do_forget(self, frame: FrameType) -> Answer:
        held = LoopLocals(frame, ("autoreset",))
        vars(held)["autoreset"] = False
        held.write_into(frame)
        return Answer()


async_vectors.AsyncAgent = ForgetfulAgent  # type: ignore[misc]
root, out, kind, kill, cold = sys.argv[1:]
run = unbroken.Run(root, every=1, quiet=True)
random.seed(0)
np.random.seed(0)  # noqa: NPY002
made = {"sync": gym.vector.SyncVectorEnv, "async": gym.vector.AsyncVectorEnv}[kind]([Roomy] * 3)
envs: Any = wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(made))
obs, _ = envs.reset(seed=3)
weights = np.zeros((3, 2))
run.track(envs=envs, weights=weights)
run.vars.at, run.vars.ended = obs["at"], np.zeros(3, bool)
for step in run.steps(60):
    if cold != "-" and run.report is not None and run.report.restored and step == run.report.step:
        if cold == "envs":
            envs.reset(seed=99)
        else:
            made.call(AGENT, "forget")
    run.wait()  # so that what is resumed does not depend on the disk
    if kill == "kill" and step >= 20 and run.vars.ended.any():
        pids = [process.pid for process in getattr(made, "processes", ())]
        Path(out).write_text(f"{step} {pids}")
        os.kill(os.getpid(), signal.SIGKILL)
    at = run.vars.at
    scores = at @ weights.T + np.random.normal(size=(3, 3))  # noqa: NPY002
    actions = scores.argmax(1)
    obs, rewards, terminated, truncated, _ = envs.step(actions)
    weights[actions] += 0.01 * rewards[:, None] * at
    run.vars.at, run.vars.ended = obs["at"], terminated | truncated
digest = hashlib.blake2b(weights.tobytes())
digest.update(repr((random.random(), np.random.random())).encode())  # noqa: NPY002
for _ in range(40):  # what comes next shows the generators of every environment and every process
    obs, rewards, *_ = envs.step(np.zeros(3, int))
    digest.update(obs["at"].tobytes() + rewards.tobytes())
digest.update(repr([list(queue) for queue in (envs.env.return_queue, envs.env.length_queue)]).encode())
envs.close()
Path(out).write_text(digest.hexdigest())
