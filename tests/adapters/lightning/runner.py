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
import socket
import sys
import traceback
import warnings
from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar

from exactness.forked import warm_up
from tests.adapters.lightning import trainings
from unbroken.adapters.lightning.fit_loop import Place
from unbroken.adapters.lightning.session import Session
from unbroken.adapters.lightning.source import FitSource
from unbroken.engine.engine import CheckpointEngine
from unbroken.lightning import CheckpointCallback, Every
from unbroken.state.pickles import Trust

GRADIENTS = "gradients"
"""What `leave_cold` takes beside places: every gradient."""


class Killer(ProgressBar):
    """Ends the process as nothing else can, in the middle of a batch, once so many have been trained on; or does
    to it what another signal, or an exception (no signal), does.

    A progress bar is no part of a training's state.
    """

    def __init__(self, at: int, signum: int | None) -> None:
        super().__init__()
        self.left = at
        self.signum = signum

    def disable(self) -> None:
        """On every rank but the first."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left == -1:
            if self.signum is None:
                raise ZeroDivisionError
            os.kill(os.getpid(), self.signum)


def wait_for_saves() -> None:
    """Let every save be waited for: where a run goes on from must not depend on the machine's load."""
    CheckpointEngine.save = partialmethod(CheckpointEngine.save, wait=True)  # type: ignore[method-assign, assignment]


def leave_cold(places: list[str]) -> None:
    """Let restores forget these parts: they stay as the new process has built them."""
    plan = FitSource.plan

    def cold(self: FitSource, saved: Any, *, keep: Any = (), trusted: Trust = False) -> Any:
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
    ours = CheckpointCallback(
        order["root"], job="job", every=every, keep_last=1000, **order.get("callback", {})
    )
    callbacks = [*others] if order.get("without") else [ours, *others]
    if order.get("kill") is not None:
        callbacks.append(Killer(order["kill"], order.get("signal", signal.SIGKILL)))
    given: dict[str, Any] = {"enable_checkpointing": False, **options, **order["trainer"]}
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_model_summary=False, callbacks=callbacks, **given
    )
    trainer.fit(module)
    out = f"{order['out']}{trainer.global_rank}" if "ranks" in order else order["out"]
    Path(out).write_text(json.dumps(result_of(module, trainer, ours)))


def start(order: dict[str, Any], environment: Mapping[str, str]) -> int:
    """Start a child, and return its number."""
    child = os.fork()
    if child:
        return child
    os.environ.update(environment)
    with open(order["log"], "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        train(order)
    except BaseException as error:  # noqa: BLE001 - told, and the child ends
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(int(error.code or 15) if isinstance(error, SystemExit) else 1)
    os._exit(0)


def start_ranks(order: dict[str, Any]) -> list[int]:
    """Start children as torchrun does; what `of` says of a rank is for that one alone."""
    size, children = order["ranks"], []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for rank in range(size):
        launcher = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
            "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        children.append(start({**order, **order.get("of", {}).get(str(rank), {})}, launcher))
    return children


def main() -> None:
    warm_up()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        order = json.loads(line)
        children = start_ranks(order) if "ranks" in order else [start(order, {})]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(ended if "ranks" in order else ended[0]), flush=True)


if __name__ == "__main__":
    main()
