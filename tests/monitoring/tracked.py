"""A training that logs each step to a tracker: `tracked.py KIND ROOT TOTAL PAUSE`, or `tracked.py` alone.

Alone, it reads such lines from its input, after one with the libraries to load, and has each done by a process that it
forks, so that several trainings share what it takes to load them. At the step PAUSE it says so, and waits to be killed; all that was saved is durable and marked by then. At its end it
prints its state. Its losses come from the global generators, so that it shows whether somebody else draws from them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import unbroken
from unbroken.trackers import log_mlflow, mlflow_run, wandb_run

Log = Callable[[float, int], object]


def nothing(run: unbroken.Run, root: str) -> tuple[Log, Callable[[], object]]:
    return lambda loss, step: None, lambda: None


def board(run: unbroken.Run, root: str) -> tuple[Log, Callable[[], object]]:
    writer: Any = import_module("tensorboardX").SummaryWriter(
        f"{root}-board", filename_suffix=f".{time.time_ns()}"
    )
    run.mark_in(writer)

    def log(loss: float, step: int) -> None:
        writer.add_scalar("loss", loss, step)
        writer.flush()

    return log, writer.close


def wandb(run: unbroken.Run, root: str) -> tuple[Log, Callable[[], object]]:
    import wandb as library

    settings: Any = library.Settings(
        console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True,
        x_file_stream_transmit_interval=0.1,
    )  # fmt: skip
    tracked: Any = library.init(project="p", dir=f"{root}-wandb", settings=settings, **wandb_run(root))
    return lambda loss, step: tracked.log({"loss": loss}, step=step), tracked.finish


def mlflow(run: unbroken.Run, root: str) -> tuple[Log, Callable[[], object]]:
    tracker: Any = import_module("mlflow")
    tracker.start_run(**mlflow_run(root))
    return lambda loss, step: log_mlflow({"loss": loss}, step=step), tracker.end_run


KINDS = {"nothing": nothing, "board": board, "wandb": wandb, "mlflow": mlflow}


def main(kind: str, root: str, total: int, pause: int) -> None:
    run = unbroken.Run(root, every=10, quiet=True)
    losses = np.zeros(total)
    run.track(losses=losses)
    log, finish = KINDS[kind](run, root)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - the global generator is the one that somebody else could draw from
    for step in run.steps(total):
        losses[step] = random.random() + np.random.random()  # noqa: NPY002
        log(float(losses[step]), step)
        if step % 10 == 2:  # what was saved last is marked in this step's row
            assert run.wait()
        if step == pause:
            print("paused", os.getpid(), flush=True)
            signal.pause()
    finish()
    print("ended", losses.tobytes().hex(), flush=True)


def serve() -> None:
    for name in sys.stdin.readline().split():
        import_module(name)
    for line in sys.stdin:
        kind, root, total, pause = line.split()
        child = os.fork()
        if child == 0:
            try:
                main(kind, root, int(total), int(pause))
            except BaseException:  # noqa: BLE001 - the process ends here
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print("gone", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        serve()
