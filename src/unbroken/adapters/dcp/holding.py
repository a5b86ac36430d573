"""The runs that this process writes to as coordinator, each held from its first save to its end.

A `StorageWriter` is often made anew for every save, in whatever thread. To take the run each time would claim
an epoch each time; so the right to write is kept here, under the run's place.

Not promised: two saves of one run at a time. The later one gives the earlier one up.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unbroken.engine.settings import Settings
from unbroken.engine.warnings import PickledPartsWarning
from unbroken.errors import SaveFailed, StoreError
from unbroken.format.meta import Meta
from unbroken.format.ranks import RankRecord, SaveOrder
from unbroken.format.records import Commit
from unbroken.repo.attempt import Joint
from unbroken.repo.fencing import Claim
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.saves import SaveRecordWarning


class OldCheckpointsWarning(UserWarning):
    """A checkpoint is committed, and what it was to replace could not be deleted."""


@dataclass(slots=True)
class HeldRun:
    """One run that this process writes to."""

    writer: RunWriter
    order: SaveOrder | None = None
    """The save that is on its way, or was given up on its way: nobody says so when a rank fails."""
    told: bool = False

    @property
    def claim(self) -> Claim:
        return self.writer.checkpoints.pen.claim

    def begin(self, meta: Meta) -> tuple[SaveOrder, Commit | None]:
        """Begin a save: return its order, and the newest commit, which stays until the save is over. None where there
        is none to build on: what is set aside may be damaged.

        Raises:
            StoreError: the store does not answer.
            Fenced: a newer process has taken the run over.
        """
        if self.order is not None:
            self.writer.sweep()  # parts of a save that came to nothing
        self.writer.mark_pending(meta.step, meta.reason)
        self.order = self.writer.checkpoints.order(meta)
        newest = next(iter(self.writer.checkpoints.commits()), None)
        apart = newest is not None and newest.sequence in self.writer.checkpoints.aside()
        return self.order, None if apart else newest

    def finish(
        self, order: SaveOrder, meta: Meta, records: Sequence[RankRecord], settings: Settings
    ) -> Commit:
        """Commit what all ranks have written, and delete what need not stay.

        Raises:
            SaveFailed: another save of the run was begun meanwhile.
            StoreError, AmbiguousCommit: it could not be committed; earlier commits are intact.
            Fenced: a newer process has taken the run over.
        """
        if order != self.order:
            raise SaveFailed(
                f"The save of step {order.step:,} was given up: another save was begun before it ended.",
                hint="Wait for a save, or for what async_save returned, before the next.",
            )
        commit = self.writer.checkpoints.write_parts((), meta, (), joint=Joint(order, tuple(records)))
        self.order = None
        try:
            checkpoints = self.writer.checkpoints
            plan = plan_retention(
                checkpoints.commits(),
                keep_last=settings.keep_last,
                best=settings.best_by,
                keep_first=settings.keep_first,
                damaged=checkpoints.aside(),
                pinned=checkpoints.pinned(),
            )
            # How long the ranks took is not known here.
            if unrecorded := checkpoints.record(plan, durable=None):
                warnings.warn(SaveRecordWarning.of(unrecorded), stacklevel=2)
            self.writer.retain(plan)
        except StoreError as error:
            # To call the save failed would be wrong: the checkpoint exists.
            warnings.warn(
                f"Step {commit.step:,} is saved, but older checkpoints could not be deleted: {error}",
                OldCheckpointsWarning,
                stacklevel=2,
            )
        self._tell_of_pickles([place for record in records for place in record.opaque])
        return commit

    def _tell_of_pickles(self, places: Sequence[str]) -> None:
        if places and not self.told:
            self.told = True
            warnings.warn(PickledPartsWarning.of(sorted(places)), stacklevel=3)


_held: dict[str, HeldRun] = {}
_lock = threading.Lock()


def hold(settings: Settings) -> HeldRun:
    """Return the run that the settings name, taken for writing.

    Raises:
        RunBusy: another live process writes to it.
        ConfigError: root or store cannot be used.
    """
    with _lock:
        found = _held.get(settings.where)
        if found is None:
            repository = Repository.open(settings.root, settings.job, create=True)
            writer = repository.writer(document_format=settings.document_format)
            found = _held[settings.where] = HeldRun(writer)
        return found


def held(settings: Settings) -> HeldRun | None:
    """Return the run that the settings name, if this process holds it."""
    with _lock:
        return _held.get(settings.where)


def let_go(settings: Settings) -> None:
    """Give the run back, if this process holds it."""
    with _lock:
        found = _held.pop(settings.where, None)
    if found is not None:
        found.writer.close()


def _let_all_go() -> None:
    runs: Mapping[str, HeldRun] = dict(_held)
    _held.clear()
    for found in runs.values():
        found.writer.close()


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a thread that is not here any more may have held it
    _lock = threading.Lock()
    _held.clear()


atexit.register(_let_all_go)
os.register_at_fork(after_in_child=_forget)  # they are the parent's
