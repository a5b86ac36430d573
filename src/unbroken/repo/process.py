"""Who a process is, so that it can be told apart from a later one with the same number.

A process id alone says nothing: in a container the trainer is always 1, and ids are reused. The pair
(boot id, start time) never repeats on one kernel.

Not promised: an answer about another host, or where the system does not tell start times.
"""

from __future__ import annotations

import os
import platform
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from unbroken.format.records import Owner

_PROC = Path("/proc")
_PAUSE_S = 0.05
"""Between two looks at a process, where the system has no other way to wait for one that is no child."""


class OwnerFields(TypedDict):
    """What a record says of the process that wrote it; see `format.records.Owner`."""

    pid: int
    process_start: str
    host: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `start` is in the kernel's own unit, compared for equality only; "" if unknown."""

    pid: int
    start: str
    boot_id: str
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def as_owner(self) -> OwnerFields:
        """Return the fields by which a record names this process; `named_in` reads them back."""
        return OwnerFields(pid=self.pid, process_start=self.start, host=self.host, boot_id=self.boot_id)

    def is_alive(self, *, here: Process | None = None) -> bool | None:
        """Return whether this process still runs, or None if that cannot be told from `here`.

        It cannot for another host. One kernel can hold several containers: where the boot is the same
        and the host name differs, the number means another process there than here.
        """
        here = here or current()
        if self.host != here.host:
            return None
        if self.boot_id != here.boot_id:
            # The same name after a reboot, or two containers that share a name: only if both boots
            # are known is it certain that the earlier one is over.
            return False if self.boot_id and here.boot_id else None
        start = _start_of(self.pid)
        if start is None:
            return False
        return start == self.start if self.start and start else None

    def wait(self, timeout: float) -> bool:
        """Wait until this process of this host is over, at most `timeout` seconds; return whether it is."""
        try:
            # First pinned by its number, then known by its start: it cannot become another one in between.
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        except (AttributeError, OSError):  # Linux before 5.3, and other systems
            return self._look_until(time.monotonic() + timeout)
        try:
            if self.is_alive() is False:
                return True
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(timeout * 1000))
        finally:
            os.close(handle)

    def _look_until(self, deadline: float) -> bool:
        while self.is_alive() is not False:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        return True


def current() -> Process:
    """Return the identity of this process."""
    return identify(os.getpid())


def identify(pid: int) -> Process:
    """Return the identity of the process that has this number here and now."""
    return Process(pid=pid, start=_start_of(pid) or "", boot_id=_boot_id(), host=platform.node())


def named_in(record: Owner) -> Process:
    """Return the process that wrote a record."""
    return Process(pid=record.pid, start=record.process_start, boot_id=record.boot_id, host=record.host)


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return the start time of a process, None if there is none, "" if the system does not say."""
    try:
        line = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return _start_unknown(pid)
    # The name in parentheses may itself hold spaces and parentheses; fields count from its end.
    fields = line[line.rindex(b")") + 2 :].split()
    state, start = fields[0], fields[19].decode("ascii")
    return None if state in (b"Z", b"X") else start


def _start_unknown(pid: int) -> str | None:
    if (_PROC / "self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""  # it exists and belongs to somebody else
    return ""
