"""A server that takes its state from chance when it is built: `python drawing_server.py DIRECTORY|- PORT`. With `-` it keeps nothing."""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from in_process import build
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.server_utils import SESSION_ID_KEY

from unbroken.adapters.nemo_gym.attach import checkpointed


class DrawingServer(SimpleResourcesServer):
    """A bonus, and numbers that a tool draws: both from a chance that nobody can repeat."""

    model_config = {"arbitrary_types_allowed": True}
    drawn: dict[str, list[float]] = {}
    _bonus: float = 0.0
    _rng: Any = None

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._bonus = random.random()
        self._rng = random.Random()

    def setup_webserver(self) -> FastAPI:
        app: FastAPI = super().setup_webserver()
        app.post("/draw")(self.draw)
        app.post("/bonus")(self.bonus)
        return app

    async def draw(self, request: Request) -> dict[str, Any]:
        mine = self.drawn.setdefault(request.session[SESSION_ID_KEY], [])
        mine.append(self._rng.random())
        return {"drawn": mine}

    async def bonus(self, request: Request) -> dict[str, float]:
        return {"bonus": self._bonus}

    async def verify(self, body: Any) -> Any:
        return {"reward": self._bonus}


if __name__ == "__main__":
    directory, port = sys.argv[1:]
    wrapped = DrawingServer if directory == "-" else checkpointed(DrawingServer, directory=directory)
    server, app = build(wrapped)
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
