"""Starts of small scripts in processes of their own, for the tests of faults that others have had.

`Starts.run(training, root)` is one start of the script: a child of a process that has only imported things, so
that it costs milliseconds. The start after a kill comes from another interpreter, with another hash seed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

import unbroken
from exactness.forked import Forking, serve, warm_up
from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot


class Training:
    """A person's script: `__init__` builds and tracks, `step` is the body of the loop.

    `chill` brings a part to what a new process has; `check` raises where the end is not as it must be.
    """

    steps: ClassVar[int] = 14
    every: ClassVar[int] = 5
    kills: ClassVar[tuple[int, ...]] = (8,)
    """At which step each start but the last is killed."""

    cold = False
    """Whether a part of it was left cold."""

    def __init__(self, run: unbroken.Run) -> None:
        self.run = run

    def step(self, step: int) -> None:
        raise NotImplementedError

    def chill(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Look at the end of a start that came to its end."""


class Starts:
    """Two interpreters that start scripts."""

    def __init__(self) -> None:
        self._runners = [
            Forking("-m", "tests.faults.starts", environment={"PYTHONHASHSEED": str(seed)}) for seed in (1, 2)
        ]

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def run(
        self,
        training: type[Training],
        root: Path,
        *,
        kill: int | None = None,
        cold: bool = False,
        nth: int = 0,
    ) -> str:
        """Start it once, and return what it said. It ends in order, or by the kill that was ordered."""
        log = root.with_suffix(".log")
        order = {
            "module": training.__module__, "name": training.__qualname__, "root": str(root), "log": str(log),
            "kill": kill, "cold": cold,
        }  # fmt: skip
        status = self._runners[nth % 2].run(json.dumps(order))
        said = log.read_text()
        assert status == (0 if kill is None else -signal.SIGKILL), said
        return said

    def three_ways(self, training: type[Training], folder: Path) -> tuple[Snapshot, Snapshot, Snapshot]:
        """Return the ends of the undisturbed run, of the killed one, and of the one whose last start was cold."""
        undisturbed, resumed, cold = (folder / name / "run" for name in "URC")
        for root in (undisturbed, resumed):
            root.parent.mkdir()
        self.run(training, undisturbed)
        for nth, kill in enumerate(training.kills):
            self.run(training, resumed, kill=kill, nth=nth)
        shutil.copytree(resumed.parent, cold.parent)
        self.run(training, resumed, nth=len(training.kills))
        self.run(training, cold, cold=True, nth=len(training.kills))
        return end_of(undisturbed), end_of(resumed), end_of(cold)


def end_of(root: Path) -> Snapshot:
    """Return the state at the end of a run."""
    repository = Repository.open(root, root.name)
    commit = repository.commits()[0]
    assert commit.position == "end"
    return repository.load(commit)


def differing(one: Snapshot, other: Snapshot) -> list[str]:
    """Return the places at which two ends differ."""
    return [str(difference) for difference in without_clocks(compare(one, other), one, other)]


def start(order: dict[str, object]) -> None:
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator belongs to the run
    torch.manual_seed(1)
    cls: type[Training] = getattr(importlib.import_module(str(order["module"])), str(order["name"]))
    run = unbroken.Run(Path(str(order["root"])), every=cls.every)
    training = cls(run)
    for step in run.steps(cls.steps):
        assert run.report is not None
        if order["cold"] and step == run.report.step:
            assert run.report.restored
            training.chill()
        if step == order["kill"]:
            run.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        training.step(step)
    training.check()


def main() -> None:
    warm_up()
    serve(json.loads, start, log=lambda order: str(order["log"]))


if __name__ == "__main__":
    main()
