"""Executes recorded calls again, through the whole application, and says where an answer is another than recorded.

Cookie, token and the headers that matter are as they were; the body is the same bytes. An exception counts as what
NeMo Gym makes of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Call
from unbroken.adapters.nemo_gym.server.identity import Identity
from unbroken.adapters.nemo_gym.serving import asgi
from unbroken.adapters.nemo_gym.serving.asgi import Application, Reply, Scope
from unbroken.errors import UnbrokenError

_SHOWN = 120


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

    async def execute(self, session: str, call: Call) -> str:
        """Execute a call; return in one sentence how its answer differs, or an empty text."""
        what = f"call {call.revision}, {call.path},"
        try:
            body = self._media.lower(call.arguments)
            recorded = self._media.lower(call.result)
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
        reply, _ = await answered(self._app, {**scope, **ambient}, body)
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


def _shown(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
