"""How a walk writes a `Gym` and a `RolloutQueue`, and how a plan brings both back.

Not promised: that a walk over contents is free. It stops the servers for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unbroken.adapters.nemo_gym.trainer import restoring
from unbroken.adapters.nemo_gym.trainer.gym import Gym
from unbroken.adapters.nemo_gym.trainer.payload import CODEC, COMPONENT, payload_of, write_payload
from unbroken.adapters.nemo_gym.trainer.queue import RolloutQueue
from unbroken.state.nodes import Dict, Value, class_name
from unbroken.state.policy import Phase, Policy

if TYPE_CHECKING:
    from unbroken.adapters.nemo_gym.trainer.payload import Payload
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_INEXACT = frozenset({"drain_only", "restart_only"})


class GymCodec:
    """`Gym`. With contents the payload is that of a cut; without, what a changed setting is found by."""

    name = CODEC
    mutable = True

    def encode(self, value: Gym, walk: Walk) -> Value:
        payload = value.coordinator.capture() if walk.contents else value.coordinator.settings()
        _promise(payload, walk)
        return write_payload(payload, walk)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(twin, Gym) or class_name(type(twin)) != cls or not graft.claim(twin):
            return graft.refuse("servers of NeMo Gym were saved, and the program has none here.", twin)
        graft.register(twin)
        saved = payload_of(payload, lambda node: graft.bytes_of(node.b, node.v).tobytes())
        restoration = restoring.plan(twin.coordinator, saved, graft)
        if restoration is not None:
            # First of all: it is what may fail, and nothing of the program depends on it.
            graft.write(restoration.carry_out, phase=Phase.WORLD)
        return twin


class QueueCodec:
    """`RolloutQueue`. Its rollouts are in the ledger of its `Gym`, which is saved beside it."""

    name = f"{CODEC}.queue"
    mutable = True

    def encode(self, value: RolloutQueue, walk: Walk) -> Value:
        return Dict(v={"state": walk.child("state", value.capture())})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fields = payload.v if isinstance(payload, Dict) and payload.v is not None else {}
        if not isinstance(twin, RolloutQueue) or class_name(type(twin)) != cls or not graft.claim(twin):
            return graft.refuse("a queue of rollouts was saved, and the program has none here.", twin)
        graft.register(twin)
        node = fields.get("state")
        saved = node.v if isinstance(node, Dict) and node.v is not None else {}
        if other := twin.unlike(saved):
            graft.error(f"{other}: the saved queue would go on with other prompts.")
        state = graft.value("state", node)  # has its content only when the writes before ours have run
        graft.write(twin.restore, state, phase=Phase.GENERATORS)
        return twin


def _promise(payload: Payload, walk: Walk) -> None:
    for name, part in payload.servers.items():
        if part.status.capability in _INEXACT:
            walk.note("approximate", f"{name} is {part.status.capability}: what it holds does not come back.")
        if part.status.exclusions:
            walk.note("approximate", f"{name} leaves out {'; '.join(part.status.exclusions)}.")


POLICY = Policy(
    codecs={class_name(Gym): GymCodec(), class_name(RolloutQueue): QueueCodec()},
    components={class_name(Gym): COMPONENT},
)
