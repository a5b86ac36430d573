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
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from unbroken.engine.faults import EndOfProcess, FaultKind
from unbroken.engine.recovery import Attempt, Evidence, Tier, Wish
from unbroken.engine.settings import Settings
from unbroken.errors import (
    ConfigError,
    CorruptObject,
    Fenced,
    NoUsableCheckpoint,
    RunBusy,
    StoreError,
    UnbrokenError,
    Untrusted,
)
from unbroken.format.records import Commit
from unbroken.repo import mirror as mirrors
from unbroken.repo.copying import facts
from unbroken.repo.mirror import Contents, Lost, Mirror
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of
from unbroken.repo.run_writer import RunWriter

_GLANCE = 0.05
"""Seconds between two looks whether a signal has come while the last round is waited for."""


class MirrorWarning(UserWarning):
    """The mirror could not be brought up to date. Every checkpoint in the first place is as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What came of asking a mirror for checkpoints."""

    where: str
    steps: tuple[int, ...] = ()
    """Of those that it gave back, the oldest first."""
    empty: bool = False
    """Whether there was nothing at all in the first place."""
    nothing: str = ""
    """That it holds no checkpoint, and why."""
    problems: tuple[str, ...] = ()
    """Why it gave less than it was asked for."""

    def __str__(self) -> str:
        steps = ", ".join(f"{step:,}" for step in dict.fromkeys(self.steps))
        came = f"from the mirror {self.where}: step {steps}" if self.steps else ""
        return "; ".join(filter(None, [came, self.nothing, *self.problems]))

    @property
    def says(self) -> str:
        """What the line of a start says of it; nothing where the first place has only been helped."""
        if not self.empty or not self.steps:
            return self.nothing
        many = f"{len(self.steps):,} checkpoints" if len(self.steps) > 1 else "one checkpoint"
        return f"nothing was here, {many} came from the mirror {self.where}"


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
        """Return what keeps the mirror that these settings name, None if they name none; take it if it is there and
        answers. One that is not there is made when the run has something to go there: see `take`.

        Raises:
            ConfigError: it is another run's.
            RunBusy: another process writes to it.
        """
        if not settings.mirror:
            return None
        mirroring = cls(settings)
        mirroring.take(anew=False)
        return mirroring

    def take(self, *, anew: bool = True) -> None:
        """Take the mirror, if that has not been done and it answers; with `anew` one that is not there is made.

        Raises:
            ConfigError: it is another run's.
            RunBusy: another process writes to it.
        """
        if self._mirror is not None or self._thread is not None:
            return
        try:
            # A start that may yet be refused leaves nothing where a mirror is not mounted.
            if anew or not mirrors.contents(self.root, self._settings.job).missing:
                self._mirror = self._open()
        except (ConfigError, RunBusy):
            raise
        except UnbrokenError as error:  # a training does not wait for its mirror: the rounds try again
            self._failed(error)

    def bring_back(
        self, repository: Repository, writer: RunWriter, *, step: int | None, lost: Collection[Commit] | None
    ) -> Lent:
        """Copy checkpoints back into the first place, and say what came of it.

        Those that stand for the commits `lost`, all of which are damaged; None: everything that the mirror has,
        or has of this `step`.

        Raises:
            StoreError: the mirror does not answer, or the first place.
            NoUsableCheckpoint: nothing is left in the first place, and of what the mirror holds nothing can be used.
            Untrusted: nothing is left in the first place, and our key does not vouch for the newest in the mirror.
        """
        empty = not repository.commits() and not repository.broken()
        try:
            return self._brought_back(repository, writer, step, lost, empty=empty)
        except StoreError as error:
            if lost is not None:  # the first place has something to go on from
                return self._hardly(f"the mirror {self.where} does not answer: {error.message}", empty=False)
            raise type(error)(
                f"The run holds no checkpoint to go on from, and its mirror {self.where} does not answer:"
                f" {error.message}",
                hint='Make the mirror reachable; to begin anew without it, start with resume="never".',
            ) from error
        except CorruptObject as error:
            return self._hardly(f"the mirror {self.where} cannot be read: {error.message}", empty=empty)

    def _brought_back(
        self,
        repository: Repository,
        writer: RunWriter,
        step: int | None,
        lost: Collection[Commit] | None,
        *,
        empty: bool,
    ) -> Lent:
        there = mirrors.contents(self.root, self._settings.job)
        wanted = lendable(there.commits, step=step, lost=lost)
        trusts = bool(self._settings.trust)
        if (
            wanted
            and lost is None
            and not trusts
            and mirrors.is_foreign(self.root, self._settings.job, wanted[-1])
        ):
            # Before anything is copied: an older one would only hide that a key is missing, now or at the next start.
            raise Untrusted(
                f"The mirror {self.where} cannot give back what is lost: its newest checkpoint, of step"
                f" {wanted[-1].step:,}, holds pickled parts that are signed with another key.",
                hint="Set UNBROKEN_KEY to the key of its writer, or trust=True if you trust its origin.",
            )
        for commit in repository.commits() if wanted else ():
            repository.verify(commit)  # so that every damaged blob is known, and written anew
        done = mirrors.bring_back(self.root, repository, writer, wanted, unsigned=trusts)
        problems = tuple(
            f"commit {one.commit.sequence} of the mirror {self.where}: {one.error.message}"
            for one in done
            if isinstance(one, Lost)
        )
        steps = tuple(one.source.step for one in done if not isinstance(one, Lost))
        if not steps and problems:
            return self._hardly(*problems, empty=empty)
        return Lent(where=self.where, steps=steps, empty=empty, nothing=there.nothing, problems=problems)

    def _hardly(self, *problems: str, empty: bool) -> Lent:
        """Return that the mirror has not helped.

        Raises:
            NoUsableCheckpoint: nothing else can; only `worst_tier="fresh"` allows to begin anew.
        """
        settings = self._settings
        if empty and settings.worst_tier != Tier.FRESH.value:
            raise NoUsableCheckpoint(
                f"The run {settings.job!r} holds no checkpoint to go on from, and nothing of its mirror can be used.",
                hint='Mend the mirror; to begin anew without it, start with resume="never".',
                reasons=problems,
            )
        return Lent(where=self.where, empty=empty, problems=problems)

    def newer(self, repository: Repository) -> list[Commit]:
        """Return what a copy back that was cut short has left in the mirror; see `newer_than`."""
        commits = repository.commits()
        try:
            there = mirrors.contents(self.root, self._settings.job).commits if commits else ()
        except UnbrokenError:
            return []  # what is here can be used, and the next round says what is wrong there
        return newer_than(commits, there)

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
        try:
            while self._goes_on():
                began = self._clock()
                try:
                    self._round()
                except Exception as error:  # noqa: BLE001 - kept, and said by the training's thread
                    self._failed(error)
                self.seconds += self._clock() - began
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            with self._lock:  # whatever has ended it: somebody waits. By now the thread may be another.
                if self._thread is threading.current_thread():
                    self._thread = None
                    self._idle.set()
            if self._left:
                self._close_mirror()  # nobody else does

    def _goes_on(self) -> bool:
        with self._lock:
            goes_on = self._due and not self._over
            self._due = False
            if (
                not goes_on
            ):  # under the same lock: who asks for a round from here on begins a thread of its own
                self._thread = None
                self._idle.set()
            return goes_on

    def _round(self) -> None:
        if self._mirror is None:
            self._mirror = self._open()
        settings = self._settings
        for one in self._mirror.update(keep_last=settings.mirror_keep_last, best=settings.best_by):
            if isinstance(one, Lost):
                error = one.error
                self._failed(
                    type(error)(f"Step {one.commit.step:,} is not copied: {error.message}", hint=error.hint)
                )
            elif not one.was_there:
                self.copied += 1
                self.copied_bytes += one.nbytes

    def _open(self) -> Mirror:
        # A repository of its own: one thread at a time reads by each.
        settings = self._settings
        return Mirror.open(self.root, Repository.open(settings.root, settings.job))

    def _failed(self, error: BaseException) -> None:
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


@dataclass(frozen=True, slots=True)
class Lend:
    """What a start may have of its mirror: the `writer` is that of the first place."""

    mirroring: Mirroring
    repository: Repository
    writer: RunWriter

    def wanted(
        self, attempt: Attempt | None, evidence: Evidence, wish: Wish
    ) -> tuple[int | None, list[Commit] | None] | None:
        """Return the arguments `step` and `lost` of `Mirroring.bring_back`; None if the mirror has no better."""
        if wants_mirror(attempt, evidence, wish, self.repository.commits()):
            return named_step(wish), lost_before(attempt, evidence)
        newer = (
            []
            if wish.resume == "never" or named_step(wish) is not None
            else self.mirroring.newer(self.repository)
        )
        return (None, newer) if newer else None

    def bring_back(self, step: int | None, lost: Collection[Commit] | None) -> Lent:
        """See `Mirroring.bring_back`."""
        return self.mirroring.bring_back(self.repository, self.writer, step=step, lost=lost)


def newer_than(commits: Sequence[Commit], there: Sequence[Commit]) -> list[Commit]:
    """Return what a mirror has beyond the newest of these `commits`, both newest first.

    Nothing, unless that newest one is in the mirror, and not as its newest: a mirror only follows, so it is ahead only
    where the first place was taken back, or a copy back was cut short.
    """
    places = [number for number, one in enumerate(there) if commits and facts(one) == facts(commits[0])]
    return list(there[: places[0]]) if places else []


def lendable(there: Collection[Commit], *, step: int | None, lost: Collection[Commit] | None) -> list[Commit]:
    """Return which of a mirror's commits would be brought back, the oldest first; see `Mirroring.bring_back`."""
    wanted = sorted(there, key=lambda commit: commit.sequence)
    if lost is not None:
        gone = {facts(commit) for commit in lost}
        wanted = [commit for commit in wanted if facts(commit) in gone]
    return [commit for commit in wanted if step is None or commit.step == step]


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


def with_loss(fault: EndOfProcess, lent: Lent | None) -> EndOfProcess:
    """Return the fault where the first place held nothing and the mirror has helped."""
    if lent is None or not lent.steps or fault.kind is not FaultKind.NONE or fault.detail:
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
