"""A door that can be closed, and that knows who is inside.

In front of a resources or model server it holds requests back; in front of an agent's client it holds back the calls that
the agent makes. Whoever comes while it is closed waits, and is never sent away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from unbroken.adapters.nemo_gym.control import InFlight, Refuses


class Gate:
    """Open at first, unless `opened` is False."""

    def __init__(self, *, opened: bool = True) -> None:
        self._opened = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._inside: dict[int, tuple[InFlight, float]] = {}
        self._next = 0
        if opened:
            self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self) -> None:
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    @asynccontextmanager
    async def passing(self, what: InFlight) -> AsyncGenerator[None]:
        """Wait until the gate is open, and be inside for as long as the block runs."""
        while not self._opened.is_set():  # it may have been closed again before this task ran
            await self._opened.wait()
        number, self._next = self._next, self._next + 1
        self._inside[number] = (what, time.monotonic())
        self._idle.clear()
        try:
            yield
        finally:
            del self._inside[number]
            if not self._inside:
                self._idle.set()

    def in_flight(self) -> tuple[InFlight, ...]:
        """Return what is inside, the longest first."""
        now = time.monotonic()
        return tuple(
            InFlight(
                path=what.path,
                id=what.id,
                rollout=what.rollout,
                session=what.session,
                server=what.server,
                seconds=round(now - since, 3),
            )
            for what, since in self._inside.values()
        )

    async def drain(self, timeout: float) -> None:
        """Close, and wait until nobody is inside.

        Raises:
            Refuses: somebody was still inside after `timeout` seconds. The gate is then as it was before.
        """
        was_open = self.is_open
        self.close()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:  # an alias of TimeoutError only from Python 3.11 on
            inside = self.in_flight()
            if was_open:
                self.open()
            names = tuple(
                f"{f.rollout or f.session or 'a call'} {f.server}{f.path} for {f.seconds:.1f} s"
                for f in inside
            )
            raise Refuses(
                "busy",
                f"{len(inside)} calls were still under way after {timeout:g} s, the first of them {names[0]}."
                " Raise sync_timeout, or look at that server.",
                names=names,
            ) from None
