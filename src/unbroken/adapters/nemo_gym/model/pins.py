"""Which backend of a model server serves which session, as plain numbers.

Found by its shape: a list `_clients` and a map `_session_id_to_client` into it, as NeMo Gym's front of vLLM has them.
The clients themselves hold connections and are never written down.
"""

from __future__ import annotations

from typing import Any


def pins_of(server: object) -> dict[str, int]:
    """Return the place of each session's client in the list; empty if there is no such thing."""
    clients, pinned = _found(server)
    places = {id(client): place for place, client in enumerate(clients)}
    return {session: places[id(client)] for session, client in pinned.items() if id(client) in places}


def pin(server: object, pins: dict[str, int]) -> list[str]:
    """Put sessions on their backends again, in place. Returns the sessions whose backend is not there."""
    clients, pinned = _found(server)
    pinned.clear()
    pinned.update({session: clients[place] for session, place in pins.items() if 0 <= place < len(clients)})
    return [session for session in pins if session not in pinned]


def _found(server: object) -> tuple[list[Any], dict[str, Any]]:
    clients: Any = getattr(server, "_clients", None)
    pinned: Any = getattr(server, "_session_id_to_client", None)
    if isinstance(clients, list) and isinstance(pinned, dict):
        return clients, pinned
    return [], {}
