"""The generators that a process has without asking: Python's, numpy's legacy one, torch's on every device.

`GlobalGenerators` is an object to be tracked like any other; it holds nothing and stands for them all.
Each is written as the live generator object itself, so that a reference to one from elsewhere (an
environment that draws from `np.random`) comes back as that reference.

torch is never imported and CUDA is never started for a capture: what is not running has drawn nothing.
A checkpoint from a process with more devices than this one has is reported, and so is one with fewer.

Not promised: generators inside extensions that offer no state (they draw from the system's entropy).
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.state.nodes import Dict, Value
from unbroken.state.policy import Policy
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

COMPONENT = "rng_states"


class GlobalGenerators:
    """Stands for the generators of this process. All instances are equal.

    >>> roots = {"generators": GlobalGenerators()}
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"GlobalGenerators({', '.join(live_generators())})"


def live_generators(*, start: bool = False) -> dict[str, object]:
    """Return the process's generators by name: ``python``, ``numpy``, ``torch``, ``cuda:0``, …, ``mps``.

    With `start`, CUDA is started where it is available, so that its generators exist.
    """
    found: dict[str, object] = {"python": random._inst, "numpy": np.random.mtrand._rand}
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "default_generator"):  # absent, or being imported
        return found
    found["torch"] = torch.default_generator
    if start and torch.cuda.is_available():
        torch.cuda.init()
    if torch.cuda.is_initialized():
        found.update((f"cuda:{i}", g) for i, g in enumerate(torch.cuda.default_generators))
    if torch.backends.mps.is_available():
        found["mps"] = torch.mps._get_default_mps_generator()
    return found


class GlobalGeneratorsCodec:
    """Lays the saved generators over the process's own, each under its name."""

    name = "unbroken.generators"
    mutable = True

    def encode(self, value: GlobalGenerators, walk: Walk) -> Value:
        return Dict(v={name: walk.child(name, generator) for name, generator in live_generators().items()})

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        own = isinstance(twin, GlobalGenerators) and graft.claim(twin)
        result: Any = twin if own else GlobalGenerators()
        graft.register(result)
        if not isinstance(payload, Dict) or payload.v is None:
            return graft.refuse("the generators of a process need a dict.", twin)
        live = live_generators(start=any(name.startswith("cuda:") for name in payload.v))
        for name, node in payload.v.items():
            here = live.get(name, MISSING)
            if here is not MISSING:
                if graft.value(name, node, here) is not here:
                    graft.error(f"the generator {name} cannot take what was saved.")
            elif name == "torch":
                graft.error("torch's generator was saved: import torch before resuming.")
            else:
                graft.note_at(
                    name, "lost", f"the generator of {name} was saved; this process has no such device."
                )
        for name in live:
            if name not in payload.v:
                graft.note_at(name, "fresh", f"the generator of {name} was not saved and stays as it is.")
        return result


POLICY = Policy(
    components={"unbroken.capture.generators:GlobalGenerators": COMPONENT},
    codecs={"unbroken.capture.generators:GlobalGenerators": GlobalGeneratorsCodec()},
)
