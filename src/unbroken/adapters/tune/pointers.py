"""Pointer checkpoints: the small file that Tune stores, copies and deletes in place of a checkpoint.

Written only once the commit that it names is durable. What it names is held for a while beyond
`keep_last` (`repo.pins`), since a scheduler may hand it to another trial later.

Not promised: that a pointer leads anywhere. The checkpoints are kept and deleted by the run's own rules.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from unbroken.errors import StoreError
from unbroken.format.pointer import Pointer
from unbroken.format.records import Commit
from unbroken.repo import pins, pointers
from unbroken.repo.repository import Repository
from unbroken.types import Sequence


def read_pointer(directory: str | os.PathLike[str]) -> Pointer:
    """Return the pointer in a directory that Tune gives back as a checkpoint.

    Raises:
        ConfigError: there is none: the checkpoint was written by something else.
        CorruptObject: it is damaged.
    """
    return pointers.required(
        directory,
        framework="Tune",
        hint="Start the trial without it, or load it by the code that has written it.",
    )


_SLACK = 60.0
"""Seconds for which a pointer is given again without renewing what holds its checkpoint."""


class Pointers:
    """Writes the pointers of one run, and holds on to what the newest `hold` of them name.

    A checkpoint is held for at least `pins.LIFE_SECONDS` after the last pointer to it was written, also where
    `keep_last` keeps it just now: the next save may drop it before the next pointer is written.
    """

    def __init__(self, root: str, job: str, *, hold: int) -> None:
        self.root = root
        self.job = job
        self._hold = hold
        self._held_until: tuple[Sequence, float] | None = None
        self._repository: Repository | None = None

    @property
    def repository(self) -> Repository:
        if self._repository is None:
            self._repository = Repository.open(self.root, self.job)
        return self._repository

    def newest(self) -> Commit:
        """Return the newest commit of the run, which is durable."""
        return self.repository.commits()[0]

    def write(self, directory: str | os.PathLike[str], commit: Commit) -> None:
        """Write a pointer to `commit` into `directory`."""
        if self._hold:
            self._pin(commit)
        pointers.write(directory, commit, root=self.root, job=self.job)

    def _pin(self, commit: Commit) -> None:
        store, now = self.repository.store, time.time()
        if self._held_until is not None:
            sequence, until = self._held_until
            if sequence == commit.sequence and until >= now + pins.LIFE_SECONDS:
                return
        until = now + pins.LIFE_SECONDS + _SLACK
        # Where it fails another trial takes the nearest checkpoint that is left, and says so.
        with suppress(StoreError):
            # What a process before this one has reported may still be waited for.
            held = {**pins.holds_of(store, self.job), commit.sequence: until}
            newest = sorted((sequence for sequence in held if held[sequence] > now), reverse=True)[
                : self._hold
            ]
            pins.hold(
                store,
                self.job,
                {sequence: held[sequence] for sequence in newest},
                job=self.job,
                reason="reported to Tune",
                now=now,
            )
            self._held_until = commit.sequence, until
