"""Measures how long saving one workload takes one contender."""

from __future__ import annotations

import time
from pathlib import Path

import zstandard

from benchmarks import memory, page_cache
from benchmarks.contenders import Contender
from benchmarks.limits import Bytes, SaveLimits
from benchmarks.ours import Unbroken
from benchmarks.records import Save, SaveRow, Sizes
from benchmarks.workloads import Workload


def measure(workload: Workload, contender: type[Contender], folder: Path, name: str, sizes: Sizes) -> SaveRow:
    """Save again and again, then load once and compare.

    Before each save of ours the limits are measured, so that both meet the same state of the machine.
    """
    home = folder / "home"
    home.mkdir(parents=True)
    chosen = contender(workload, home)
    ours = chosen if isinstance(chosen, Unbroken) else None
    chosen.prepare()
    try:
        before = memory.resident()
        chosen.start()
        started = memory.resident() - before
        workload.fill()
        without = memory.resident() - started
        changed = workload.changed()
        size = sum(map(len, changed))
        compressed = sum(map(_compressed, changed)) if ours is not None else 0
        with_limits = memory.resident()
        limits = None if ours is None else SaveLimits(size, folder)
        without += memory.resident() - with_limits
        clock = _Clock(workload, chosen, home, limits, without)
        first = clock.save(0.0, paired=False)
        clock.save(0.0)  # not counted: whatever is done only once is over now
        parts = {} if ours is None else ours.parts()
        count = sizes.peer_saves if ours is None else sizes.saves
        back_to_back = [clock.save(0.0) for _ in range(count)]
        after_idle = [clock.save(sizes.idle_seconds) for _ in range(sizes.idle_saves)]
        verified = comes_back_after_going_on(workload, chosen)
    finally:
        chosen.close()
    return SaveRow(
        workload=name,
        contender=chosen.name,
        first=first,
        back_to_back=back_to_back,
        after_idle=after_idle,
        state=workload.size(),
        changed=size,
        compressed=compressed,
        parts=parts,
        verified=verified,
    )


def comes_back_after_going_on(workload: Workload, contender: Contender) -> bool:
    """Save, train on while it is being written, load, and compare with the state at the save."""
    workload.train()
    expected = workload.digests()
    contender.save()
    workload.train()
    contender.finish()
    contender.tidy()
    contender.leave()
    workload.reset()
    contender.load()
    return workload.digests() == expected


class _Clock:
    def __init__(
        self,
        workload: Workload,
        contender: Contender,
        home: Path,
        limits: SaveLimits | None,
        without: int,
    ) -> None:
        self._workload = workload
        self._contender = contender
        self._home = home
        self._limits = limits
        self._without = without
        """Bytes that the process has without any saving."""

    def save(self, idle: float, *, paired: bool = True) -> Save:
        self._workload.train()
        limits = None
        if self._limits is not None and paired:
            time.sleep(idle)
            limits = self._limits.measure(self._workload.changed())
        before = page_cache.listing(self._home)
        memory.reset_peak()
        time.sleep(idle)
        started = time.perf_counter()
        self._contender.save()
        returned = time.perf_counter()
        self._contender.finish()
        if not self._contender.durable:
            page_cache.sync(self._home)
        ended = time.perf_counter()
        self._contender.tidy()
        on_top = max(0, memory.peak() - self._without)
        written = page_cache.written_since(before, self._home)
        return Save(
            blocked=(returned if self._contender.background else ended) - started,
            durable=ended - started,
            written=written,
            on_top=on_top,
            limits=limits,
        )


def _compressed(array: Bytes) -> int:
    return min(len(array), len(zstandard.ZstdCompressor(level=3).compress(array.data)))
