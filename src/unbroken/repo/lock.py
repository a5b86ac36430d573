"""Keeps a second process off a run: a lock of the operating system, and a record of who holds it.

Both are hints that spare people a surprise. What protects the data is the epoch (`fencing.py`): on a
network file system a lock can be lost without notice. `lockf` and not `flock`, because a forked
environment worker would keep the latter after the trainer is gone.

For a run in a bucket the lock is taken on a file of this machine. Whether a process on another host still
lives cannot be told from here, and no two clocks are compared to guess it: the later start takes the run
over by its epoch, and the earlier process stops at its next commit.

An owner that lives and can do nothing (stopped, or on a host that is out of reach and whose lock is still held) is
taken over on purpose: `UNBROKEN_TAKE_OVER` names its epoch. It says of whom the run is taken, so a job that is
started again and again with it takes the run from that one alone, and from nobody who came later.

Invariant: an owner that is dead never blocks. Not promised: exclusion between hosts that share no
working lock service, and that an owner which is taken over does not write one more hint when it wakes up.
"""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from unbroken.errors import ConfigError, CorruptObject, ObjectMissing, RunBusy, StoreError, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import Lease, Worker
from unbroken.repo import fencing, names
from unbroken.repo.modes import make_directories, modes
from unbroken.repo.process import Process, current, named_in
from unbroken.repo.roots import STATE_VARIABLE
from unbroken.repo.seal import seal, unseal
from unbroken.store.base import ByteStore, SupportsLocalHints, SupportsLocalPath
from unbroken.store.failure import failure
from unbroken.store.system import System, set_mode
from unbroken.types import Epoch

PATIENCE = 60.0
"""Seconds that a start waits for the companion of a process that is gone (`await_companion`)."""

TAKE_OVER_VARIABLE: Final = "UNBROKEN_TAKE_OVER"
"""The epoch of the process that one start takes the run from although it lives."""

_HELD: dict[Path, int] = {}
"""Lock files that this process holds, with its pid: a POSIX lock never conflicts within a process, and
closing any descriptor of the file drops it. A forked child finds its parent's pid and starts afresh."""

_CONFLICT: Final = frozenset({errno.EACCES, errno.EAGAIN})
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def read_lease(store: ByteStore) -> Lease | None:
    """Return the record of the present or last owner, None if there is none that can be read."""
    try:
        return unseal(store.get(layout.LEASE), Lease, key=layout.LEASE)
    except (ObjectMissing, CorruptObject, UnsupportedFormat):
        return None  # a hint only: a damaged one must not keep anybody out


def await_companion(store: ByteStore, *, patience: float, here: Process | None = None) -> Process | None:
    """Wait until the process that writes for a dead owner is over; return it if it still is not.

    What it is about to commit was promised to the owner, and would be inert once another epoch is claimed.
    Of an owner that lives, or whose end cannot be told from `here`, nothing is waited for.
    """
    here = here or current()
    lease = read_lease(store)
    if lease is None or lease.companion is None or named_in(lease).is_alive(here=here) is not False:
        return None
    if (lease.host, lease.boot_id) != (here.host, here.boot_id):
        return None
    companion = replace(named_in(lease), pid=lease.companion.pid, start=lease.companion.process_start)
    return None if companion.wait(patience) else companion


@dataclass(slots=True)
class RunLock:
    """A run that this process holds, until `release()` or its end."""

    store: ByteStore
    job: str
    owner: Process
    _path: Path | None = None
    _descriptor: int | None = None
    _pid: int = field(default_factory=os.getpid)

    @classmethod
    def acquire(cls, store: ByteStore, *, job: str, owner: Process | None = None) -> RunLock:
        """Take the run. Writes nothing but the lock file; `publish` tells others who holds it.

        Raises:
            RunBusy: another live process, or this one, already writes to the run.
            ConfigError: `UNBROKEN_TAKE_OVER` is no number.
            StoreError: the lock cannot be taken, or the store does not answer; nothing is held then.
        """
        owner = owner or current()
        lock = cls(store, job, owner)
        taken = _to_take(os.environ.get(TAKE_OVER_VARIABLE, ""))
        if isinstance(store, SupportsLocalPath):
            lock._lock_or_take(store.local_path().resolve() / names.LOCK, taken)
        elif isinstance(store, SupportsLocalHints):
            try:
                lock._lock_or_take(store.hint_path(names.LOCK), taken)
            except StoreError as error:
                hint = f"Set {STATE_VARIABLE} to a directory of this machine that this user may write to."
                raise type(error)(error.message, hint=hint, key=error.key) from error
        try:
            lease = read_lease(store)
            if lease is not None and named_in(lease) != owner and named_in(lease).is_alive(here=owner):
                epoch = fencing.highest(store)
                if taken != epoch:
                    raise _busy(job, named_in(lease), epoch)
        except BaseException:
            lock._unlock()  # else this process could not take the run when the store answers again
            raise
        return lock

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked child: the lock belongs to its parent."""
        return self._pid != os.getpid()

    def publish(self, *, epoch: Epoch, now: float, companion: Process | None = None) -> None:
        """Record who holds the run and who writes for it, for the next one that wants it and for people."""
        lease = Lease(
            job=self.job,
            **self.owner.as_owner(),
            time=now,
            epoch=epoch,
            companion=None if companion is None else Worker(pid=companion.pid, process_start=companion.start),
        )
        self.store.put(layout.LEASE, seal(lease))

    def release(self) -> None:
        """Give the run back. Does nothing in a forked child, or when called again."""
        if self.is_elsewhere:
            return
        try:
            lease = read_lease(self.store)
            if lease is not None and named_in(lease) == self.owner:
                self.store.delete(layout.LEASE)
        finally:
            self._unlock()

    def _lock_or_take(self, path: Path, taken: Epoch | None) -> None:
        """Lock the file, or a new one in its place if its holder is the one that the run is taken from."""
        try:
            self._lock_file(path)
        except RunBusy:
            if taken is None or _HELD.get(path) == os.getpid() or fencing.highest(self.store) != taken:
                raise
            # Its lock stays with the file that it has open. Who comes next finds the new one.
            path.unlink(missing_ok=True)
            self._lock_file(path)

    def _lock_file(self, path: Path) -> None:
        if _HELD.get(path) == os.getpid():
            raise _busy(self.job, self.owner)
        try:
            wanted = modes()
            make_directories(path.parent, wanted.directory)
            # O_NONBLOCK: what somebody else has put there must not be waited for.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags, wanted.file)
            if os.fstat(descriptor).st_uid == os.geteuid():
                set_mode(System(), descriptor, wanted.file)  # else a umask could lock the next start out
        except OSError as error:
            raise failure(error, doing="locking", path=path, key=names.LOCK) from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                if error.errno in _CONFLICT:
                    lease = read_lease(self.store)
                    owner = named_in(lease) if lease else None
                    raise _busy(self.job, owner, fencing.highest(self.store)) from error
                raise failure(error, doing="locking", path=path, key=names.LOCK) from error
            # A file system without locks: the lease and the epoch have to do.
        self._path, self._descriptor = path, descriptor
        _HELD[path] = os.getpid()

    def _unlock(self) -> None:
        if self._path is not None:
            _HELD.pop(self._path, None)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._path = self._descriptor = None


def _to_take(text: str) -> Epoch | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"{TAKE_OVER_VARIABLE}={text!r} is no number.",
            hint="Unset it, or give the number that the message names which says that the run is in use.",
        )
    return Epoch(int(text))


def _busy(job: str, owner: Process | None, epoch: int = 0) -> RunBusy:
    if owner is not None and owner.pid == os.getpid():
        return RunBusy(
            f"This process already writes to the run {job!r}.", hint="Close the other engine first."
        )
    who = str(owner) if owner is not None else "another process"
    take = f" If it cannot be stopped, {TAKE_OVER_VARIABLE}={epoch} takes the run from it." if epoch else ""
    return RunBusy(
        f"The run {job!r} is in use by {who}.",
        hint=f"Stop that process, wait for it, or start this one under another name.{take}",
    )
