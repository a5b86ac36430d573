"""The server of workplace_assistant, whose tools can be stopped before they do anything, and once they have done it.

While the directory $UNBROKEN_TEST_WAIT has a file `<tool>-before` or `<tool>-after`, the tool waits there, and says so in
`<tool>-<where>-arrived`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from fastapi import Request
from resources_servers.workplace_assistant.app import WorkbenchRequest, WorkbenchResponse
from resources_servers.workplace_assistant.app import WorkbenchResourcesServer as AsItIs

WAIT = "UNBROKEN_TEST_WAIT"


class WorkbenchResourcesServer(AsItIs):
    async def route_to_python_function(
        self, path: str, body: WorkbenchRequest, request: Request
    ) -> WorkbenchResponse:
        await _wait(path, "before")
        answer: Any = await super().route_to_python_function(path, body, request)
        await _wait(path, "after")
        return answer


async def _wait(tool: str, where: str) -> None:
    while _is_held(f"{tool}-{where}"):  # noqa: ASYNC110 - the test is another process
        await asyncio.sleep(0.01)


def _is_held(name: str) -> bool:
    held = Path(os.environ[WAIT]) / name
    if held.exists():
        Path(f"{held}-arrived").touch()
        return True
    return False
