"""What pages show of a run as a whole, read once and again only when the run has changed.

Whether it has is told by a few names and sizes. What comes out of them is kept for the runs that were looked at last.

Not promised: that two parts of one answer are of the same moment. A run may be in training.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unbroken.errors import StoreError, UnbrokenError
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.format.saves import SAVES
from unbroken.inspection.overview import Standing, Story, standing_of, story_of
from unbroken.inspection.remembered import Remembered
from unbroken.repo.repository import Repository
from unbroken.ui.app.catalogue import Catalogue, Run

T = TypeVar("T")

RUNS = 64
"""So many runs are kept in mind."""


class Kept(Generic[T]):
    """The last `most` things that were made, by what they were made of. For any number of threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made of `key`; make it if it was not, or is not kept any more."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it was; another `moment` is another state of it. `commits` are those that count, newest first; `on_disk` is None where it would cost requests."""

    moment: Hashable
    commits: tuple[Commit, ...]
    story: Story
    on_disk: int | None


@dataclass(frozen=True, slots=True)
class Glance:
    """A run in a list: how it stands, or why it cannot be read; neither where it is still being read."""

    run: Run
    look: Look | None = None
    standing: Standing | None = None
    problem: str = ""


@dataclass(slots=True)
class Looking:
    """Looks at the runs of a catalogue."""

    catalogue: Catalogue
    clock: Callable[[], float]
    _looks: Kept[Look] = field(default_factory=lambda: Kept[Look](RUNS))
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "unbroken-look"))
    _reading: dict[str, Future[Glance]] = field(default_factory=dict[str, "Future[Glance]"])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, run: Run, repository: Repository) -> Look:
        """Return what there is of a run now."""
        moment = (run.where, signature(repository))
        return self._looks.get(moment, lambda: _look(repository, moment))

    def standing(self, repository: Repository, look: Look) -> Standing:
        """Return how a run stands now."""
        return standing_of(repository, look.story, now=self.clock())

    def glances(self, runs: list[Run], *, seconds: float) -> list[Glance]:
        """Look at several runs, for at most so long; those that take longer go on, for the next time."""
        futures: dict[str, Future[Glance]] = {}
        with self._lock:
            for run in runs:
                if run.where not in self._reading:
                    self._reading[run.where] = self._pool.submit(self._glance, run)
                futures[run.where] = self._reading[run.where]
        wait(futures.values(), timeout=seconds)
        found: list[Glance] = []
        for run in runs:
            future = futures[run.where]
            if future.done():
                with self._lock:
                    if self._reading.get(run.where) is future:
                        del self._reading[run.where]
                found.append(future.result())
            else:
                found.append(Glance(run))
        return found

    def close(self) -> None:
        """End what is still being read."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _glance(self, run: Run) -> Glance:
        try:
            repository = self.catalogue.open(run)
            look = self.look(run, repository)
            return Glance(run, look, self.standing(repository, look))
        except UnbrokenError as error:
            return Glance(run, problem=str(error))
        except OSError as error:
            return Glance(run, problem=f"{error.strerror or error}.")


def signature(repository: Repository) -> Hashable:
    """Return what is another thing as soon as a run has another checkpoint, save, start or end."""
    store = repository.store
    commits = store.list(layout.COMMITS)
    saves = tuple((key, _size(repository, key)) for key in store.list(SAVES))
    epochs = store.list(layout.EPOCHS)
    first = store.get(epochs[0]) if epochs else b""
    edge = (commits[0], commits[-1]) if commits else ()
    return (len(commits), edge, saves, len(epochs), first, _size(repository, layout.HISTORY))


def _size(repository: Repository, key: str) -> int:
    with suppress(StoreError):
        return repository.store.size(key)
    return -1


def _look(repository: Repository, moment: Hashable) -> Look:
    store = repository.store
    if isinstance(store, Remembered):
        store.get_all(store.list(layout.COMMITS))
    return Look(moment, tuple(repository.commits()), story_of(repository), on_disk(repository))


def on_disk(repository: Repository) -> int | None:
    """Return what a run takes in a directory; None of one in a bucket, where each object would have to be asked for."""
    store = repository.store
    place = store.on_disk() if isinstance(store, Remembered) else None
    return None if place is None else _below(str(place))


def _below(directory: str) -> int:
    total = 0
    stack = [directory]
    while stack:
        with suppress(OSError), os.scandir(stack.pop()) as entries:  # gone meanwhile, or not ours
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total
