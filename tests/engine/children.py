"""Trainings in forked children of the test, which die as the test says, and what is left of them."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tests.engine.runs import repository
from tests.process_state import default_signals
from unbroken.engine.engine import CheckpointEngine
from unbroken.repo.lock import read_lease


def in_child(training: Callable[[], object]) -> int:
    """Run `training` in a forked child; return how it ended, as `subprocess` has it."""
    (status,) = in_children(training)
    return status


def in_children(*trainings: Callable[[], object]) -> list[int]:
    """Run each in a forked child of its own, all at once, in which signals do what they do in a new process.

    Returns how they ended.
    """
    children: list[int] = []
    for training in trainings:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                default_signals()
                training()
                status = 0
            except BaseException:  # noqa: BLE001 - the child must not go on with the parent's tests
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def companion_of(root: Path) -> int:
    """Return the number of the companion that the run's lease names."""
    lease = read_lease(repository(root).store)
    assert lease is not None
    assert lease.companion is not None
    return lease.companion.pid


def pid_of(engine: CheckpointEngine) -> int:
    """Return the number of an engine's companion, which it must have."""
    assert engine._companion is not None
    pid = engine._companion.pid
    assert pid is not None
    return pid


def ended(pid: int) -> bool:
    """Wait until a process is over, and whoever has to take note of it has; False after a minute."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


class Countdown:
    """Calls `act` before the n-th call of a function, in Python or in C, while it is in force."""

    def __init__(self, n: int, act: Callable[[], object]) -> None:
        self.count = 0
        self._n = n
        self._act = act

    def __enter__(self) -> Countdown:  # noqa: PYI034 - Self needs Python 3.11
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1
            if self.count == self._n:
                self._act()


def holders_of_memory() -> dict[int, list[str]]:
    """Return the processes that hold unnamed memory of ours, by descriptors or mappings."""
    found: dict[int, list[str]] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        held: list[str] = []
        with suppress(OSError):  # gone meanwhile
            held += (process / "maps").read_text().split("\n")
            for entry in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile, as is that of this very listing
                    held.append(os.readlink(entry))
        ours = [line for line in held if "/memfd:unbroken" in line]
        if ours:
            found[int(process.name)] = ours
    return found
