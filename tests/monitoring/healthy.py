"""A training of its own, monitored as its environment says: saves again and again until its input ends."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np

import unbroken


def main(root: Path) -> None:
    """Train until somebody closes our input."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    run = unbroken.Run(root, job="healthy", every=20, quiet=True)
    state = {"weights": np.zeros(100)}
    run.track(state=state)
    for _ in run.steps(10**9):
        state["weights"] += 1
        if over.wait(0.002):
            run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
