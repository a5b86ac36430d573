"""A training whose checkpoints go from one Python to another. Run by test_travel.py in environments without torch.

`travel.py ROOT [KILL_AT | cold]`: trains in ROOT to the end, or kills itself at that step, once a checkpoint lies behind
it. `cold`: the environments begin anew after the restore. At the end it prints what all that was trained has come to, and how this start began.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import gymnasium as gym
import numpy as np

import unbroken
from unbroken.repo.repository import Repository

STEPS = 60


def warmed_up(rate: Callable[[float], float]) -> Callable[[float], float]:
    """A schedule that counts its own calls, where nobody but it sees them."""
    calls = 0

    def warm(left: float) -> float:
        nonlocal calls
        calls += 1
        return rate(left) * min(1.0, calls / 50)

    return warm


class Learner:
    """Numbers, and containers of the kinds that scripts keep them in."""

    def __init__(self) -> None:
        self.weights = np.zeros((8, 4))
        self.narrow = np.zeros(16, np.float32)
        self.returns: deque[float] = deque(maxlen=20)
        self.counts: dict[tuple[int, str], int] = {}
        self.order: OrderedDict[str, int] = OrderedDict()
        self.seen: set[int] = set()
        self.big = 1
        self.share = Fraction(1, 3)
        self.price = Decimal("0.1")
        self.since = datetime(2026, 1, 1, tzinfo=timezone.utc)
        self.bits = bytearray(8)
        self.rate = warmed_up(lambda left: 0.5 + left / 2)

    def learn(self, step: int, obs: np.ndarray, reward: float, rng: np.random.Generator) -> None:
        noise = rng.normal(size=self.weights.shape)
        self.weights += self.rate(1 - step / STEPS) * noise * (1 + reward) + float(obs.sum())
        self.narrow += noise.astype(np.float32).ravel()[:16]
        self.returns.append(reward + random.random())
        self.counts[step % 7, "step"] = self.counts.get((step % 7, "step"), 0) + int(rng.integers(9))
        self.order[f"k{step % 5}"] = step
        self.order.move_to_end(f"k{step % 5}", last=bool(step % 2))
        self.seen.add(int(rng.integers(1000)))
        self.big = (self.big * 3 + step) % 2**200
        self.share += Fraction(step, 7)
        self.price += Decimal(step) / 8
        self.since += timedelta(seconds=step)
        self.bits[step % 8] ^= step


def digest(learner: Learner, envs: gym.vector.SyncVectorEnv, rng: np.random.Generator) -> str:
    """Return what stands for everything that was trained, and for the next draws of every generator."""
    legacy = np.random.random(3)  # noqa: NPY002 - the process's own generator is what is looked at
    draws = [rng.random(3).tobytes(), legacy.tobytes(), repr(random.random()).encode()]
    stepped: list[object] = list(envs.step(np.ones(envs.num_envs, np.int64))[:4])
    after = [np.asarray(part).tobytes() for part in stepped]
    told = [
        repr([list(learner.returns), sorted(learner.counts.items()), list(learner.order.items())]),
        repr([sorted(learner.seen), learner.big, learner.share, learner.price, learner.since, learner.bits]),
    ]
    parts = [learner.weights.tobytes(), learner.narrow.tobytes(), *draws, *after, *(t.encode() for t in told)]
    return hashlib.sha256(b"|".join(parts)).hexdigest()


def await_checkpoint(root: Path) -> None:
    """Saving goes on in the background; a kill this early could come before the first save is done."""
    repository = Repository.open(root, "travel")
    while not any(commit.step > 0 for commit in repository.commits()):
        time.sleep(0.001)


def main() -> None:
    root = Path(sys.argv[1])
    how = sys.argv[2] if len(sys.argv) > 2 else ""
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    rng = np.random.default_rng(3)
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.make("CartPole-v1"), lambda: gym.make("CartPole-v1", max_episode_steps=9)]
    )
    learner = Learner()
    run = unbroken.Run(root, job="travel", every=20, quiet=True)
    run.track(learner=learner, rng=rng, envs=envs)
    run.vars.obs, _ = envs.reset(seed=4)
    for step in run.steps(STEPS):
        assert run.report is not None
        if how == "cold" and step == run.report.step:
            run.vars.obs, _ = envs.reset(seed=4)
        elif how == str(step):
            await_checkpoint(root)
            os.kill(os.getpid(), signal.SIGKILL)
        run.vars.obs, reward, *_ = envs.step(rng.integers(2, size=2))
        learner.learn(step, run.vars.obs, float(reward.sum()), rng)
    report = run.report
    assert report is not None
    told = {
        "digest": digest(learner, envs, rng),
        "from": report.step,
        "warnings": list(report.warnings),
        "changes": list(report.changes),
        "fidelity": sorted({promise.fidelity.value for promise in report.promises.values()}),
        "reasons": sorted({promise.reason for promise in report.promises.values() if promise.reason}),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
