"""Objects that say themselves what their state is: `capture`/`restore`, or `state_dict`/`load_state_dict`.

Used for objects that a person tracks and that no framework's policy describes better. What they return
is walked like everything else, and copied at once.

Not promised: that it is all of their state. That is theirs to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unbroken.state.nodes import Dict, Value, class_name
from unbroken.state.policy import Phase

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

PAIRS = (("capture", "restore"), ("state_dict", "load_state_dict"))


class Delegate:
    """A codec that asks the object for its state and gives it back to the same object."""

    mutable = True

    def __init__(self, get: str, put: str) -> None:
        self.name = f"delegate.{get}"
        self._get = get
        self._put = put

    def encode(self, value: Any, walk: Walk) -> Value:
        return Dict(v={"state": walk.child("state", getattr(value, self._get)())})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Dict) or payload.v is None or "state" not in payload.v:
            return graft.refuse(f"{cls} was saved without its state.", twin)
        if class_name(type(twin)) != cls or not graft.claim(twin):
            return graft.refuse(f"{cls} was saved, and the program has another object here.", twin)
        graft.register(twin)
        state = graft.value("state", payload.v["state"])
        # The values that it takes are complete only when every other write has run.
        graft.write(getattr(twin, self._put), state, phase=Phase.OWNERS)
        return twin


def delegate_of(value: object) -> Delegate | None:
    """Return how an object gives and takes its own state, or None if it does not say."""
    for get, put in PAIRS:
        if callable(getattr(value, get, None)) and callable(getattr(value, put, None)):
            return Delegate(get, put)
    return None
