"""A door that can be closed, and that knows who is inside.

In front of a resources or model server it holds requests back; in front of an agent's client it holds back the calls that
the agent makes. Whoever comes while it is closed waits, and is never sent away.

Invariant: a drain that has returned found nobody inside and the gate closed, by itself: nobody has opened or closed it since
it began, and no later drain. One that fails leaves the gate as it was before the first of those that overlap.
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
        self._turn = 0
        """Counts openings, closings and drains: what has begun earlier has no say any more."""
        self._opens_again = False
        """Whether a drain is under way that opens the gate if it fails."""
        if opened:
            self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self) -> None:
        """Open, and end all drains that are under way: they fail."""
        self._turn += 1
        self._opens_again = False
        self._opened.set()

    def close(self) -> None:
        """Close, whatever is under way. Drains that are fail."""
        self._turn += 1
        self._opens_again = False
        self._opened.clear()

    def end_drains(self) -> None:
        """Have the drains that are under way fail, and the gate be as it was before them."""
        if self._opens_again:
            self.open()
        else:
            self._turn += 1

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
            Refuses: somebody was still inside after `timeout` seconds, or the gate was opened or drained by another meanwhile.
                If this is the newest drain, the gate is then as it was before.
        """
        opens_again = self.is_open or self._opens_again  # of an earlier drain that is under way
        self.close()
        turn, self._opens_again = self._turn, opens_again
        try:
            if self._inside:
                await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:  # an alias of TimeoutError only from Python 3.11 on
            inside = self.in_flight()
            self._failed(turn)
            names = tuple(
                f"{f.rollout or f.session or 'a call'} {f.server}{f.path} for {f.seconds:.1f} s"
                for f in inside
            )
            first = f", the first of them {names[0]}" if names else ""
            raise Refuses(
                "busy",
                f"{len(inside)} calls were still under way after {timeout:g} s{first}."
                " Raise sync_timeout, or look at that server.",
                names=names,
            ) from None
        except BaseException:
            self._failed(turn)
            raise
        if turn != self._turn:
            raise Refuses(
                "busy",
                "The server was opened, or is drained for another, while it waited for the last calls. Quiesce it again.",
            )
        self._opens_again = False

    def _failed(self, turn: int) -> None:
        """A drain failed: undo it, if nobody has opened, closed or drained since."""
        if turn == self._turn:
            self.end_drains()
