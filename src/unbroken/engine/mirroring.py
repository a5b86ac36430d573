"""Keeps a second place up to date beside the training, and brings it back when the first place is lost.

A thread of its own copies, one round at a time; commits that come meanwhile are one more round. It reads the
first place as anybody may, so no save waits for it and none fails with it. What goes wrong is kept, said once
for each kind, counted, and tried again after the next save.

Not promised: that the mirror has a checkpoint at the moment it is committed. `close` waits for the last round, but in a
process that a signal has told to end only as long as its grace lasts: half a copy is garbage, and the next start catches up.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

from unbroken.engine.faults import EndOfProcess, FaultKind
from unbroken.engine.recovery import Attempt, Evidence, Tier, Wish
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, CorruptObject, Fenced, RunBusy, StoreError, UnbrokenError
from unbroken.format.records import Commit
from unbroken.repo import mirror as mirrors
from unbroken.repo.mirror import Contents, Lost, Mirror
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.repo.run_writer import RunWriter

_GLANCE = 0.05
"""Seconds between two looks whether a signal has come while the last round is waited for."""


class MirrorWarning(UserWarning):
    """The mirror could not be brought up to date. Every checkpoint in the first place is as it should be."""


class Mirroring:
    """The mirror of one run while it trains. Make it with `of`."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = os.fspath(settings.mirror)
        self.where = root_of(self.root, name="mirror").run(settings.job)
        self.failures: dict[str, int] = {}
        """How often a round failed, by the class of the error."""
        self.last_error = ""
        self.copied = 0
        """Checkpoints that were written into the mirror."""
        self.copied_bytes = 0
        self.seconds = 0.0
        """What the rounds took in all."""
        self._settings = settings
        self._clock = clock
        self._mirror: Mirror | None = None
        self._unsaid: list[str] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        """Set while there is no round that anybody waits for."""
        self._idle.set()
        self._left = False
        """Whether the last round was not waited for."""
        self._due = False
        self._over = False
        self._pid = os.getpid()

    @classmethod
    def of(cls, settings: Settings) -> Mirroring | None:
        """Return what keeps the mirror that these settings name, None if they name none; take it if it answers.

        Raises:
            ConfigError: it is another run's, or lies where the run does.
            RunBusy: another process writes to it.
        """
        if not settings.mirror:
            return None
        mirroring = cls(settings)
        mirrors.check_apart(os.fspath(settings.root), mirroring.root, settings.job)
        try:
            mirroring._mirror = mirroring._open()
        except (ConfigError, RunBusy):
            raise
        except UnbrokenError as error:  # a training does not wait for its mirror: the rounds try again
            mirroring._failed(error)
        return mirroring

    def bring_back(
        self, repository: Repository, writer: RunWriter, *, step: int | None, lost: Collection[Commit] | None
    ) -> str:
        """Copy checkpoints back into the first place and say so; return an empty string if there are none.

        Those that stand for the commits `lost`, all of which are damaged; None: everything that the mirror has,
        or has of this `step`.

        Raises:
            StoreError: the mirror does not answer, or the first place.
            Untrusted: a checkpoint is signed with another key than ours.
        """
        try:
            return self._brought_back(repository, writer, step, lost)
        except CorruptObject as error:
            return f"the mirror {self.where} cannot be read: {error.message}"
        except StoreError as error:
            if lost is not None:  # the first place has something to go on from
                return f"the mirror {self.where} does not answer: {error.message}"
            raise type(error)(
                f"The run holds no checkpoint to go on from, and its mirror {self.where} does not answer:"
                f" {error.message}",
                hint='Make the mirror reachable; to begin anew without it, start with resume="never".',
            ) from error

    def _brought_back(
        self, repository: Repository, writer: RunWriter, step: int | None, lost: Collection[Commit] | None
    ) -> str:
        there = mirrors.contents(self.root, self._settings.job).commits
        wanted = [commit for commit in reversed(there) if step is None or commit.step == step]
        if lost is not None:
            gone = {mirrors.facts(commit) for commit in lost}
            wanted = [commit for commit in wanted if mirrors.facts(commit) in gone]
        for commit in repository.commits() if wanted else ():
            repository.verify(commit)  # so that every damaged blob is known, and written anew
        done = mirrors.bring_back(self.root, repository, writer, wanted)
        back = [one.source for one in done if not isinstance(one, Lost)]
        told = [
            f"commit {one.commit.sequence} of the mirror {self.where}: {one.why}"
            for one in done
            if isinstance(one, Lost)
        ]
        if back:
            steps = ", ".join(f"{step:,}" for step in dict.fromkeys(commit.step for commit in back))
            told.insert(0, f"from the mirror {self.where}: step {steps}")
        return "; ".join(told)

    def soon(self) -> None:
        """Bring the mirror up to date in the background. Returns at once and raises nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._due = True
            if self._over or self._thread is not None:
                return
            # A round that is left must not hold the interpreter up; one that is not is waited for at its exit, too.
            thread = threading.Thread(target=self._work, name="unbroken-mirror", daemon=True)
            self._idle.clear()
            try:
                threading.Thread(target=self._idle.wait, name="unbroken-mirror-wait", daemon=False).start()
                thread.start()
            except RuntimeError as error:  # no more threads to be had
                self._idle.set()
                self._failed(error)
            else:
                self._thread = thread

    def wait(self) -> None:
        """Wait until the mirror is up to date, or could not be brought there."""
        if os.getpid() == self._pid:
            self._idle.wait()

    def say(self) -> None:
        """Warn of what went wrong since, of each kind once. To be called by the training's thread."""
        while self._unsaid:
            warnings.warn(self._unsaid.pop(0), MirrorWarning, stacklevel=4)

    def summary(self) -> list[str]:
        """Return what the history should say of the rounds; nothing if all went well."""
        count = sum(self.failures.values())
        return [f"the mirror {self.where} failed {count} times, at last: {self.last_error}"] if count else []

    def close(self, *, left: Callable[[], float | None] = lambda: None) -> None:
        """Wait for the last round, and give the mirror back. Raises nothing. `left` says how many seconds this process
        may still take; None: as many as it needs."""
        if os.getpid() != self._pid:
            return
        while not self._idle.wait(_GLANCE):
            if (seconds := left()) is not None and seconds <= 0.0:
                break
        with self._lock:
            self._over = True
            self._left = self._thread is not None
        if self._left:
            self._failed(
                RoundLeft("a signal has told the process to end, and it is not waited for any longer")
            )
            self._idle.set()
        else:
            self._close_mirror()

    def _close_mirror(self) -> None:
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            with suppress(StoreError):  # its process is over for all to see, or will be
                mirror.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._due or self._over:
                    self._thread = None
                    self._idle.set()
                    break
                self._due = False
            began = self._clock()
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - kept, and said by the training's thread
                self._failed(error)
            self.seconds += self._clock() - began
        if self._left:
            self._close_mirror()  # nobody else does

    def _round(self) -> None:
        if self._mirror is None:
            self._mirror = self._open()
        settings = self._settings
        for one in self._mirror.update(keep_last=settings.mirror_keep_last, best=settings.best):
            if isinstance(one, Lost):
                self._failed(CorruptObject(f"Step {one.commit.step:,} is not copied: {one.why}"))
            elif not one.was_there:
                self.copied += 1
                self.copied_bytes += one.nbytes

    def _open(self) -> Mirror:
        # A repository of its own: one thread at a time reads by each.
        settings = self._settings
        return Mirror.open(self.root, Repository.open(settings.root, settings.job))

    def _failed(self, error: Exception) -> None:
        kind = type(error).__name__
        self.last_error = str(error)
        if kind not in self.failures:
            told = f"The mirror {self.where} is not up to date: {error}"
            if isinstance(error, Fenced):
                told += " Nothing more is copied there by this process."
            self._unsaid.append(told)
        self.failures[kind] = self.failures.get(kind, 0) + 1
        if isinstance(error, Fenced):
            self._over = True


class RoundLeft(UnbrokenError):
    """The last round had not ended when the process had to. The next start of the run brings the mirror up to date."""


class Lend(Protocol):
    """See `Mirroring.bring_back`."""

    def __call__(self, *, step: int | None, lost: Collection[Commit] | None) -> str: ...


def wants_mirror(
    attempt: Attempt | None, evidence: Evidence, wish: Wish, commits: Collection[Commit]
) -> bool:
    """Whether a mirror may know better than this attempt, the best that the first place allows; of it there are
    all these `commits`, whatever segment they belong to."""
    if wish.resume == "never" or (attempt is not None and attempt.tier is Tier.NEWEST):
        return False
    harmed = bool(evidence.damaged or evidence.unreadable)
    return not commits or harmed or named_step(wish) is not None


def named_step(wish: Wish) -> int | None:
    """Return the step that a person has asked for."""
    return wish.resume if isinstance(wish.resume, int) else None


def lost_before(attempt: Attempt | None, evidence: Evidence) -> list[Commit] | None:
    """Return the damaged checkpoints that would be better than this attempt; None if nothing is left of any."""
    if attempt is None or attempt.tier is Tier.FRESH:
        return None
    return [commit for commit in evidence.commits if commit.sequence in evidence.damaged]


def with_loss(fault: EndOfProcess, lent: str) -> EndOfProcess:
    """Return the fault where the first place held nothing and the mirror has helped."""
    if not lent or fault.kind is not FaultKind.NONE:
        return fault
    return EndOfProcess(FaultKind.HARD, "the run was gone from its first place")


def mirror_contents(settings: Settings) -> Contents | None:
    """Return what the mirror of a run holds, None if the settings name none. Writes nothing and raises nothing."""
    if not settings.mirror:
        return None
    root = os.fspath(settings.mirror)
    try:
        return mirrors.contents(root, settings.job)
    except UnbrokenError as error:
        return Contents(root_of(root, name="mirror").run(settings.job), problem=str(error))
