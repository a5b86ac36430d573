"""A training that stops itself (SIGSTOP) where it is told to: `python two_processes.py ROOT PLACE`.

PLACE: `never`, `between` (at a step beyond the last commit), or `committing` (right before the store is asked to make
the commit record of a save). The signal is real; only its moment is chosen.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import numpy as np

import unbroken
from unbroken.store.local import LocalStore
from unbroken.store.object import ObjectStore

STEPS, EVERY, STOP = 60, 10, 35


def stop() -> None:
    # To this very thread: of a signal to the process another one may take notice first, and this one go on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop_before_commit(kind: type[Any], number: str) -> None:
    put_if_absent = kind.put_if_absent

    def stopping(self: Any, key: str, data: Any) -> bool:
        if key.startswith("commits/") and key.endswith(number):
            stop()
        return bool(put_if_absent(self, key, data))

    kind.put_if_absent = stopping


def main(root: str, place: str) -> None:
    if place == "committing":
        for kind in (LocalStore, ObjectStore):
            stop_before_commit(kind, "0004.json")  # the start is the first, step 30 the fourth
    weights, generator = np.zeros(64), np.random.default_rng(3)
    run = unbroken.Run(root, job="run", every=EVERY, keep_last=2, quiet=True)
    run.track(weights=weights, generator=generator)
    for step in run.steps(STEPS):
        weights += generator.normal(size=64)
        run.wait()  # each save is over before the next is due
        if place == "between" and step == STOP:
            stop()
    print(weights.tobytes().hex())


if __name__ == "__main__":
    main(*sys.argv[1:])
