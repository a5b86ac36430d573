"""A real counter server that kills itself: `python dying_counter.py DIRECTORY PORT [WHERE NUMBER]`.

WHERE is `durable` (once the NUMBER-th wait for the disk is over, before anything is answered) or `append` (before the NUMBER-th line
is written).
"""

from __future__ import annotations

import os
import signal
import sys

import uvicorn
from in_process import build
from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer

from unbroken.adapters.nemo_gym.attach import checkpointed
from unbroken.adapters.nemo_gym.log import Log
from unbroken.adapters.nemo_gym.server import participant


class Dying(Log):
    """Installed in the place of `Log`."""

    where = ""
    number = 0
    counted = 0

    def append(self, label: str, payload: bytes) -> int:
        self._count("append")
        return super().append(label, payload)

    async def durable(self, ticket: int) -> None:
        await super().durable(ticket)
        self._count("durable")

    @classmethod
    def _count(cls, where: str) -> None:
        if where == cls.where:
            cls.counted += 1
            if cls.counted == cls.number:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    directory, port, *rest = sys.argv[1:]
    if rest:
        Dying.where, Dying.number = rest[0], int(rest[1])
        setattr(participant, "Log", Dying)  # noqa: B010 - it is not offered there
    server, app = build(checkpointed(StatefulCounterResourcesServer, directory=directory))
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
