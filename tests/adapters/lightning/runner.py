"""Runs trainings in child processes for the tests, so that they can be killed.

Imports once, then forks for every order that it reads, one JSON object a line; answers with the child's
exit status.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import traceback
import warnings
from functools import partialmethod
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar

from tests.adapters.lightning import trainings
from unbroken.adapters.lightning.fit_loop import Place
from unbroken.adapters.lightning.session import Session
from unbroken.adapters.lightning.source import FitSource
from unbroken.engine.engine import CheckpointEngine
from unbroken.lightning import CheckpointCallback, Every

GRADIENTS = "gradients"
"""What `leave_cold` takes beside places: every gradient."""


class Killer(ProgressBar):
    """Ends the process as nothing else can, in the middle of a batch, once so many have been trained on.

    A progress bar is no part of a training's state.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def wait_for_saves() -> None:
    """Let every save be waited for: where a run goes on from must not depend on the machine's load."""
    CheckpointEngine.save = partialmethod(CheckpointEngine.save, wait=True)  # type: ignore[method-assign, assignment]


def leave_cold(places: list[str]) -> None:
    """Let restores forget these parts: they stay as the new process has built them."""
    plan = FitSource.plan

    def cold(self: FitSource, saved: Any, *, keep: Any = (), trusted: bool = False) -> Any:
        return plan(self, saved, keep=[*keep, *places], trusted=trusted)

    FitSource.plan = cold  # type: ignore[method-assign]
    if GRADIENTS in places:
        begin = Session.begin

        def without_gradients(self: Session) -> Place:
            place = begin(self)
            self._trainer.lightning_module.zero_grad()
            return place

        Session.begin = without_gradients  # type: ignore[method-assign]


def result_of(module: Any, trainer: Any, ours: CheckpointCallback) -> dict[str, Any]:
    """Return what the training has come to, with the next draws of every generator."""
    found: dict[str, Any] = {
        "weights": {name: tensor.numpy().tobytes().hex() for name, tensor in module.state_dict().items()},
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "draws": [random.random(), float(np.random.random()), torch.rand(1).item()],  # noqa: NPY002
        "report": "" if ours.report is None else ours.report.text,
    }
    for name in ("seen", "validated", "epsilon", "returns", "episode_return"):
        if hasattr(module, name):
            value = getattr(module, name)
            found[name] = value if isinstance(value, float) else list(value)
    if hasattr(module, "buffer"):
        found["buffer"] = module.buffer.obs.tobytes().hex()
        found["draws"].append(float(module.rng.random()))
    return found


def train(order: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    leave_cold(order.get("cold", []))
    wait_for_saves()
    callbacks: list[Callback]
    module, options, others = getattr(trainings, order["case"])(**order.get("options", {}))
    every = Every(**order["every"]) if isinstance(order["every"], dict) else order["every"]
    ours = CheckpointCallback(order["root"], job="job", every=every, keep_last=1000)
    callbacks = [*others] if order.get("without") else [ours, *others]
    if order.get("kill") is not None:
        callbacks.append(Killer(order["kill"]))
    given: dict[str, Any] = {"enable_checkpointing": False, **options, **order["trainer"]}
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_model_summary=False, callbacks=callbacks, **given
    )
    trainer.fit(module)
    Path(order["out"]).write_text(json.dumps(result_of(module, trainer, ours)))


def warm_up() -> None:
    """Import what PyTorch imports only at the first step of an optimizer, once for all children."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()


def main() -> None:
    warm_up()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
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
