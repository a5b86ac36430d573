"""Saves of a run that tracks a `Gym`, and the two ways in which its sessions come back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import unbroken
from benchmarks import page_cache
from benchmarks.gym_servers import Farm, Kind, Sessions
from benchmarks.records import GymSave, GymSeries, GymServerRow, Sizes
from unbroken.nemo_gym import Gym

TIMEOUT_S = 120.0
"""That a cut may take: it is to be measured, not to fail."""
POLL_S = 0.0005


def measure(
    farm: Farm, folder: Path, kind: Kind, *, sessions: int, changed: int, sizes: Sizes
) -> GymServerRow:
    """Measure saves of all sessions, of a few that changed, and restores."""
    with farm.servers(kind.name, {kind.name: (kind, True)}) as servers:
        urls = {kind.name: servers.addresses[kind.name]}
        led = Sessions(urls[kind.name], kind)
        series: list[GymSeries] = []
        with closing(_Trainer(urls, folder / kind.name)) as trainer:
            led.begin(sessions)
            for _ in range(sizes.gym_series):
                led.call(sessions)
                full = trainer.save()
                later: list[GymSave] = []
                for _ in range(sizes.gym_saves):
                    led.call(changed)
                    later.append(trainer.save())
                series.append(GymSeries(full=full, later=later))
            expected = trainer.gym.digests()
        servers.stop(kind.name)
        servers.restart(kind.name)
        with Gym(urls) as gym:
            status = gym.coordinator.fleet.settled()[kind.name]  # a server that restores itself says so
            equal = gym.digests() == expected
        from_log = status.recovery.seconds
        servers.stop(kind.name)
        shutil.rmtree(servers.directory / kind.name)
        servers.restart(kind.name)
        with closing(_Trainer(urls, folder / kind.name)) as trainer:
            from_checkpoint = trainer.resumed
            equal = equal and trainer.gym.digests() == expected
    return GymServerRow(
        name=kind.name,
        sessions=sessions,
        changed=changed,
        series=series,
        from_log=from_log,
        from_checkpoint=from_checkpoint,
        verified=equal and len(expected[kind.name]) == sessions,
    )


class _Trainer:
    """A training that has nothing but sessions."""

    def __init__(self, urls: dict[str, str], root: Path) -> None:
        self.gym = Gym(urls, sync_timeout=TIMEOUT_S)
        self._root = root
        self._run = unbroken.Run(root, every=1 << 40, keep_last=2, quiet=True)
        self._run.track(gym=self.gym)
        self._stop = _Clock()
        self._saves = 0
        for remote in self.gym.coordinator.fleet.remotes.values():
            # What only a benchmark wants to know is measured from outside.
            remote.quiesce = self._stop.starting(remote.quiesce)  # type: ignore[method-assign]
            remote.release = self._stop.ending(remote.release)  # type: ignore[method-assign]
        started = time.perf_counter()
        next(self._run.steps(1 << 41))
        self.resumed = time.perf_counter() - started
        """Seconds until the loop was entered."""

    def close(self) -> None:
        self._run.close()
        self.gym.close()

    def save(self) -> GymSave:
        """Save, and return what that has cost."""
        engine = self._run._running()
        before = page_cache.listing(self._root)
        self._saves += 1
        started = time.perf_counter()
        engine.save(self._saves, reason="measured")
        blocked = time.perf_counter() - started
        while engine.is_saving and engine._dispatch.progress._committed < self._saves:
            time.sleep(POLL_S)
        durable = time.perf_counter() - started
        engine.wait()  # what is collected after the commit, nobody waits for
        self.gym.coordinator.raise_untold()  # the servers have heard of the commit, which is nobody's business in the next save
        return GymSave(
            paused=self._stop.seconds,
            blocked=blocked,
            durable=durable,
            written=page_cache.written_since(before, self._root),
        )


class _Clock:
    """Seconds from the beginning of one call to the end of another."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def starting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def started(*arguments: Any, **options: Any) -> Any:
            self._started = time.perf_counter()
            return call(*arguments, **options)

        return started

    def ending(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def ended(*arguments: Any, **options: Any) -> Any:
            try:
                return call(*arguments, **options)
            finally:
                self.seconds = time.perf_counter() - self._started

        return ended
