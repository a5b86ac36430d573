"""What pages show of a run as a whole, read once and again only when the run has changed.

Whether it has is told by a few names and sizes. What comes out of them is kept: all of it for the runs that were looked at
last, the little that a list shows for many more.

Invariant: what was read for an earlier request is shown to a later one only if the run is still as it was, or with the
time at which it was so.
Not promised: that two parts of one answer are of the same moment. A run may be in training.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from unbroken.errors import StoreError, UnbrokenError
from unbroken.format import layout
from unbroken.format.records import Commit
from unbroken.format.saves import SAVES
from unbroken.inspection.overview import Gist, Standing, Story, standing_of, story_of
from unbroken.inspection.remembered import Remembered
from unbroken.repo.repository import Repository
from unbroken.ui.app.bugs import as_told
from unbroken.ui.app.catalogue import Catalogue, Run
from unbroken.ui.app.kept import Kept

RUNS = 64
"""So many runs are kept in mind with all that they hold,"""
BRIEFS = 5_000
"""and so many with what a list shows."""


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it was; another `moment` is another state of it. `commits` are those that count, newest first; `on_disk` is
    None where it would cost requests."""

    moment: Hashable
    commits: tuple[Commit, ...]
    story: Story
    on_disk: int | None


@dataclass(frozen=True, slots=True)
class Brief:
    """What a list shows of a run as it was. None: there is none, or nobody knows."""

    checkpoints: int
    newest_step: int | None
    restarts: int
    last_save: float | None
    """Since 1970-01-01 UTC."""
    metrics: Mapping[str, float]
    """Of the last save."""
    on_disk: int | None
    gist: Gist


@dataclass(frozen=True, slots=True)
class Glance:
    """A run in a list: how it stands, or why it cannot be read; neither where it is being read for the first time."""

    run: Run
    brief: Brief | None = None
    standing: Standing | None = None
    problem: str = ""
    as_of: float | None = None
    """When it was so, where it is being read anew; None: it is so now."""

    @property
    def is_pending(self) -> bool:
        """Whether a later look will know more."""
        return self.as_of is not None or (self.standing is None and not self.problem)


@dataclass(slots=True)
class Looking:
    """Looks at the runs of a catalogue."""

    catalogue: Catalogue
    clock: Callable[[], float]
    _looks: Kept[Look] = field(default_factory=lambda: Kept[Look](RUNS))
    _briefs: Kept[Brief] = field(default_factory=lambda: Kept[Brief](BRIEFS))
    _seen: Kept[tuple[Glance, float]] = field(default_factory=lambda: Kept["tuple[Glance, float]"](BRIEFS))
    _folders: Kept[Folders] = field(default_factory=lambda: Kept["Folders"](RUNS))
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "unbroken-look"))
    _reading: dict[str, Future[Glance]] = field(default_factory=dict[str, "Future[Glance]"])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, run: Run, repository: Repository) -> Look:
        """Return what there is of a run now."""
        return self._look(run, repository, signature(repository))

    def standing(self, repository: Repository, look: Look) -> Standing:
        """Return how a run stands now."""
        return standing_of(repository, look.story.gist, now=self.clock())

    def glances(self, runs: list[Run], *, seconds: float, believed: float = 0.0) -> list[Glance]:
        """Look at several runs, for at most so long. Those that take longer go on being read: a later call gets them, and
        till then what was last seen, with its time. What was seen less than `believed` seconds ago is not looked at again."""
        now = self.clock()
        seen = {run.where: last for run in runs if (last := self._seen.peek(run.where)) is not None}
        known = {where: glance for where, (glance, then) in seen.items() if 0 <= now - then < believed}
        futures = {run.where: self._begun(run) for run in runs if run.where not in known}
        wait(set(futures.values()), timeout=seconds)
        return [known.get(run.where) or self._of(run, futures[run.where]) for run in runs]

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is being read for a list, at most so long; return whether that is so."""
        with self._lock:
            futures = list(self._reading.values())
        return not wait(futures, timeout=seconds).not_done

    def close(self) -> None:
        """End what is still being read."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begun(self, run: Run) -> Future[Glance]:
        with self._lock:
            future = self._reading.get(run.where)
            if future is not None and not future.done():
                return future
            future = self._reading[run.where] = self._pool.submit(self._glance, run)
        future.add_done_callback(partial(self._over, run.where))
        return future

    def _over(self, where: str, future: Future[Glance]) -> None:
        with self._lock:
            if self._reading.get(where) is future:
                del self._reading[where]

    def _of(self, run: Run, future: Future[Glance]) -> Glance:
        if future.done() and not future.cancelled():
            return future.result()
        last = self._seen.peek(run.where)
        return Glance(run) if last is None else replace(last[0], as_of=last[1])

    def _glance(self, run: Run) -> Glance:
        now = self.clock()
        glance = self._glanced(run)
        self._seen.keep(run.where, (glance, now))
        return glance

    def _glanced(self, run: Run) -> Glance:
        try:
            repository = self.catalogue.open(run)
            moment = signature(repository)
            brief = self._briefs.get(
                run.where, lambda: _brief(self._look(run, repository, moment)), version=moment
            )
            return Glance(run, brief, standing_of(repository, brief.gist, now=self.clock()))
        except UnbrokenError as error:
            return self._not_read(run, error)
        except OSError as error:
            return Glance(run, problem=f"{error.strerror or error}.")
        except Exception as error:  # noqa: BLE001 - a bug that one run brings to light must not hide the others
            return self._not_read(run, error)

    def _not_read(self, run: Run, error: Exception) -> Glance:
        return Glance(run, problem=str(as_told(error, f"{run.where} could not be read.")))

    def _look(self, run: Run, repository: Repository, moment: Hashable) -> Look:
        folders = self._folders.get(run.where, dict)
        return self._looks.get(
            run.where, lambda: _looked(repository, (run.where, moment), folders), version=moment
        )


Folders = dict[str, tuple[int, int]]
"""Directories of checkpoints, which nobody changes once they are there: when each was changed last, and what it takes."""


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


def _looked(repository: Repository, moment: Hashable, folders: Folders) -> Look:
    store = repository.store
    if isinstance(store, Remembered):
        store.get_all(store.list(layout.COMMITS))
    return Look(moment, tuple(repository.commits()), story_of(repository), on_disk(repository, folders))


def _brief(look: Look) -> Brief:
    points = look.story.points
    starts = [one for one in look.story.restarts if one.event == "start" and not one.first]
    return Brief(
        checkpoints=len(look.commits),
        newest_step=look.commits[0].step if look.commits else None,
        restarts=len(starts),
        last_save=points[-1].time if points else None,
        metrics=points[-1].metrics if points else {},
        on_disk=look.on_disk,
        gist=look.story.gist,
    )


def on_disk(repository: Repository, folders: Folders) -> int | None:
    """Return what a run takes in a directory; None of one in a bucket, where each object would have to be asked for.

    `folders` is what an earlier call has found, and will hold what this one does.
    """
    store = repository.store
    place = store.on_disk() if isinstance(store, Remembered) else None
    if place is None:
        return None
    steps = str(place / layout.STEPS)
    known, total = dict(folders), _below(str(place), skip=steps)
    folders.clear()
    with suppress(OSError), os.scandir(steps) as entries:
        for entry in entries:
            with suppress(OSError):  # gone meanwhile
                about = entry.stat(follow_symlinks=False)
                if not entry.is_dir(follow_symlinks=False):
                    total += about.st_size
                    continue
                changed, size = known.get(entry.name, (-1, 0))
                if changed != about.st_mtime_ns:
                    size = _below(entry.path)
                folders[entry.name] = about.st_mtime_ns, size
                total += size
    return total


def _below(directory: str, *, skip: str = "") -> int:
    total = 0
    stack = [directory]
    while stack:
        with suppress(OSError), os.scandir(stack.pop()) as entries:  # gone meanwhile, or not ours
            for entry in entries:
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
                    elif entry.path != skip:
                        stack.append(entry.path)
    return total
