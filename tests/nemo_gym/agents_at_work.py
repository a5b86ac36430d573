"""An agent, a model and a resources server of NeMo Gym behind real ports, all in the event loop of a test.

An agent can be stopped dead after a number of answers, and built anew over the log that it leaves.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from in_process import build
from scripted_model import ScriptedModel

from unbroken.adapters.nemo_gym.agent import attach as agent_side
from unbroken.adapters.nemo_gym.agent.agent import Agent
from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.records import Answer

TOKEN = "the token of this test"
REFERENCES = {
    "resources_server": {"type": "resources_servers", "name": "res"},
    "model_server": {"type": "responses_api_models", "name": "model"},
}


def options(directory: Path, **other: Any) -> Options:
    return Options(directory=directory, key=bytes(32), token=TOKEN, **other)


def journalled(cls: Any, chosen: Options) -> Any:
    """Return what `checkpointed` makes of the class of an agent."""

    def model_post_init(self: Any, context: Any) -> None:
        cls.model_post_init(self, context)
        agent_side.prepare(self, chosen)

    def setup_webserver(self: Any) -> Any:
        app = cls.setup_webserver(self)
        agent_side.attach(self, app, chosen)
        return app

    names = {"model_post_init": model_post_init, "setup_webserver": setup_webserver}
    return type(cls)(
        cls.__name__, (cls,), {**names, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    )


class World:
    """Use it in `world`. `calls` counts the calls of the model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sockets = {name: _socket() for name in ("res", "model", "agent")}
        self.call_log = directory / "calls"
        self.resources: Any = None
        self._running: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []

    @property
    def calls(self) -> int:
        return len(self.call_log.read_text().splitlines()) if self.call_log.exists() else 0

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.sockets[name].getsockname()[1]}"

    def global_config(self) -> dict[str, Any]:
        def part(kind: str, name: str) -> dict[str, Any]:
            return {kind: {"any": {"host": "127.0.0.1", "port": self.sockets[name].getsockname()[1]}}}

        return {
            "res": part("resources_servers", "res"),
            "model": part("responses_api_models", "model"),
            "agent": part("responses_api_agents", "agent"),
        }

    async def serve(self, name: str, app: Any) -> Callable[[], Any]:
        """Serve an application; returns how to end it. The port stays the same."""
        listening = self.sockets[name]
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        copy = socket.socket(fileno=listening.dup().detach())
        task = asyncio.get_running_loop().create_task(server._serve([copy]))
        self._running.append((server, task))

        async def end() -> None:
            server.should_exit = True
            await task

        return end

    async def start(self, resources: Any, *, model: Any = ScriptedModel, **config: Any) -> Any:
        """Serve a resources server of this class, and the model; returns how to end the former."""
        _, app = build(model, "model", call_log=str(self.call_log), **config)
        await self.serve("model", app)
        return await self.start_resources(resources)

    async def start_resources(self, resources: Any) -> Any:
        self.resources, app = build(resources, "res")
        self.resources.setup_exception_middleware(app)
        return await self.serve("res", app)

    def application(self, server: Any) -> Any:
        """Return another application in front of a server that keeps what it holds."""
        app = server.setup_webserver()
        server.setup_exception_middleware(app)
        return app

    def unplug(self, name: str) -> Callable[[], None]:
        """Let nobody listen at a server's port, once the server has ended; returns what plugs it in again."""
        old = self.sockets[name]
        address = old.getsockname()
        old.close()

        def plug() -> None:
            self.sockets[name] = _socket(address[1])

        return plug

    async def agent(
        self, cls: Any, *, name: str = "journal", prepare: Any = None, **other: Any
    ) -> tuple[Any, Any]:
        """Serve an agent over the log `name`; returns what stands around it, and how to end it."""
        made = journalled(cls, options(self.directory / name, **other))
        server, app = build(made, "agent", servers=self.global_config(), **REFERENCES)
        server.setup_exception_middleware(app)
        around = agent_side.agent_of(server)
        if prepare is not None:
            prepare(around)
        return around, await self.serve("agent", app)

    async def plain_agent(self, cls: Any) -> Any:
        """Serve the agent as NeMo Gym has it; returns how to end it."""
        server, app = build(cls, "agent", servers=self.global_config(), **REFERENCES)
        server.setup_exception_middleware(app)
        return await self.serve("agent", app)

    async def run(self, row: Mapping[str, Any], **headers: str) -> Any:
        """POST /run; returns aiohttp's answer, read."""
        import aiohttp

        async with aiohttp.ClientSession() as client:
            response = await client.post(f"{self.url('agent')}/run", json=dict(row), headers=headers)
            await response.read()
            return response

    async def end(self) -> None:
        for server, _ in self._running:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in self._running))
        for listening in self.sockets.values():
            listening.close()


@asynccontextmanager
async def world(directory: Path) -> AsyncGenerator[World]:
    """Give a world, with NeMo Gym's one client for the process in this event loop."""
    import nemo_gym.server_utils as utils

    utils.set_global_aiohttp_client(utils.GlobalAIOHTTPAsyncClientConfig())
    made = World(directory)
    try:
        yield made
    finally:
        await made.end()
        client, utils._GLOBAL_AIOHTTP_CLIENT = utils._GLOBAL_AIOHTTP_CLIENT, None
        await client.close()


def stop_after(count: int, reached: asyncio.Event) -> Callable[[Agent], None]:
    """Return what closes an agent's gate once it has `count` answers from others, so that it makes no further call."""

    def watch(agent: Agent) -> None:
        answered, seen = agent.journal.answered, 0

        async def watched(rollout: str, answer: Answer) -> None:
            nonlocal seen
            await answered(rollout, answer)
            if answer.server != agent.outgoing.others.own:
                seen += 1
                if seen == count:
                    agent.gate.close()
                    reached.set()

        agent.journal.answered = watched  # type: ignore[method-assign]

    return watch


def _socket(port: int = 0) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(64)
    return listening


def said(script: list[Any]) -> dict[str, Any]:
    """Return the part of a row that carries the script to the model."""
    return {"input": [{"role": "user", "content": json.dumps({"script": script})}]}


async def until(condition: Callable[[], bool], *, within: float = 300.0) -> None:
    """Let others work until something is so; servers do not signal what they are at."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  (see above)
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), within)
