"""Small stands-in for what NeMo Gym would be: a client, answers of servers, and an agent as an ASGI application."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import SimpleCookie
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.agent import Agent
from unbroken.adapters.nemo_gym.agent.client import journalling
from unbroken.adapters.nemo_gym.agent.journal import Identity, Journal
from unbroken.adapters.nemo_gym.agent.middleware import AgentMiddleware
from unbroken.adapters.nemo_gym.agent.operations import AgentOperations
from unbroken.adapters.nemo_gym.agent.outgoing import Others
from unbroken.adapters.nemo_gym.control import OPERATIONS, Refusal
from unbroken.adapters.nemo_gym.serving.asgi import Reply, Scope, body_of, call
from unbroken.adapters.nemo_gym.serving.controls import Controls

KEY = bytes(32)
IDENTITY = Identity(server="agent", class_name="Toy", config_hash="1")
OTHERS = Others(own="agent", models=frozenset({"model"}))

Act = Callable[[Any, Any], Awaitable[Any]]
"""An agent: takes its client and its row, returns the answer of /run."""


class Said:
    """What a server says: the part of aiohttp's answer that is used."""

    def __init__(
        self,
        body: Any = None,
        status: int = 200,
        *,
        cookies: dict[str, str] | None = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = {"Content-Type": "application/json"}
        self.headers.update(headers or {})
        self.cookies: SimpleCookie = SimpleCookie()
        for key, value in (cookies or {}).items():
            self.cookies[key] = value
            self.cookies[key]["path"] = "/"
        self.url = "http://res:1/somewhere"
        self.body = json.dumps(body).encode() if raw is None else raw

    async def read(self) -> bytes:
        return self.body


class Client:
    """A client that hands every call to `answer`, as NeMo Gym's would hand it to a server; `calls` are those that it made."""

    def __init__(self, answer: Callable[..., Awaitable[Said]]) -> None:
        self.answer = answer
        self.calls: list[SimpleNamespace] = []

    def _build_server_base_url(self, server: Any) -> str:
        return f"http://{server}"

    async def request(self, server_name: str, url_path: str, method: str, **arguments: Any) -> Any:
        made = SimpleNamespace(
            server=server_name,
            path=url_path,
            method=method,
            url=self._build_server_base_url(server_name),
            json=arguments.get("json"),
            headers=arguments.get("headers") or {},
        )
        self.calls.append(made)
        return await self.answer(made)

    async def post(self, server_name: str, url_path: str, **arguments: Any) -> Any:
        return await self.request(server_name=server_name, url_path=url_path, method="POST", **arguments)


class Toy:
    """An agent with everything around it, over the log in `directory`. Its own calls come back to it."""

    def __init__(
        self,
        directory: Path,
        act: Act,
        answer: Callable[..., Awaitable[Said]],
        *,
        opened: bool = True,
        name: str = "agent",
    ) -> None:
        identity = dataclasses.replace(IDENTITY, server=name)
        self.act = act
        self.plain = Client(self._routed)
        self._answer = answer
        self.client, seat = journalling(self.plain)
        self.journal = Journal.open(directory, key=KEY, identity=identity)
        others = Others(own=name, models=OTHERS.models)
        self.agent = Agent(self.journal, others, opened=opened)
        self.operations = AgentOperations(self.agent, identity)
        seat.outgoing = self.agent.outgoing
        controls = Controls("token", self.operations.handlers(), self.operations.epoch)
        self.app = AgentMiddleware(self._application, agent=self.agent, controls=controls)

    @property
    def calls(self) -> list[SimpleNamespace]:
        """Those that were made, to others and to itself."""
        return self.plain.calls

    def paths(self) -> list[str]:
        return [made.path for made in self.calls]

    async def _routed(self, made: SimpleNamespace) -> Said:
        if made.server != self.agent.outgoing.others.own:
            return await self._answer(made)
        headers = [(key.encode(), value.encode()) for key, value in made.headers.items()]
        reply = await self.post(made.path, made.json, headers=headers)
        refused = reply.header(words.REFUSED)
        return Said(status=reply.status, raw=reply.body, headers={words.REFUSED: refused} if refused else {})

    async def _application(self, scope: Scope, receive: Any, send: Any) -> None:
        row = json.loads(await body_of(receive))
        result = await self.act(self.client, (scope["path"], row))
        status, body = result if isinstance(result, tuple) else (200, result)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def post(self, path: str, row: Any, *, headers: Any = ()) -> Reply:
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": list(headers),
            "query_string": b"",
        }
        return await asyncio.create_task(call(self.app, scope, json.dumps(row).encode()))

    async def run(self, row: Any, *, attempt: int | None = None) -> Reply:
        stamp = {} if attempt is None else {"_ng_attempt_index": attempt}
        return await self.post("/run", {**row, **stamp})

    async def control(self, operation: str, arguments: Any = None, *, epoch: int | None = None) -> Any:
        """Carry an operation out over the application; returns what it answers, or its Refusal."""
        headers = [(words.CONTROL.encode(), b"token")]
        headers.append((words.EPOCH.encode(), str(self.journal.epoch if epoch is None else epoch).encode()))
        scope = {"type": "http", "method": "POST", "path": f"{words.PREFIX}{operation}", "headers": headers}
        body = b"" if arguments is None else msgspec.msgpack.encode(arguments)
        reply = await call(self.app, scope, body)
        answers = OPERATIONS[operation][1] if reply.status == 200 else Refusal
        return msgspec.msgpack.decode(reply.body, type=answers)


async def until(condition: Callable[[], bool], *, within: float = 300.0) -> None:
    """Let the others work until something is so; nothing is signalled where an outsider looks."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  (see above)
            await asyncio.sleep(0)

    await asyncio.wait_for(wait(), within)


def row(rollout: str = "r", **more: Any) -> dict[str, Any]:
    return {"_ng_rollout_id": rollout, **more}
