"""Executes recorded calls again, through the whole application, and says where an answer is another than recorded.

Cookie, token and the headers that matter are as they were; the body is the same bytes. An exception counts as what
NeMo Gym makes of one. A call that takes far longer than it took is given up, and counts as answered otherwise.

Not promised: an end of a call that keeps the event loop to itself, or goes on in a thread after it was given up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym.control import InFlight
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Call
from unbroken.adapters.nemo_gym.server.identity import Identity
from unbroken.adapters.nemo_gym.serving import asgi
from unbroken.adapters.nemo_gym.serving.asgi import Application, Reply, Scope
from unbroken.errors import UnbrokenError

_SHOWN = 120
_LEAST = 30.0
_TIMES = 10.0
"""A call may take so many seconds, or so many times as long as it took, whichever is more."""
_GRACE = 1.0
"""Seconds for what was given up to end by itself."""


class Redo:
    """Executes calls of one server again."""

    def __init__(
        self, app: Application, identity: Identity, media: Media, *, ambient: Mapping[str, Any]
    ) -> None:
        """`ambient` is what every request has in its scope from the application around it."""
        self._app = app
        self._identity = identity
        self._media = media
        self._ambient = ambient
        self._under_way: tuple[InFlight, float] | None = None

    def under_way(self) -> InFlight | None:
        """Return the call that is being executed, if one is."""
        if self._under_way is None:
            return None
        call, since = self._under_way
        return msgspec.structs.replace(call, seconds=round(time.monotonic() - since, 3))

    async def execute(self, session: str, call: Call) -> str:
        """Execute a call; return in one sentence how its answer differs, or an empty text."""
        what = f"call {call.revision}, {call.path},"
        try:
            body = await self._media.lower_aside(call.arguments)
            recorded = await self._media.lower_aside(call.result)
        except UnbrokenError as error:
            return f"{what} cannot be made again: {error}"
        scope = self._identity.again(
            session,
            method=call.method,
            path=call.path,
            query=call.query,
            headers=call.headers,
            size=len(body),
        )
        ambient = {key: dict(value) if key == "state" else value for key, value in self._ambient.items()}
        within = max(_LEAST, _TIMES * call.seconds)
        self._under_way = InFlight(path=call.path, id=call.id, session=session), time.monotonic()
        try:
            reply = await _answered_within(within, self._app, {**scope, **ambient}, body)
        finally:
            self._under_way = None
        if reply is None:
            return f"{what} took {call.seconds:.3g} s and now is not answered within {within:g} s"
        if reply.status != call.status:
            return f"{what} was answered with status {call.status} and now is with {reply.status}: {_shown(reply.body)}"
        if reply.body != recorded:
            return f"{what} was answered {_shown(recorded)} and now is {_shown(reply.body)}"
        return ""


async def answered(app: Application, scope: Scope, body: bytes) -> tuple[Reply, Exception | None]:
    """Have `app` answer; what it raises is returned beside the answer that NeMo Gym makes of it."""
    try:
        return await asgi.call(app, scope, body), None
    except Exception as error:  # noqa: BLE001 - whoever called is told, and it is the recorded answer
        text = json.dumps(repr(error), ensure_ascii=False, separators=(",", ":"))
        return Reply(500, [(b"content-type", b"application/json")], text.encode()), error


async def _answered_within(seconds: float, app: Application, scope: Scope, body: bytes) -> Reply | None:
    """Return what `app` answers; None if it does not in time."""
    task = asyncio.create_task(answered(app, scope, body))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return task.result()[0] if done else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE)  # and not until it ends: it may never


def _shown(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
