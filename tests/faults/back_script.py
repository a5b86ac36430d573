"""A training that can be sent back, and killed: `KIND ROOT TOTAL [KILL_AT]`. Prints what it came to.

Settings come from the environment (`UNBROKEN_*`). The metric `score` is largest at step 40.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys

import numpy as np

import unbroken

EVERY = 20


def score(step: int) -> float:
    return float(-abs(step - 40))


def loop(root: str, total: int, kill_at: int) -> str:
    rng = np.random.default_rng(5)
    weights = np.zeros(8)
    run = unbroken.Run(root, job="run", every=EVERY)
    run.track(rng=rng, weights=weights)
    run.vars.seen = 0
    for step in run.steps(total):
        if step % EVERY == 1:
            run.wait()  # so that a kill finds every checkpoint
        if step == kill_at:
            wait_for_mirror(run._running())
            os.kill(os.getpid(), signal.SIGKILL)
        weights += rng.standard_normal(8)
        run.vars.seen += 1
        run.record(score=score(step + 1))
    return hashlib.sha256(
        weights.tobytes() + repr((rng.bit_generator.state, run.vars.seen)).encode()
    ).hexdigest()


def wait_for_mirror(engine: object) -> None:
    mirroring = engine._dispatch.mirroring  # type: ignore[attr-defined]
    if mirroring is not None:
        mirroring.wait()


def sb3(root: str, total: int, kill_at: int) -> str:
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    from unbroken.engine.settings import Settings
    from unbroken.sb3 import CheckpointCallback

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            assert ours._session is not None
            engine = ours._session._engine
            assert engine is not None
            engine.wait()
            if self.num_timesteps == kill_at:
                wait_for_mirror(engine)
                os.kill(os.getpid(), signal.SIGKILL)
            self.logger.record("score", score(self.num_timesteps + 1))
            return True

    model = DQN(
        "MlpPolicy", "CartPole-v1", learning_starts=10, train_freq=4, batch_size=8, buffer_size=90,
        target_update_interval=16, seed=1, device="cpu",
    )  # fmt: skip
    ours = CheckpointCallback(config=Settings(root=root, job="run", every=EVERY))
    model.learn(total, callback=[ours, Watch()])
    told = hashlib.sha256()
    for name, tensor in model.policy.state_dict().items():
        told.update(name.encode() + tensor.numpy().tobytes())
    assert model.replay_buffer is not None
    told.update(model.replay_buffer.observations.tobytes() + repr(model.replay_buffer.pos).encode())
    return told.hexdigest()


if __name__ == "__main__":
    what, where, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kill = int(sys.argv[4]) if len(sys.argv) > 4 else -1
    print(sb3(where, steps, kill) if what == "sb3" else loop(where, steps, kill))
