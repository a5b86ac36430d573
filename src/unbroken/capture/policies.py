"""The policy for what a process uses: plain Python and numpy always, a framework once it is imported.

Asking never imports a framework. What an adapter knows of its own framework it merges on top.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from types import ModuleType

from unbroken.capture import generators, numpy_random, rings
from unbroken.errors import InternalError
from unbroken.state.policy import Policy

FRAMEWORKS: dict[str, str] = {
    "torch": "unbroken.capture.torch",
    "torch.utils.data": "unbroken.capture.loaders",
    "torch.distributed.device_mesh": "unbroken.capture.mesh",
    "torch.distributed.tensor": "unbroken.capture.dtensor",
    "torch.distributed.fsdp": "unbroken.capture.fsdp",
    "gymnasium.vector.async_vector_env": "unbroken.capture.async_vectors",
}
"""Framework, or part of one -> our module that holds its `POLICY`, in the order in which they are merged."""


def describe(module: str, by: str) -> None:
    """Have the policy of the module `by` merged where `module` is imported: for an adapter that has classes
    of its own, which a person may hand to any other."""
    FRAMEWORKS[module] = by


@lru_cache(maxsize=16)
def _policy_for(frameworks: tuple[str, ...]) -> Policy:
    # Cached, because lookups are remembered for each policy object.
    described: list[Policy] = []
    for framework in frameworks:
        module: ModuleType = importlib.import_module(FRAMEWORKS[framework])
        policy: object = getattr(module, "POLICY", None)
        if not isinstance(policy, Policy):
            raise InternalError(f"{module.__name__} has no policy.")
        described.append(policy)
    return numpy_random.POLICY.merged(generators.POLICY, rings.POLICY, *described)


def default_policy() -> Policy:
    """Return the policy for everything that is imported now. The same object while that stays so."""
    return _policy_for(tuple(name for name in FRAMEWORKS if name in sys.modules))
