"""The layer around a resources server's application.

Control requests are answered here, whatever state the server is in, and so is nothing else: `GET /` says that the process lives,
everything that may change a session goes its way through `calls`, and what is left waits at the door and is let in unless its
session is not here.

A server restores itself once its application says that it has started: to execute calls again, what the application's
lifespan holds (a session manager of MCP, say) has to be there. Without lifespan messages it begins with the first request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import InFlight, Recovery, Refuses
from unbroken.adapters.nemo_gym.options import Options
from unbroken.adapters.nemo_gym.server.calls import Calls, refusal
from unbroken.adapters.nemo_gym.server.migration import Migrations
from unbroken.adapters.nemo_gym.server.operations import Operations
from unbroken.adapters.nemo_gym.server.participant import Participant
from unbroken.adapters.nemo_gym.serving.asgi import (
    Application,
    ClientGone,
    Message,
    Receive,
    Reply,
    Scope,
    Send,
    answer,
    body_of,
    replay_of,
)
from unbroken.adapters.nemo_gym.serving.controls import Controls
from unbroken.engine.saying import say
from unbroken.errors import UnbrokenError

_PATIENCE = 1.0
"""Seconds that a server which is told to end waits for calls."""
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class ResourcesMiddleware:
    """Pure ASGI. `application` is the outermost one, whose routes are the server's tools."""

    def __init__(self, app: Application, *, server: Any, application: object, options: Options) -> None:
        self._app = app
        self.participant = Participant(app, server=server, options=options)
        migrations = Migrations(self.participant)
        self._operations = Operations(self.participant, migrations, application=application)
        self._calls = Calls(self.participant, migrations, has_seeding=self._has_seeding)
        self._controls = Controls(
            options.token, self._operations.handlers(), epoch=lambda: self.participant.epoch
        )
        self._restoring: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if self._restoring is None:
            try:
                self._begin(scope)
            except UnbrokenError as error:
                await answer(send, refusal(Refuses("closed", str(error))))
                return
        if Controls.concerns(scope):
            await self._controls(scope, receive, send)
        elif path == "/" and method not in _CHANGING:
            await self._app(scope, receive, send)
        elif self.participant.failure is not None:
            await self._refuse(send)
        elif method not in _CHANGING or path in words.NOT_LOGGED:
            await self._waiting(scope, receive, send)
        else:
            await self._call(scope, receive, send)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await body_of(receive)
        except ClientGone:
            return
        await self.participant.restored.wait()
        if self.participant.identity.is_handshake(scope, body):
            async with self.participant.gate.passing(InFlight(path=scope["path"])):
                if self.participant.failure is not None:
                    await self._refuse(send)
                    return
                await self._app(scope, replay_of(body, receive), send)
            return
        outcome = await self._calls.answer(scope, body)
        if outcome.raised is not None:
            raise outcome.raised
        await answer(send, outcome.reply)

    async def _waiting(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What changes nothing waits at the door, but is not counted: a stream of events may stay for good."""
        await self.participant.restored.wait()
        async with self.participant.gate.passing(InFlight(path=scope["path"])):
            pass
        if self.participant.failure is not None:
            await self._refuse(send)
            return
        try:
            found = self._calls.reading(scope)
        except Refuses as refused:
            await answer(send, refusal(refused))
            return
        if isinstance(found, Reply):
            await answer(send, found)
        else:
            await self._app(found, receive, send)

    async def _refuse(self, send: Send) -> None:
        try:
            self.participant.check()
        except Refuses as refused:
            await answer(send, refusal(refused))

    def _begin(self, scope: Scope) -> None:
        """Open the log, and let the server restore itself."""
        self.participant.begin()
        self._look_around(scope)
        self._restoring = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        await self.participant.restore()
        recovery = self.participant.recovery
        if self.participant.failure is None and recovery.source == "log" and recovery.sessions:
            say(f"unbroken: {self._name} came back from its log: {_summary(recovery)}")

    @property
    def _name(self) -> str:
        server = self.participant.server
        return str(getattr(server.config, "name", "") or type(server).__name__)

    def _look_around(self, scope: Scope) -> None:
        # Without `app` Starlette answers an unknown path in another way, and so would a call that is made again.
        self.participant.ambient = {key: scope[key] for key in ("app", "state") if key in scope}

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.participant.begin()
        except UnbrokenError as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return

        async def sent(message: Message) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self._look_around(scope)
                self._restoring = asyncio.create_task(self._restore())

        try:
            await self._app(scope, receive, sent)
        finally:
            await self._end()

    async def _end(self) -> None:
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])
        with suppress(asyncio.TimeoutError):  # what takes longer was not answered, and is made again
            await asyncio.wait_for(self._calls.settled(), _PATIENCE)
        self.participant.close()

    def _has_seeding(self) -> bool:
        return any(tool.path in words.SEEDING for tool in self._operations.tools())


def _summary(recovery: Recovery) -> str:
    lost = sum(recovered.tier == "refused" for recovered in recovery.listed)
    parts = [_counted(recovery.sessions, "session"), f"{_counted(recovery.redone, 'call')} done again"]
    if lost:
        parts.append(f"{_counted(lost, 'session')} lost")
    return ", ".join(parts)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
