"""Measures how long bringing one workload back takes one contender, and checks what came back."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import page_cache
from benchmarks.contenders import Contender
from benchmarks.limits import ReadLimits
from benchmarks.ours import Unbroken
from benchmarks.records import Load, RestoreRow, Sizes
from benchmarks.workloads import Workload

SAVES = 3
"""A run that is resumed has been saved several times, so what is read lies in several places."""


def measure(
    workload: Workload, contender: type[Contender], folder: Path, name: str, sizes: Sizes
) -> RestoreRow:
    """Save, then load again and again: first with a warm page cache, then with a cold one.

    Before each load the workload is as in a new process, after it everything is compared. One load is not
    counted. Beside ours, the same number of bytes is read from a plain file before each load.
    """
    home = folder / "home"
    home.mkdir(parents=True)
    chosen = contender(workload, home)
    chosen.prepare()
    try:
        chosen.start()
        workload.fill()
        state = workload.size()
        limits = ReadLimits(state, folder / "flat") if issubclass(contender, Unbroken) else None
        for _ in range(SAVES):
            workload.train()
            chosen.save()
            chosen.finish()
            chosen.tidy()
        if not chosen.durable:
            page_cache.sync(home)
        expected = workload.digests()
        clock = _Clock(workload, chosen, home, limits, expected)
        clock.load(cold=False)
        warm = [clock.load(cold=False) for _ in range(sizes.loads)]
        cold = [clock.load(cold=True) for _ in range(sizes.loads)]
        stored = page_cache.size(home)
    finally:
        chosen.close()
    return RestoreRow(
        workload=name,
        contender=chosen.name,
        warm=warm,
        cold=cold,
        state=state,
        stored=stored,
        resident=clock.resident,
        verified=clock.verified,
    )


class _Clock:
    def __init__(
        self,
        workload: Workload,
        contender: Contender,
        home: Path,
        limits: ReadLimits | None,
        expected: dict[str, str],
    ) -> None:
        self._workload = workload
        self._contender = contender
        self._home = home
        self._limits = limits
        self._expected = expected
        self.verified = True
        self.resident = 0

    def load(self, *, cold: bool) -> Load:
        limits = self._limits
        fresh = None if limits is None else limits.fresh(cold=cold)
        touched = None if limits is None else limits.touched(cold=cold)
        self._contender.leave()
        self._workload.reset()
        if cold:
            self.resident = max(self.resident, page_cache.drop(self._home))
        else:
            page_cache.warm(self._home)
        started = time.perf_counter()
        self._contender.load()
        seconds = time.perf_counter() - started
        self.verified = self.verified and self._workload.digests() == self._expected
        return Load(seconds=seconds, fresh=fresh, touched=touched)
