"""What the log adds to a call: the same server with it and without, called in turn."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

from benchmarks.connection import Connection
from benchmarks.gym_servers import COUNTER, Farm, Kind
from benchmarks.records import Calls, Sizes

CASES = ((1, 0.0), (16, 0.1), (16, 0.0))
"""Connections, and seconds that each client rests between two calls, as an agent does that asks its model. Sixteen without a
rest keep the server busy all the time."""
_WARMING = 50


def measure(farm: Farm, sizes: Sizes) -> list[Calls]:
    """Measure calls of the counter over one connection and over several, with a rest between two calls and without."""
    with farm.servers("calls", {"plain": (COUNTER, False), "logged": (COUNTER, True)}) as servers:
        plain, logged = servers.addresses["plain"], servers.addresses["logged"]
        return [asyncio.run(_measure(plain, logged, count, rest, sizes)) for count, rest in CASES]


async def _measure(plain: str, logged: str, count: int, rest: float, sizes: Sizes) -> Calls:
    callers = [_Callers(url, COUNTER, rest) for url in (plain, logged)]
    for caller in callers:
        await caller.connect(count)
        await caller.block(max(1, _WARMING // count))
    found: list[list[float]] = [[], []]
    for _ in range(sizes.gym_blocks):
        for seconds, caller in zip(found, callers, strict=True):
            seconds.append(await caller.block(max(1, sizes.gym_calls // count)))
    for caller in callers:
        await caller.close()
    return Calls(connections=count, rest=rest, plain=found[0], logged=found[1])


class _Callers:
    """Clients of one server, each with a connection and a session of its own."""

    def __init__(self, url: str, kind: Kind, rest: float) -> None:
        self._url = url
        self._kind = kind
        self._rest = rest
        self._names = itertools.count()
        self._open: list[tuple[Connection, str]] = []

    async def connect(self, count: int) -> None:
        for _ in range(count):
            connection = await Connection.to(self._url)
            self._open.append((connection, await connection.post("/seed_session", self._kind.seed)))

    async def block(self, calls: int) -> float:
        """Have each client make so many calls one after the other, all side by side; return the median seconds of a call."""
        seconds: list[float] = []

        async def work(place: int, connection: Connection, cookie: str) -> None:
            await asyncio.sleep(place / len(self._open) * self._rest)  # not all at the same moment
            for _ in range(calls):
                name = f"{next(self._names):08}"
                started = time.perf_counter()
                await connection.post(self._kind.path, self._kind.body, cookie=cookie, call=name)
                seconds.append(time.perf_counter() - started)
                if self._rest:
                    await asyncio.sleep(self._rest)

        await asyncio.gather(*(work(place, *one) for place, one in enumerate(self._open)))
        return statistics.median(seconds)

    async def close(self) -> None:
        for connection, _ in self._open:
            await connection.close()
