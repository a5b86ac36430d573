"""Unbroken as a contender. Whatever the benchmark knows of its inside stands in this file.

Everything that is timed in the comparisons goes through `unbroken.Run`, as a person uses it. Two things are
asked of the inside: to wait for the background, which a person never does, and what a save consists of.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal

import unbroken
from benchmarks import page_cache
from benchmarks.workloads import Workload
from unbroken.engine.engine import CheckpointEngine
from unbroken.format import layout
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists, all_blobs
from unbroken.repo.reader import Reader
from unbroken.repo.repository import Repository
from unbroken.types import Step

JOB = "run"
NEVER = 10**12
PART_REPEATS = 5
POLL_SECONDS = 0.0002


class Unbroken:
    """A hand-written loop with `unbroken.Run`."""

    name: ClassVar[str] = "Unbroken"
    background: ClassVar[bool] = True
    durable: ClassVar[bool] = True
    needs_buffer: ClassVar[bool] = False

    def __init__(self, workload: Workload, home: Path, *, keep_last: int = 2) -> None:
        self._workload = workload
        self._home = home
        self._keep_last = keep_last
        self._run: unbroken.Run | None = None
        self._steps: Iterator[int] = iter(())
        self._step = 0

    def prepare(self) -> None:
        """Import what a run imports, by taking a tiny one to its first step."""
        with tempfile.TemporaryDirectory() as folder:
            run = unbroken.Run(folder, every=NEVER, quiet=True)
            run.track(numbers=[0])
            with _unwatched():
                next(run.steps(1))
            run.close()

    def start(self) -> None:
        """Enter the loop: the checkpoint of the start is committed before the first step."""
        self._enter("auto")

    def save(self) -> None:
        """Go on to the top of the next iteration, where the state is copied."""
        self._running().save()
        self._step = next(self._steps)

    def finish(self) -> None:
        """Wait for the commit. What is collected after it, nobody waits for."""
        engine = _engine(self._running())
        while engine._dispatch.progress._committed < self._step:
            if not engine._writer.busy:
                engine.wait()  # raises if the save failed, and then there is nothing to wait for
                break
            time.sleep(POLL_SECONDS)

    def tidy(self) -> None:
        """Wait for the background: a run removes its old checkpoints by itself."""
        _engine(self._running()).wait()

    def leave(self) -> None:
        """End the run in order."""
        self.close()

    def load(self) -> None:
        """Enter the loop of a new run over the same directory."""
        self._enter("must")

    def close(self) -> None:
        """End the run in order."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def parts(self) -> dict[str, float]:
        """Return the seconds of what a save that changes nothing consists of. Call it between two saves."""
        engine = _engine(self._running())
        run = engine._run
        assert run is not None
        return {
            "walk": _median(engine._source.skeleton),
            "pending record": _median(lambda: run.mark_pending(Step(0), "benchmark")),
        }

    def _enter(self, resume: Literal["auto", "must"]) -> None:
        run = unbroken.Run(
            self._home,
            job=JOB,
            every=NEVER,
            keep_last=self._keep_last,
            resume=resume,
            quiet=True,
        )
        run.track(**self._workload.tracked())
        self._run = run
        with _unwatched():
            self._steps = iter(run.steps(NEVER))
            next(self._steps)

    def _running(self) -> unbroken.Run:
        assert self._run is not None
        return self._run


@contextmanager
def _unwatched() -> Generator[None]:
    """The frame in which a loop is entered is ours; what stands in it is no training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unbroken.UntrackedWarning)
        yield


def _engine(run: unbroken.Run) -> CheckpointEngine:
    engine = run._engine
    assert engine is not None
    return engine


def _median(act: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(PART_REPEATS):
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def blocked_in(root: Path, job: str = JOB) -> list[float]:
    """Return how long each kept checkpoint has stopped its training, oldest first; those of its start and
    its end are left out."""
    repository = Repository.open(root, job)
    commits = [commit for commit in reversed(repository.commits()) if commit.position == "step"]
    return [repository.meta(commit).seconds_blocked for commit in commits]


def live_bytes(root: Path) -> int:
    """Return what the kept checkpoints need: stored bytes of their blobs and chunk lists, and all files that
    are no packs."""
    repository = Repository.open(root, JOB)
    index = BlobIndex(repository.store)
    index.refresh()
    lists = ChunkLists(index)
    needed = all_blobs(
        Reader(repository.store, index, commit).references(lists) for commit in repository.commits()
    )
    stored = {
        entry.digest: entry.stored
        for found in index.packs.values()
        for entry in found.entries
        if entry.digest in needed
    }
    everything, packs = (page_cache.size(root / JOB / part) for part in ("", layout.PACKS))
    return everything - packs + sum(stored.values())
