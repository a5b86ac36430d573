"""Runs trainings in child processes for the tests, so that they can be killed.

Imports once, then forks for every order that it reads, one JSON object a line; answers with the child's
exit status. A resumed run gets its child from another runner than the killed one: another interpreter,
with another hash seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from functools import partialmethod
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from exactness.forked import warm_up
from tests.adapters.sb3 import trainings
from tests.adapters.sb3.trainings import weights
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.capture import ledger
from unbroken.engine.engine import CheckpointEngine
from unbroken.sb3 import CheckpointCallback
from unbroken.state.pickles import Trust
from unbroken.state.ring import RingArray
from unbroken.state.snapshot import Rows


class Killer(BaseCallback):
    """Ends the process as nothing else can, in the middle of a step.

    Waits for each save: none is skipped, and where the run goes on from does not depend on the machine's load.
    """

    def __init__(self, at: int, ours: CheckpointCallback) -> None:
        super().__init__()
        self.at = at
        self.ours = ours

    def _on_step(self) -> bool:
        session = self.ours._session
        assert session is not None and session._engine is not None
        session._engine._writer.wait()
        if self.n_calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def leave_cold(places: list[str]) -> None:
    """Let restores forget these parts: they stay as the new process has built them."""
    plan = TrainingSource.plan

    def cold(self: TrainingSource, saved: Any, *, keep: Any = (), trusted: Trust = False) -> Any:
        return plan(self, saved, keep=[*keep, *places], trusted=trusted)

    TrainingSource.plan = cold  # type: ignore[method-assign]


def short_chunks(size: int) -> list[str]:
    """Let chunks be this short, so that small buffers have many, and every save be waited for, so that none is
    skipped. Return where arrays are captured in part; filled while training goes on."""
    CheckpointEngine.save = partialmethod(CheckpointEngine.save, wait=True)  # type: ignore[method-assign, assignment]
    ledger.CHUNK_BYTES = size
    rows = ledger.Ledger.rows
    places: list[str] = []

    def noted(self: ledger.Ledger, array: RingArray) -> Rows | None:
        found = rows(self, array)
        if found is not None and found.base is not None and found.nbytes < found.size:
            places.append(array.place)
        return found

    ledger.Ledger.rows = noted  # type: ignore[method-assign]
    return places


def draws(model: Any) -> dict[str, Any]:
    """Return what every generator gives next."""
    observations = model.env.reset()
    return {
        "python": random.random(),
        "numpy": np.random.random(),  # noqa: NPY002 - the global generator is what is asked
        "torch": torch.rand(1).item(),
        "action": np.asarray(model.action_space.sample()).tolist(),
        "reset": {"": np.asarray(observations).tolist()},
    }


def train(order: dict[str, Any]) -> None:
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    torch.set_num_threads(1)
    leave_cold(order.get("cold", []))
    in_part = short_chunks(order["chunk"]) if "chunk" in order else []
    model = getattr(trainings, order["case"])(**order.get("options", {}))
    ours = CheckpointCallback(order["save_freq"], order["root"], "job")
    beside = trainings.CALLBACKS.get(order["case"])
    callbacks: list[BaseCallback] = [ours] if beside is None else [beside(), ours]
    if order.get("kill"):
        callbacks.append(Killer(order["kill"], ours))
    if order.get("without"):
        callbacks = []
    model.learn(order["steps"], callback=callbacks)
    result: dict[str, Any] = {
        "weights": {k: v.hex() for k, v in weights(model).items()},
        "draws": draws(model),
    }
    if in_part:
        result["in part"] = sorted(set(in_part))
    Path(order["out"]).write_text(json.dumps(result, default=np.ndarray.tolist))
    model.env.close()


def main() -> None:
    warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            with open(order["log"], "ab", buffering=0) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                train(order)
            except BaseException:  # noqa: BLE001 - told, and the child ends
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
