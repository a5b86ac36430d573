"""A small loop that a person might have written, and saves that fail."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import unbroken


class Walk:
    """A random walk: numpy's global generator, an array in place, and variables of the loop."""

    def __init__(self, root: Path, **settings: Any) -> None:
        np.random.seed(3)  # noqa: NPY002 - the global generator is what is tested
        self.position = np.zeros(4)
        self.root = root
        self.blocked = ExitStack()
        self.run = unbroken.Run(root, every=5, quiet=True, **settings)
        self.run.track(position=self.position)
        self.run.vars.total = 0.0
        self.run.vars.trail = []

    def go(self, total: int, *, leave_at: int = -1, block_at: int = -1) -> None:
        for step in self.run.steps(total):
            if step == leave_at:
                return
            if step == block_at:
                written()
                self.blocked.enter_context(no_saves(self.root))
            self.position += np.random.standard_normal(4)  # noqa: NPY002
            self.run.vars.total += float(self.position.sum())
            self.run.vars.trail.append(self.run.vars.total)
            self.run.record(episodes=int(step % 3 == 0), total=self.run.vars.total)

    def state(self) -> tuple[list[float], float, list[float], int]:
        return self.position.tolist(), self.run.vars.total, self.run.vars.trail, self.run.episodes


@contextmanager
def no_saves(root: Path) -> Generator[None, None, None]:
    """Let every save fail as long as this lasts."""
    folder, aside = root / root.name / "steps", root / "aside"
    shutil.move(folder, aside)
    folder.write_text("in the way")
    yield
    folder.unlink()
    shutil.move(aside, folder)


def written() -> None:
    """Wait until no save is being written, whatever became of it."""
    for thread in threading.enumerate():
        if thread.name == "unbroken-writer":
            thread.join()
