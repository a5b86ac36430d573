"""The few pieces of ASGI that are needed: reading a body, calling an application with one, answering."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = "list[tuple[bytes, bytes]]"


@dataclass(slots=True)
class Reply:
    """A complete answer of an application."""

    status: int = 500
    headers: Headers = field(default_factory=list[tuple[bytes, bytes]])
    body: bytes = b""

    def header(self, name: str) -> str:
        """Return the first header of this name, or an empty text."""
        return header(self.headers, name)

    def cookies(self) -> tuple[str, ...]:
        """Return the values of all `Set-Cookie` headers."""
        return tuple(value.decode("latin-1") for key, value in self.headers if key.lower() == b"set-cookie")


def header(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """Return the first header called `name` (in lower case), or an empty text."""
    wanted = name.encode("ascii")
    return next((value.decode("latin-1") for key, value in headers if key.lower() == wanted), "")


class TooLong(Exception):
    """A request's body is longer than anybody has reason to send."""


class ClientGone(Exception):
    """Whoever asked went away before the whole body had arrived. It was no request: nothing is done, and nobody is answered."""


async def body_of(receive: Receive, *, most: int | None = None) -> bytes:
    """Read the whole body of a request, of `most` bytes at most.

    Raises:
        TooLong: it is longer. No more than one message beyond `most` bytes was read of it.
        ClientGone: it did not arrive whole.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client is gone, and what it meant is not known
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if most is not None and size > most:
            raise TooLong
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def replay_of(body: bytes, receive: Receive | None = None) -> Receive:
    """Return a `receive` that gives `body`, and then whatever `receive` has; without one it waits for good."""
    given = False

    async def once() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        if receive is not None:
            return await receive()
        await asyncio.Event().wait()
        raise AssertionError

    return once


async def call(app: Application, scope: Scope, body: bytes) -> Reply:
    """Have `app` answer a request, and return the answer once it is complete."""
    reply = Reply()
    parts: list[bytes] = []

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = int(message["status"])
            reply.headers = [(bytes(key), bytes(value)) for key, value in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, replay_of(body), keep)
    reply.body = b"".join(parts)
    return reply


async def answer(send: Send, reply: Reply) -> None:
    """Send a complete answer. Its length is set here."""
    headers = [(key, value) for key, value in reply.headers if key.lower() != b"content-length"]
    headers.append((b"content-length", str(len(reply.body)).encode("ascii")))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
