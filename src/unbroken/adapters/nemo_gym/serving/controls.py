"""The control side of a server: who may ask, and which function answers.

A request is one of control only if it carries the token's header; a tool that a model calls by the same path has none and
goes to the server like any other. Not promised: secrecy on the wire. The token travels as it is; control networks
are private, or tunnelled.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import FREE, OPERATIONS, Refusal, Refuses
from unbroken.adapters.nemo_gym.serving.asgi import Receive, Reply, Scope, Send, answer, body_of, header
from unbroken.errors import UnbrokenError

Handler: TypeAlias = Callable[[Any], Awaitable[msgspec.Struct]]
"""Takes what the operation takes (`control.OPERATIONS`) and returns what it answers."""

_STATUS = {"token": 403, "fenced": 409, "busy": 409, "format": 400}


class Controls:
    """Answers control requests by `handlers`, one for each operation that this kind of server knows."""

    def __init__(self, token: str, handlers: Mapping[str, Handler], epoch: Callable[[], int]) -> None:
        self._token = token.encode()
        self._handlers = handlers
        self._epoch = epoch

    @staticmethod
    def concerns(scope: Scope) -> bool:
        """Whether a request is one of control."""
        return scope["path"].startswith(words.PREFIX) and bool(header(scope["headers"], words.CONTROL))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        try:
            result = await self._carried_out(scope, body)
        except Refuses as refused:
            await answer(send, _refusal(refused.refusal))
        except UnbrokenError as error:
            await answer(send, _refusal(Refusal(kind="other", error=str(error))))
        else:
            await answer(
                send, Reply(200, [(b"content-type", b"application/msgpack")], msgspec.msgpack.encode(result))
            )

    async def _carried_out(self, scope: Scope, body: bytes) -> msgspec.Struct:
        headers = scope["headers"]
        if not hmac.compare_digest(header(headers, words.CONTROL).encode(), self._token):
            raise Refuses(
                "token",
                "The control token is not this server's. Give both sides the same UNBROKEN_KEY, or run as one user.",
            )
        operation = str(scope["path"]).removeprefix(words.PREFIX)
        handler = self._handlers.get(operation)
        if handler is None or operation not in OPERATIONS:
            raise Refuses(
                "other", f"This server has no operation {operation!r}. Use the same Unbroken on both sides."
            )
        if operation not in FREE:
            self._check_epoch(header(headers, words.EPOCH))
        takes, _ = OPERATIONS[operation]
        try:
            arguments = msgspec.msgpack.decode(body, type=takes) if body else takes()
        except (msgspec.DecodeError, TypeError) as error:
            raise Refuses("format", f"{operation}: {error}. Use the same Unbroken on both sides.") from error
        return await handler(arguments)

    def _check_epoch(self, given: str) -> None:
        epoch = self._epoch()
        if given != str(epoch):
            raise Refuses(
                "fenced",
                f"Epoch {given or 'none'} was given and {epoch} holds: another trainer took this server over. Stop this one.",
            )


def _refusal(refusal: Refusal) -> Reply:
    headers = [
        (b"content-type", b"application/msgpack"),
        (words.REFUSED.encode(), refusal.kind.encode()),
    ]
    return Reply(_STATUS.get(refusal.kind, 422), headers, msgspec.msgpack.encode(refusal))
