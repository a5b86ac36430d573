"""What data-parallel training keeps the same on every rank, and what each rank has for itself all the same.

DistributedDataParallel gives all ranks the same gradients, so parameters and optimizers stay the same. Buffers of a
module (means of a BatchNorm) it brings into line only as a forward pass begins: at the top of a step each rank has
those of its own part of the data. A scheduler that follows a metric follows what its rank has measured.

Not promised: that gradients that are being gathered over several steps (under `no_sync()`) are recognized. Nothing
in a module tells before it is too late; a save in between says that they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from unbroken.engine.world import World
from unbroken.repo.coordinator import Ranks

WEIGHTS = frozenset({"policy_weights", "target_weights"})
SCHEDULERS = frozenset({"scheduler_states"})


def own_components(objects: Iterable[object], *, gathers: bool = False) -> frozenset[str]:
    """Return the components of these objects that each rank has for itself under data-parallel training.

    `gathers`: gradients are kept from one clean point to the next, which are each rank's own until they are summed.
    torch is not imported for the question.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return frozenset()
    found = WEIGHTS if gathers else frozenset()
    for value in objects:
        if isinstance(value, torch.nn.Module):
            module: Any = value
            if any(buffer is not None for buffer in module._buffers.values()):
                found |= WEIGHTS
        elif isinstance(value, torch.optim.lr_scheduler.ReduceLROnPlateau):
            found |= SCHEDULERS
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWorld(World):
    """A world of which `own` is each rank's own, although it would be the same by `replicated`.

    It is written for each rank, and not compared. A rank that a checkpoint does not know still begins with what
    rank 0 had of it: what is replicated must not begin anew on one rank alone.
    """

    own: frozenset[str] = frozenset()

    @property
    def ranks(self) -> Ranks:
        # Named, since slots make another class of this one than the one that a bare `super()` would look for.
        everybodys = super(SharedWorld, self).ranks
        return replace(everybodys, replicated=everybodys.replicated - self.own)


def shared_world(world: World, own: frozenset[str]) -> World:
    """Return this world with `own` as each rank's own. Every rank calls it with the same components."""
    given: dict[str, Any] = {field.name: getattr(world, field.name) for field in fields(World)}
    return SharedWorld(**given, own=own)
