"""An agent's client with the journal behind it: a subclass of the client's own class, made for one agent.

NeMo Gym's agents reach other servers through `server_client` alone; what goes past it (a library of one's own, a
subprocess) is not seen. Calls outside a rollout, other methods than POST, and `/aggregate_metrics` go through untouched.
"""

from __future__ import annotations

import copy
from typing import Any

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.execution import CALLER
from unbroken.adapters.nemo_gym.agent.outgoing import ADDRESS, Outgoing
from unbroken.errors import InternalError


class Seat:
    """Where the calls of one client go. Empty until the agent's application is set up."""

    def __init__(self) -> None:
        self.outgoing: Outgoing | None = None

    def taken(self) -> Outgoing:
        if self.outgoing is None:
            raise InternalError("A rollout runs, and its agent's log was never opened.")
        return self.outgoing


def journalling(client: Any) -> tuple[Any, Seat]:
    """Return a copy of `client` whose calls go through the seat's `Outgoing`, and the seat."""
    seat = Seat()
    parent: Any = type(client)

    async def request(self: Any, server_name: str, url_path: str, method: str, **arguments: Any) -> Any:
        caller = CALLER.get()
        if caller is None or method.upper() != "POST" or url_path in words.NOT_LOGGED:
            return await parent.request(self, server_name, url_path, method, **arguments)

        async def send(server: str, path: str, method: str, **arguments: Any) -> Any:
            return await parent.request(self, server, path, method, **arguments)

        return await seat.taken().call(caller, send, server_name, url_path, arguments)

    def base_url(self: Any, server: Any) -> str:
        return ADDRESS.get() or str(parent._build_server_base_url(self, server))

    made: Any = type(parent)(
        parent.__name__,
        (parent,),
        {
            "request": request,
            "_build_server_base_url": base_url,
            "__module__": parent.__module__,
            "__qualname__": parent.__qualname__,
            "__doc__": parent.__doc__,
        },
    )
    journalled = copy.copy(client)
    object.__setattr__(journalled, "__class__", made)
    return journalled, seat
