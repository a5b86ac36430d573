"""One run of a cell in this process: trained to its end, or until the process kills itself.

Not promised: a process that is fit for anything afterwards. Restores are made forgetful by replacing methods
of our own classes, so each run has a process to itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

import unbroken
from exactness.cell import Cell
from exactness.loops import Loop
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.capture.source import GraftSource
from unbroken.sb3 import CheckpointCallback
from unbroken.state.pickles import Trust

ROOT, JOB = "runs", "job"
NEVER = 10**9
DRAWN = 20
"""So many actions are drawn: one of two would be the same by chance half of the time."""


class Order(msgspec.Struct, kw_only=True):
    """What a process has to do. It works in `folder`; `every` and `kill` count steps of the vector."""

    cells: str
    """The module whose `BY_KEY` has the cell."""
    key: str
    folder: str
    out: str
    log: str
    every: int = NEVER
    kill: int = 0
    cold: list[str] = []
    limit: float = 600.0


class Finding(msgspec.Struct, kw_only=True):
    """What a run that came to its end has found."""

    calls: int
    weights: dict[str, str]
    """Digests of every weight and every number of the optimizers."""
    draws: dict[str, str]
    """What every generator, and the environment, gives next."""


def digest(value: Any) -> str:
    """Return a digest of the bits of a value of arrays, containers and numbers.

    >>> digest({"a": np.zeros(2)}) == digest({"a": np.zeros(2)}) != digest({"a": -np.zeros(2)})
    True
    """
    seen = hashlib.blake2b(digest_size=16)
    _feed(seen, value)
    return seen.hexdigest()


def _feed(seen: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        for key, inner in value.items():
            seen.update(f"{key}:".encode())
            _feed(seen, inner)
    elif isinstance(value, (list, tuple)):
        seen.update(f"[{len(value)}]".encode())
        for inner in value:
            _feed(seen, inner)
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        seen.update(f"{array.dtype}{array.shape}".encode())
        seen.update(array.tobytes() if array.dtype != object else repr(array.tolist()).encode())
    else:
        seen.update(repr(value).encode())


class Killer(BaseCallback):
    """Ends the process as nothing else can, in the middle of a step.

    Waits at each step for the save that is under way: which saves there are, and where the run goes on from, must
    not depend on the machine's load.
    """

    def __init__(self, at: int, ours: CheckpointCallback) -> None:
        super().__init__()
        self.at = at
        self.ours = ours
        self.seen = 0

    def _on_step(self) -> bool:
        self.seen += 1
        session = self.ours._session
        assert session is not None and session._engine is not None
        session._engine.wait()
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def leave_cold(places: list[str]) -> None:
    """Let restores forget these parts: they stay as the new process has built them."""
    for source in (GraftSource, TrainingSource):
        plan = source.plan

        def cold(self: Any, saved: Any, *, keep: Any = (), trusted: Trust = False, _plan: Any = plan) -> Any:
            return _plan(self, saved, keep=[*keep, *places], trusted=trusted)

        source.plan = cold  # type: ignore[method-assign]


def train(order: Order) -> Finding:
    """Train in `order.folder`, which holds the run that is to be gone on with, if there is one."""
    os.chdir(order.folder)
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    torch.set_num_threads(1)
    if order.cold:
        leave_cold(order.cold)
    cell: Cell = import_module(order.cells).BY_KEY[order.key]
    built = cell.build()
    if isinstance(built, Loop):
        return _loop(built, order, after=cell.after)
    ours = CheckpointCallback(order.every, ROOT, JOB)
    counter = _Counter()
    callbacks = [*cell.callbacks(built), ours, counter]
    if order.kill:
        callbacks.append(Killer(order.kill, ours))
    built.learn(cell.steps, callback=callbacks)
    found = Finding(calls=counter.seen, weights=_weights(built), draws=_draws(built, cell.after))
    with contextlib.suppress(Exception):  # what an environment says at its end is not looked at
        built.env.close()
    return found


class _Counter(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def _on_step(self) -> bool:
        self.seen += 1
        return True


def _loop(loop: Loop, order: Order, *, after: int) -> Finding:
    run = unbroken.Run(ROOT, job=JOB, every=order.every)
    loop.track(run)
    for step in loop.steps(run):
        if order.kill:
            run.wait()  # as `Killer` does
            if step == order.kill:
                os.kill(os.getpid(), signal.SIGKILL)
    weights = {
        "policy": digest(loop.policy.state_dict()),
        "optimizer": digest(loop.optimizer.state_dict()),
        "scheduler": digest(loop.scheduler.state_dict()),
    }
    draws = _generators()
    draws["action"] = digest([loop.space.sample() for _ in range(DRAWN)])
    draws["environment"] = digest([_ahead(loop) for _ in range(after)])
    draws["reset"] = digest(loop.env.reset()[0])
    loop.env.close()
    return Finding(calls=loop.iterations, weights=weights, draws=draws)


def _ahead(loop: Loop) -> Any:
    actions = [loop.space.sample() for _ in range(loop.count)]
    answer = loop.env.step(np.stack(actions) if hasattr(loop.env, "num_envs") else actions[0])
    return answer[:4]


def _weights(model: Any) -> dict[str, str]:
    found = {f"policy.{name}": digest(tensor) for name, tensor in model.policy.state_dict().items()}
    for name, state in model.get_parameters().items():
        found[name] = digest(state)
    return found


def _generators() -> dict[str, str]:
    return {
        "python": digest(random.random()),
        "numpy": digest(np.random.random()),  # noqa: NPY002 - the global generator is what is asked
        "torch": digest(torch.rand(1)),
    }


def _draws(model: Any, after: int) -> dict[str, str]:
    found = _generators()
    found["action"] = digest([model.action_space.sample() for _ in range(DRAWN)])
    env = model.env
    answers = [
        env.step(np.stack([env.action_space.sample() for _ in range(env.num_envs)]))[:3] for _ in range(after)
    ]
    found["environment"] = digest(answers)
    found["reset"] = digest(env.reset())
    return found


def carry_out(order: Order) -> None:
    """Train, and write down what was found."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = train(order)
    Path(order.out).write_text(json.dumps(msgspec.to_builtins(found)))
