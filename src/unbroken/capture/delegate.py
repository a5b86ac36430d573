"""Objects that say themselves what their state is: `capture`/`restore`, or `state_dict`/`load_state_dict`.

Used for objects that a person tracks and that no framework's policy describes better. What they return
is walked like everything else, and copied at once. Optimizers, networks, generators, environments and buffers that
they own and leave out of it are captured beside it, and stand in the program's object again before that takes its
state back; see `owned`. Where the program's object has none at that place, the restore is refused.

Not promised: that plain values are all of their state. Those are theirs to say.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from unbroken.capture.owned import left_out, parts_of
from unbroken.capture.torchrl import settle
from unbroken.state.nodes import Dict, Value, class_name
from unbroken.state.policy import Phase

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

PAIRS = (("capture", "restore"), ("state_dict", "load_state_dict"))


class Delegate:
    """A codec that asks the object for its state and gives it back to the same object.

    In the payload `state` is what it told; each other key is a dot and the way to a part that it left out. `named`
    are the identities of objects that are tracked by a name of their own, which are no parts.
    """

    mutable = True
    tells = True
    """What it writes is what the object tells; the object has attributes beside it."""

    def __init__(self, get: str, put: str, named: Collection[int] = ()) -> None:
        self.name = f"delegate.{get}"
        self._get = get
        self._put = put
        self._named = frozenset(named)

    def encode(self, value: Any, walk: Walk) -> Value:
        state = getattr(value, self._get)()
        fields: dict[str, Value] = {"state": walk.child("state", state)}
        for way, part in left_out(value, state, walk.policy, self._named).items():
            fields[way] = walk.child(way, part)
        return Dict(v=fields)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Dict) or payload.v is None or "state" not in payload.v:
            return graft.refuse(f"{cls} was saved without its state.", twin)
        if class_name(type(twin)) != cls or not graft.claim(twin):
            return graft.refuse(f"{cls} was saved, and the program has another object here.", twin)
        graft.register(twin)
        state = graft.value("state", payload.v["state"])
        owned = {way: node for way, node in payload.v.items() if way.startswith(".")}
        parts = parts_of(twin, graft.policy, self._named) if owned else {}
        for way, node in owned.items():
            part = parts.get(way)
            if part is None:
                graft.note_at(
                    way,
                    "error",
                    f"was saved beside the state that the object tells, and the program's has nothing at {way[1:]};"
                    " build it as before, or track it by a name of its own.",
                )
                continue
            planned = graft.value(way, node, part.value)
            if planned is not part.value and part.put is not None:
                graft.write(part.put, planned)
            elif planned is not part.value:
                graft.note_at(way, "error", "cannot take what was saved; track it by a name of its own.")
        # The values that it takes are complete only when every other write has run.
        graft.write(getattr(twin, self._put), state, phase=Phase.OWNERS)
        if cls.startswith("torchrl."):
            graft.write(settle, twin, state, phase=Phase.OWNERS)
        return twin


def delegate_of(value: object, named: Collection[int] = ()) -> Delegate | None:
    """Return how an object gives and takes its own state, or None if it does not say."""
    for get, put in PAIRS:
        if callable(getattr(value, get, None)) and callable(getattr(value, put, None)):
            return Delegate(get, put, named)
    return None
