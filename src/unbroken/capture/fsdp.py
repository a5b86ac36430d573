"""Modules under FSDP2 (`fully_shard`): when they can be captured, and the few settings that change.

At rest a module holds its own shards, which are captured like any parameter; everything else that FSDP keeps
on it (hooks, streams, buffers for gathering) belongs to the process. A module is at rest after a backward
pass. After a forward pass without one (an evaluation) its root still holds the gathered parameters.

It is refused then and not put to rest here: that takes no other rank, but the next forward pass gathers
again, and would wait for ever for a rank that did not save.

Not promised: gradients that wait to be reduced (accumulation without synchronization); a save in the middle
of one is refused, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.fsdp import FSDPModule

from unbroken.errors import NotCapturable
from unbroken.state.nodes import Dict, Tuple, Value
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_SETTINGS = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")
"""What a loop that accumulates gradients switches from step to step."""


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before a module could have several
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


def _unrest(group: Any) -> tuple[str, str]:
    """Return why a group of parameters cannot be captured now, and what to do; empty if it can."""
    if group._training_state.name != "IDLE":
        return "is in the middle of a pass", "Save between two steps."
    if not group.is_sharded:
        return "holds gathered parameters", "Call reshard() on it, on every rank, before the save."
    waiting = any(
        getattr(param, "unsharded_accumulated_grad", None) is not None
        or getattr(getattr(param, "_unsharded_param", None), "grad", None) is not None
        for param in group.fsdp_params
    )
    if waiting or group._partial_reduce_output is not None:
        return "holds gradients that are not reduced yet", "Save after the last part of a batch."
    return "", ""


class FsdpCaptor:
    """Adds the settings of a module's parameter groups, and refuses a module that is not at rest."""

    def attributes(self, obj: Any) -> frozenset[str] | None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        groups = _groups(obj)
        for group in groups:
            unrest, hint = _unrest(group)
            if unrest:
                raise NotCapturable(f"{walk.place} {unrest} (FSDP).", hint=hint, place=walk.place)
        settings = [Dict(v={name: bool(getattr(group, name)) for name in _SETTINGS}) for group in groups]
        return {"fsdp": Tuple(v=[*settings])}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        groups, saved = _groups(obj), extra.get("fsdp")
        if not isinstance(saved, Tuple) or len(saved.v) != len(groups):
            graft.error("was saved with other groups of sharded parameters.")
            return
        for group, settings in zip(groups, saved.v, strict=True):
            found = settings.v if isinstance(settings, Dict) and settings.v is not None else {}
            for name in _SETTINGS:
                if isinstance(value := found.get(name), bool):
                    graft.write(setattr, group, name, value)


_CAPTOR = FsdpCaptor()


def _rule(obj: object) -> Captor | None:
    return _CAPTOR if isinstance(obj, FSDPModule) else None


POLICY = Policy(
    # Under these names, which are drawn anew in every process, FSDP keeps its own objects on a module.
    skip={"torch.nn.modules.module:Module": frozenset({STATE_KEY, REGISTRY_KEY})},
    captors=(_rule,),
)
