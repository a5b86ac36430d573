"""A training that is told to end by real signals, at a place that its order names; for tests. One start a process.

`python -m tests.faults.signalled ORDER`, where ORDER is JSON. The end of the training is written to `out`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import unbroken


class Order:
    """What this start is to do."""

    def __init__(self, text: str) -> None:
        told: dict[str, Any] = json.loads(text)
        self.root: str = told["root"]
        self.place: str = told.get("place", "")
        self.at: int = told.get("at", -1)
        self.signal: int = int(signal.Signals[told.get("signal", "SIGTERM")])
        self.count: int = told.get("count", 1)
        self.cold: bool = told.get("cold", False)
        self.total: int = told.get("total", 30)
        self.settings: dict[str, Any] = told.get("settings", {})
        self.out: str = told["out"]

    def send(self) -> None:
        for _ in range(self.count):
            os.kill(os.getpid(), self.signal)


class Part:
    """State with a generator, which tells where it is read and written."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.step = -1
        self.values = np.zeros(2)
        self.generator = np.random.default_rng(7)

    def train(self) -> None:
        self.values = self.values * 0.9 + self.generator.random(2)

    def state_dict(self) -> dict[str, Any]:
        if self.order.place == "save" and self.step == self.order.at:
            self.order.send()
        return {"values": self.values.copy(), "generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = np.array(state["values"])
        if self.order.place == "restore":
            self.order.send()
        self.generator.bit_generator.state = state["generator"]


def at_place(order: Order, part: Part) -> None:
    """Do in the middle of a step what the order says."""
    if order.place == "step":
        order.send()
    elif order.place == "storm":
        storm = (
            f"for i in 1 2 3 4 5 6 7 8 9 10; do kill -{order.signal} {os.getpid()} || exit 0; sleep 0.2; done"
        )
        subprocess.Popen(["sh", "-c", storm])
        signal.pause()
    elif order.place == "stuck":
        order.send()
        while True:
            signal.pause()
    elif order.place == "in C":
        order.send()
        threading.Timer(0.0, order.send).start()
        mutex = ctypes.create_string_buffer(64)
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
    elif order.place == "group":
        workers = [worker() for _ in range(2)]
        os.killpg(0, order.signal)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
        Path(order.out).with_suffix(".workers").write_text(json.dumps(ended))
    elif order.place == "error":
        order.send()
        raise EOFError("the worker is gone")


def worker() -> int:
    """Fork a loader that waits for its end."""
    child = os.fork()
    if child:
        return child
    while True:
        signal.pause()


def main() -> None:
    order = Order(sys.argv[1])
    heard: list[int] = []
    if order.place == "own handler":
        signal.signal(order.signal, lambda number, _: heard.append(number))
        faulthandler.register(signal.SIGUSR2, file=2)
    part = Part(order)
    settings: Any = {"every": 7, "keep_last": 50, **order.settings}
    with unbroken.Run(order.root, job="run", **settings) as run:
        run.track(part=part)
        for step in run.steps(order.total):
            assert run.report is not None
            if order.cold and step == run.report.step:
                assert run.report.restored
                part.values[:] = 0
            run._running().wait()  # so that each save comes at its step, and none is late
            part.step = step + 1
            if step == order.at:
                if order.place == "own handler":
                    order.send()
                    os.kill(os.getpid(), signal.SIGUSR2)
                else:
                    at_place(order, part)
            part.train()
    Path(order.out).write_text(json.dumps({"values": part.values.tobytes().hex(), "heard": heard}))


if __name__ == "__main__":
    main()
