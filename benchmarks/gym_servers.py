"""Real resources servers of NeMo Gym in processes of their own, and the sessions that are led on them.

Needs the environment that `scripts/install-gym` makes, and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.connection import Connection

AT_ONCE = 64
"""Connections over which many sessions are led."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A server of NeMo Gym, and what its sessions do: one call to begin, the same call again and again."""

    name: str
    folder: str
    seed: bytes
    path: str
    body: bytes


COUNTER = Kind(
    name="counter",
    folder="example_session_state_mgmt",
    seed=b'{"initial_count": 3}',
    path="/increment_counter",
    body=b'{"count": 2}',
)
WORKPLACE = Kind(
    name="workplace",
    folder="workplace_assistant",
    seed=b"{}",
    path="/email_send_email",
    body=json.dumps(
        {"recipient": "raj.patel@atlas.com", "subject": "Zebra crossing", "body": "striped"}
    ).encode(),
)


class Farm:
    """Starts servers, each set in a directory of its own. All are forked from one process that has NeMo Gym imported."""

    def __init__(self, folder: Path, preloaded: Any) -> None:
        self._folder = folder
        self._preloaded = preloaded

    def servers(self, name: str, kinds: dict[str, tuple[Kind, bool]]) -> Any:
        """Return `Servers` to enter: each kind under its name, with a log or as NeMo Gym has it."""
        from unbroken.adapters.nemo_gym.launch.supervisor import Servers

        config = {
            called: {
                "resources_servers": {
                    kind.folder: {
                        "entrypoint": "app.py",
                        "domain": "agent",
                        **({} if logged else {"unbroken": False}),
                    }
                }
            }
            for called, (kind, logged) in kinds.items()
        }
        return Servers(
            config, directory=self._folder / name, project=self._folder, preload=self._preloaded, restarts=0
        )


@contextmanager
def farm(folder: Path) -> Generator[Farm]:
    """Give the place where servers are started."""
    import sys

    from unbroken.adapters.nemo_gym.launch.spawn import Preloaded

    folder.mkdir(parents=True)
    with closing(Preloaded(sys.executable, environment=os.environ, log=folder / "preloaded.log")) as found:
        yield Farm(folder, found)


class Sessions:
    """Sessions on one server, led over a few connections."""

    def __init__(self, url: str, kind: Kind) -> None:
        self._url = url
        self._kind = kind
        self._names = itertools.count()
        self._cookies: list[str] = []
        self._turns: Iterator[str] = iter(())

    def begin(self, count: int) -> None:
        """Begin so many sessions."""
        asyncio.run(self._begin(count))
        self._turns = itertools.cycle(self._cookies)

    def call(self, count: int) -> None:
        """Make one call in each of so many sessions: those whose turn it is."""
        asyncio.run(self._spread(self._called, [next(self._turns) for _ in range(count)]))

    async def _begin(self, count: int) -> None:
        async def one(connection: Connection, _: object) -> None:
            self._cookies.append(await connection.post("/seed_session", self._kind.seed, call=self._name()))

        await self._spread(one, range(count))

    async def _called(self, connection: Connection, cookie: str) -> None:
        await connection.post(self._kind.path, self._kind.body, cookie=cookie, call=self._name())

    def _name(self) -> str:
        return f"{next(self._names):08}"

    async def _spread(self, act: Any, over: Sequence[Any]) -> None:
        rest = iter(over)
        connections = [await Connection.to(self._url) for _ in range(min(AT_ONCE, len(over)))]

        async def work(connection: Connection) -> None:
            for item in rest:
                await act(connection, item)
            await connection.close()

        await asyncio.gather(*map(work, connections))
