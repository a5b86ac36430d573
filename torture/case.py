"""One fault and its recovery; and what came of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias

from torture.recovery import Lost
from torture.returning_faults import TooMany

Verdict: TypeAlias = Literal["recovered", "lost", "wrong", "hang"]

LAST_RESORT_S = 120
"""A case that waits for something that never comes makes no calls that could be counted."""


@dataclass(frozen=True, slots=True)
class Case:
    """A fault. `run` makes it in an empty folder, recovers, and returns how many calls the recovery took.

    It is pickled on its way to another process.
    """

    kind: str
    name: str
    key: str
    """Equal only for equal faults."""
    run: Callable[[Path], int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    verdict: Verdict
    calls: int
    message: str = ""


class _Hangs(BaseException):
    """Nothing may handle it."""


def tried(case: Case, folder: Path) -> Outcome:
    """Run a case."""
    opened = _descriptors()
    try:
        with _watched():
            calls = case.run(folder)
    except Lost as error:
        return Outcome("lost", 0, str(error))
    except (TooMany, _Hangs) as error:
        return Outcome("hang", 0, f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever comes out is told
        return Outcome("wrong", 0, f"{type(error).__name__}: {error}")
    if _descriptors() > opened:
        return Outcome("wrong", calls, f"{_descriptors() - opened} descriptors were left open")
    return Outcome("recovered", calls)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def _watched() -> Generator[None, None, None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _Hangs(f"no end after {LAST_RESORT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LAST_RESORT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
