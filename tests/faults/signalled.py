"""A training that is told to end by real signals, at a place that its order names; for tests. One start a process.

`python -m tests.faults.signalled ORDER`, where ORDER is JSON. The end of the training is written to `out`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import unbroken
from unbroken.engine.preemption import Preemption
from unbroken.store.local import LocalStore


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


def at_place(order: Order, run: unbroken.Run) -> None:
    """Do in the middle of a step what the order says."""
    if order.place == "step":
        order.send()
    elif order.place == "storm":
        # Each signal that has come is a byte in a file: it outlives this process, and what Python makes of it.
        came = os.open(f"{order.out}.came", os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_NONBLOCK)
        signal.set_wakeup_fd(came, warn_on_full_buffer=False)
        print("waits", flush=True)
        while os.fstat(came).st_size < order.count:
            os.sched_yield()
    elif order.place == "stuck":
        beside(order)
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
    elif order.place in ("closing", "last save"):
        hang(order, run._running().preemption)
        if order.place == "closing":
            run.save()
        else:
            run.stop()
    elif order.place == "error":
        order.send()
        raise EOFError("the worker is gone")


def beside(order: Order) -> None:
    """Keep count of time beside the training: which parts of its grace have passed before its end."""
    grace = max(float(order.settings.get("grace", 30)), 1.0)
    for share in (0.5, 10):
        timer = threading.Timer(share * grace, Path(f"{order.out}.{share}").touch)
        timer.daemon = True
        timer.start()


def hang(order: Order, preemption: Preemption) -> None:
    """Let no further commit of this run come to its end, as a disk does that does not answer, and be told then."""
    put_if_absent, hangs = LocalStore.put_if_absent, threading.Event()

    def hanging(self: LocalStore, key: str, data: Any) -> bool:
        if key.startswith("commits/"):
            hangs.set()
            threading.Event().wait()
        return put_if_absent(self, key, data)

    def tell() -> None:
        hangs.wait()
        while order.place == "closing" and preemption._phase.value != "closing":
            os.sched_yield()
        beside(order)
        for _ in range(order.count):
            os.kill(os.getpid(), order.signal)
            while not preemption.told:
                os.sched_yield()  # two that come at once are one

    LocalStore.put_if_absent = hanging  # type: ignore[method-assign]
    threading.Thread(target=tell, daemon=True).start()


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
            if order.place == "closing" and step == order.at + 1:
                raise EOFError("the training has failed")
            run.wait()  # so that each save comes at its step, and none is late
            part.step = step + 1
            if step == order.at:
                if order.place == "own handler":
                    order.send()
                    os.kill(os.getpid(), signal.SIGUSR2)
                else:
                    at_place(order, run)
            part.train()
    Path(order.out).write_text(json.dumps({"values": part.values.tobytes().hex(), "heard": heard}))


if __name__ == "__main__":
    main()
