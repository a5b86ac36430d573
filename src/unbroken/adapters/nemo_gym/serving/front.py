"""What stands in front of a server's application: which requests are of control, which are the server's own, and which are calls.

Everything that is no call goes through untouched: the liveness, the documentation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.serving.asgi import Application, Message, Receive, Scope, Send
from unbroken.adapters.nemo_gym.serving.controls import Controls


class Front(ABC):
    """Pure ASGI. `close` is what is closed before the application hears of its end."""

    def __init__(self, app: Application, *, controls: Controls, close: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._controls = controls
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, _closing(receive, self._close), send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif Controls.concerns(scope):
            await self._controls(scope, receive, send)
        elif scope["method"] != "POST" or scope["path"] in words.NOT_LOGGED:
            await self._app(scope, receive, send)
        else:
            await self._call(scope, receive, send)

    @abstractmethod
    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what a client has posted."""


def _closing(receive: Receive, close: Callable[[], Awaitable[None]]) -> Receive:
    async def receiving() -> Message:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await close()
        return message

    return receiving
