"""A resources server and its application without any framework, and a client that speaks ASGI to them.

The application keeps sessions in a signed cookie as NeMo Gym's do. Sessions hold a counter, a list and an unseeded generator.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from unbroken.adapters.nemo_gym import control, words
from unbroken.adapters.nemo_gym.attach import checkpointed
from unbroken.adapters.nemo_gym.keys import control_token
from unbroken.adapters.nemo_gym.server import cookies
from unbroken.adapters.nemo_gym.server.middleware import ResourcesMiddleware
from unbroken.adapters.nemo_gym.server.participant import Participant
from unbroken.adapters.nemo_gym.serving import asgi
from unbroken.adapters.nemo_gym.serving.asgi import Message, Receive, Reply, Scope, Send

T = TypeVar("T", bound=msgspec.Struct)


class Tiny:
    """Routes are the methods named `on_*`. What they return is answered as JSON."""

    model_fields: dict[str, Any] = {"config": None, "session_id_to_counter": None}

    def __init__(self, *, name: str = "res", num_workers: int = 1) -> None:
        self.config = SimpleNamespace(name=name, num_workers=num_workers)
        self.session_id_to_counter: dict[str, int] = {}
        self.session_id_to_rolls: dict[str, list[int]] = {}
        self.session_id_to_rng: dict[str, random.Random] = {}
        self._unbroken_executed: list[str] = []
        """Not state: which paths were executed in this process."""
        self._unbroken_hold: asyncio.Event | None = None
        self._unbroken_held = asyncio.Event()

    def get_session_middleware_key(self) -> str:
        return f"{type(self).__name__}___{self.config.name}"

    def setup_webserver(self) -> TinyApp:
        return TinyApp(self)

    async def on_seed_session(self, session: str, body: Mapping[str, Any]) -> object:
        self.session_id_to_counter.setdefault(session, body.get("start", 0))
        self.session_id_to_rng[session] = random.Random()
        return {"hand": self.session_id_to_rng[session].randrange(10**9)}

    async def on_add(self, session: str, body: Mapping[str, Any]) -> object:
        value = self.session_id_to_counter.get(session, 0)
        if self._unbroken_hold is not None:
            self._unbroken_held.set()
            await self._unbroken_hold.wait()
        await asyncio.sleep(0)
        self.session_id_to_counter[session] = value + body["count"]
        return {"ok": True}

    async def on_value(self, session: str, body: Mapping[str, Any]) -> object:
        del body
        return {"count": self.session_id_to_counter.setdefault(session, 0)}

    async def on_draw(self, session: str, body: Mapping[str, Any]) -> object:
        del body
        return {"card": self.session_id_to_rng.setdefault(session, random.Random()).randrange(10**9)}

    async def on_roll(self, session: str, body: Mapping[str, Any]) -> object:
        """Its answer cannot be had again: it comes from the process's own generator."""
        del body
        roll = random.SystemRandom().randrange(10**9)
        self.session_id_to_rolls.setdefault(session, []).append(roll)
        return {"roll": roll}

    async def on_boom(self, session: str, body: Mapping[str, Any]) -> object:
        self.session_id_to_counter[session] = self.session_id_to_counter.get(session, 0) + 100
        raise ValueError(body.get("why", "no reason"))

    async def on_verify(self, session: str, body: Mapping[str, Any]) -> object:
        return {"reward": float(self.session_id_to_counter.get(session) == body.get("expected"))}


class Calculator(Tiny):
    """Has no sessions: verification is a function of the request."""

    def __init__(self, *, name: str = "res", num_workers: int = 1) -> None:
        self.config = SimpleNamespace(name=name, num_workers=num_workers)
        self._unbroken_executed = []

    async def on_verify(self, session: str, body: Mapping[str, Any]) -> object:
        del session
        return {"reward": float(body["expected"] == 5), "draw": random.SystemRandom().random()}


class TinyApp:
    """Everything that `add_middleware` was given goes around the routes, the last outermost."""

    def __init__(self, server: Tiny) -> None:
        self.server = server
        self.layers: list[Any] = []
        self.app: Any = self._answered
        self.routes = [
            SimpleNamespace(path="/" + name.removeprefix("on_"), methods={"POST"}, name=name)
            for name in dir(server)
            if name.startswith("on_") and hasattr(server, "session_id_to_counter")
        ]

    def add_middleware(self, cls: Callable[..., Any], **options: Any) -> None:
        self.app = cls(self.app, **options)
        self.layers.append(self.app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        body = await asgi.body_of(receive)
        if scope["path"] == "/" or scope["method"] == "GET":
            await asgi.answer(send, Reply(200, [], b'{"status":"ok"}'))
            return
        key = self.server.get_session_middleware_key()
        given = cookies.found(scope["headers"]).get(key)
        payload = (cookies.read(key, given) if given else None) or {}
        session = payload.setdefault(words.SESSION_KEY, str(uuid.uuid4()))
        self.server._unbroken_executed.append(scope["path"])
        handler = getattr(self.server, "on_" + scope["path"].strip("/"), None)
        if handler is None:  # a server that takes any path for a tool
            result: object = {"tool": scope["path"], "said": body.decode()}
        else:
            result = await handler(session, json.loads(body or b"{}"))
        headers = [
            (b"content-type", b"application/json"),
            (b"set-cookie", f"{key}={cookies.sign(key, payload)}; path=/".encode()),
        ]
        await asgi.answer(send, Reply(200, headers, json.dumps(result).encode()))


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


class Answer:
    """What a client got."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.body = reply.body
        self.reply = reply
        self.replayed = bool(reply.header(words.REPLAYED))
        self.refused = reply.header(words.REFUSED)
        self.cookie = "; ".join(c.split(";")[0] for c in reply.cookies())

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A server that runs in this process."""

    def __init__(self, server: Tiny, app: TinyApp) -> None:
        self.server = server
        self.app = app
        self.epoch = 0

    @property
    def participant(self) -> Participant:
        layer = self.app.layers[-1]
        assert isinstance(layer, ResourcesMiddleware)
        return layer.participant

    async def post(
        self,
        path: str,
        body: object = None,
        *,
        cookie: str = "",
        rollout: str = "",
        attempt: int | None = None,
        call: str = "",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        given = {
            "content-type": "application/json",
            "cookie": cookie,
            words.ROLLOUT: rollout,
            words.CALL: call,
            words.ATTEMPT: "" if attempt is None else str(attempt),
            **(headers or {}),
        }
        return Answer(await self.ask(method, path, json.dumps(body or {}).encode(), given))

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items() if value],
        }
        return await asgi.call(self.app, scope, body)

    async def told(
        self,
        operation: str,
        asked: msgspec.Struct | None = None,
        *,
        token: str | None = None,
        epoch: int | None = None,
    ) -> Any:
        """Carry out a control operation; return its answer, or the refusal."""
        headers = {
            words.CONTROL: control_token() if token is None else token,
            words.EPOCH: str(self.epoch if epoch is None else epoch),
        }
        body = msgspec.msgpack.encode(asked or control.Nothing())
        reply = await self.ask("POST", words.PREFIX + operation, body, headers)
        if reply.status != 200:
            return msgspec.msgpack.decode(reply.body, type=control.Refusal)
        answer = msgspec.msgpack.decode(reply.body, type=control.OPERATIONS[operation][1])
        if isinstance(answer, control.Epoch):
            self.epoch = answer.epoch
        return answer

    async def adopted(self) -> Running:
        await self.told("adopt", control.Adopt(run="run"))
        return self

    async def cut(self, lineage: str = "", mark: int = 0) -> control.Exported:
        """Quiesce, export and release."""
        await self.told("quiesce", control.Quiesce(timeout=300))
        exported = await self.told("export", control.Export(lineage=lineage, mark=mark))
        await self.told("release")
        assert isinstance(exported, control.Exported), exported
        return exported

    async def digests(self) -> dict[str, str]:
        return {summary.id: summary.digest for summary in (await self.told("digests")).sessions}


async def until(holds: Callable[[], bool]) -> None:
    """Let others run until something holds. What never does is an error."""
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def running(
    directory: Path | None,
    cls: type[Tiny] = Tiny,
    *,
    name: str = "res",
    restored: bool = True,
    **options: Any,
) -> AsyncGenerator[Running]:
    """Run a server whose log lies in `directory`, until the block ends. Without a directory: as NeMo Gym has it.

    It has restored itself, unless nobody waits for that.
    """
    wrapped: Any = cls if directory is None else checkpointed(cls, directory=directory, **options)
    server = wrapped(name=name)
    app = server.setup_webserver()
    received: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan"}, received.get, sent.put))
    await received.put({"type": "lifespan.startup"})
    message = await sent.get()
    assert message["type"] == "lifespan.startup.complete", message
    one = Running(server, app)
    if directory is not None and restored:
        await one.participant.restored.wait()
    try:
        yield one
    finally:
        await received.put({"type": "lifespan.shutdown"})
        await life
