"""The counter of NeMo Gym, whose tool does something outside of its session as well: it adds a line to a file.

The file is $UNBROKEN_TEST_LINES. No checkpoint knows of it: a call that is executed twice shows there.
"""

from __future__ import annotations

import os

from fastapi import Request
from resources_servers.example_session_state_mgmt.app import (
    IncrementCounterRequest,
    IncrementCounterResponse,
    StatefulCounterResourcesServer,
)

LINES = "UNBROKEN_TEST_LINES"


class AppendingServer(StatefulCounterResourcesServer):
    async def increment_counter(
        self, request: Request, body: IncrementCounterRequest
    ) -> IncrementCounterResponse:
        append(os.environ[LINES], str(body.count))
        return await super().increment_counter(request, body)


def append(path: str, line: str) -> None:
    with open(path, "a") as lines:
        lines.write(f"{line}\n")
