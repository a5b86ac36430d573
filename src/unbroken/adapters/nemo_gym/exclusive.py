"""A file that one live process has to itself; in it stands who.

A lock of the operating system: that of a dead process is gone. `lockf` and not `flock`, because a forked child would
keep the latter after its parent is gone.

Not promised: exclusion where the file system has no locks (`is_locked` is False there).
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import RunBusy
from unbroken.store.failure import failure

_HELD: dict[Path, int] = {}
"""Files that this process holds, with its pid: such a lock never conflicts within a process, and closing any
descriptor of the file drops it. A forked child finds its parent's pid and starts afresh."""

_CONFLICT = frozenset({errno.EACCES, errno.EAGAIN})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_PID_BYTES = 32


@dataclass(slots=True)
class Exclusive:
    """A lock file that this process holds until `release()` or its end."""

    path: Path
    descriptor: int
    is_locked: bool

    @classmethod
    def take(cls, path: Path, *, what: str) -> Exclusive:
        """Lock the file, which is made if it is not there. `what` begins the sentence about a conflict.

        Raises:
            RunBusy: another live process holds it, or this one does.
            StoreError: it cannot be made or locked.
        """
        path = Path(os.path.realpath(path.parent)) / path.name
        if _HELD.get(path) == os.getpid():
            raise RunBusy(f"{what} is open in this process already.", hint="Close it first.")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise failure(error, doing="locking", path=path, key=path.name) from error
        locked = True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                owner = os.pread(descriptor, _PID_BYTES, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                if error.errno in _CONFLICT:
                    raise _busy(what, owner) from error
                raise failure(error, doing="locking", path=path, key=path.name) from error
            locked = False
        _HELD[path] = os.getpid()
        with suppress(OSError):  # for people only: a full disk is reported by what needs room
            os.pwrite(descriptor, str(os.getpid()).encode().ljust(_PID_BYTES), 0)
        return cls(path, descriptor, locked)

    def release(self) -> None:
        """Give the file back. In a forked child, only the child's descriptor is closed."""
        if self.descriptor < 0:
            return
        if _HELD.get(self.path) == os.getpid():
            del _HELD[self.path]
        os.close(self.descriptor)
        self.descriptor = -1


def _busy(what: str, owner: str) -> RunBusy:
    who = f"process {owner}" if owner else "another process"
    return RunBusy(
        f"{what} is in use by {who}.",
        hint="Stop that process, wait for it, or give this server a directory of its own.",
    )
