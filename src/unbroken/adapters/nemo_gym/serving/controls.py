"""The control side of a server: who may ask, and which function answers.

A request is one of control only if it carries the token's header; a tool that a model calls by the same path has none and
goes to the server like any other. Nothing of a body is read before the token is known to be right, and no more of it than the operation
may need. Not promised: secrecy on the wire. The token travels as it is; control networks are private, or tunnelled.

The epoch is compared before an operation begins. One that waits before it takes effect compares again (`check_epoch`): a
trainer that has lost a server meanwhile must not act on it.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.control import FREE, OPERATIONS, Refusal, Refuses
from unbroken.adapters.nemo_gym.serving.asgi import (
    ClientGone,
    Receive,
    Reply,
    Scope,
    Send,
    TooLong,
    answer,
    body_of,
    header,
)
from unbroken.errors import UnbrokenError

Handler: TypeAlias = Callable[[Any], Awaitable[msgspec.Struct]]
"""Takes what the operation takes (`control.OPERATIONS`) and returns what it answers."""

_LOGGER = logging.getLogger("unbroken.nemo_gym")
_MOST = 64 << 20
_MOST_OF: dict[str, int] = {"prepare": 64 << 30, "receive": 8 << 30}
"""Bytes of a body, beyond which it is no request of a trainer. Some bring states with them."""
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
        operation = str(scope["path"]).removeprefix(words.PREFIX)
        try:
            result = await self._carried_out(operation, scope, receive)
        except ClientGone:
            return
        except Refuses as refused:
            reply = _refusal(refused.refusal)
        except UnbrokenError as error:
            reply = _refusal(Refusal(kind="other", error=str(error)))
        except (
            Exception
        ) as error:  # answered in words: without them it looks like a server that is none of ours
            _LOGGER.exception("unbroken: %s failed", operation)
            what = f"{operation} failed: {error!r}. This is a bug; the server's output has the traceback."
            reply = _refusal(Refusal(kind="other", error=what), status=500)
        else:
            reply = Reply(200, [(b"content-type", b"application/msgpack")], msgspec.msgpack.encode(result))
        await answer(send, reply)

    async def _carried_out(self, operation: str, scope: Scope, receive: Receive) -> msgspec.Struct:
        headers = scope["headers"]
        if not hmac.compare_digest(header(headers, words.CONTROL).encode(), self._token):
            raise Refuses(
                "token",
                "The control token is not this server's. Give both sides the same UNBROKEN_KEY, or run as one user.",
            )
        handler = self._handlers.get(operation)
        if handler is None or operation not in OPERATIONS:
            raise Refuses(
                "other", f"This server has no operation {operation!r}. Use the same Unbroken on both sides."
            )
        body = await _read(operation, scope, receive)
        if operation not in FREE:
            given, epoch = header(headers, words.EPOCH), self._epoch()
            if given != str(epoch):
                raise fenced(given, epoch)
        takes, _ = OPERATIONS[operation]
        try:
            arguments = msgspec.msgpack.decode(body, type=takes) if body else takes()
        except (msgspec.DecodeError, TypeError) as error:
            raise Refuses("format", f"{operation}: {error}. Use the same Unbroken on both sides.") from error
        return await handler(arguments)


def check_epoch(given: int, epoch: int) -> None:
    """Refuse if an operation that was begun in the epoch `given` would take effect in another.

    Raises:
        Refuses: `fenced`.
    """
    if given != epoch:
        raise fenced(str(given), epoch)


def fenced(given: str, epoch: int) -> Refuses:
    """Return the refusal for a trainer that has lost a server."""
    return Refuses(
        "fenced",
        f"Epoch {given or 'none'} was given and {epoch} holds: another trainer took this server over. Stop this one.",
    )


async def _read(operation: str, scope: Scope, receive: Receive) -> bytes:
    most = _MOST_OF.get(operation, _MOST)
    length = header(scope["headers"], "content-length")
    try:
        if length.isdecimal() and int(length) > most:
            raise TooLong
        return await body_of(receive, most=most)
    except TooLong:
        raise Refuses(
            "format", f"{operation} came with more than {most:,} bytes. Use the same Unbroken on both sides."
        ) from None


def _refusal(refusal: Refusal, *, status: int = 0) -> Reply:
    headers = [
        (b"content-type", b"application/msgpack"),
        (words.REFUSED.encode(), refusal.kind.encode()),
    ]
    return Reply(status or _STATUS.get(refusal.kind, 422), headers, msgspec.msgpack.encode(refusal))
