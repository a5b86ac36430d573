"""A source over a dict of live objects: what the engine captures, plans and restores.

Which rules apply comes from the policies of the frameworks that the program has imported; importing one
here would cost seconds and change nothing.

Not promised: anything about objects that no root leads to.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unbroken.capture.environments import env_policy
from unbroken.capture.policies import default_policy
from unbroken.engine.changes import Change, Verdict, usual_verdict
from unbroken.state import dtypes, graft, walk
from unbroken.state.nodes import Array, Coded, Dict, Value
from unbroken.state.places import visit
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Blob, Component, Note, Promise, Snapshot
from unbroken.types import Fidelity

WEIGHTS = ("policy_weights", "target_weights")
ENVIRONMENTS = "env_states"
_INEXACT = {"approximate": Fidelity.APPROXIMATE, "not captured": Fidelity.NOT_CAPTURED}


def policy_of_loaded(*more: Policy) -> Policy:
    """Return the policies of every framework that is imported now, and `more`, as one."""
    return default_policy().merged(env_policy(), *more)


class GraftSource:
    """Implements `engine.source.Source` over the objects in `roots`, in their order.

    `facts` adds plain facts to every snapshot (learning rate, buffer rows, episodes). `judge` replaces
    the verdict on what a user changed. `promises` are what is known of components beforehand (the
    verdict of an environment's probe); what a walk finds can only lower them.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        policy: Policy,
        *,
        facts: Callable[[], Mapping[str, Any]] | None = None,
        judge: Callable[[Change], Verdict] | None = None,
        promises: Mapping[str, Promise] | None = None,
    ) -> None:
        self.roots = roots
        self.policy = policy
        self._facts = facts
        self._judge = judge
        self._promises = dict(promises or {})

    def capture(self) -> Snapshot:
        """Return the whole state, shared with nothing live."""
        snapshot = walk.capture(self.roots, self.policy)
        if self._facts is not None:
            snapshot.counters.update(self._facts())
        for name, promise in promises_of(snapshot).items():
            known = self._promises.get(name, promise)
            snapshot.promises[name] = promise if known.fidelity is Fidelity.EXACT else known
        return snapshot

    def skeleton(self) -> Snapshot:
        """Return the state without the contents of arrays and generators."""
        return walk.capture(self.roots, self.policy, contents=False)

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: bool = False) -> graft.Graft:
        """Lay a saved state over the roots. Touches nothing."""
        return graft.plan(saved, self.roots, self.policy, keep=keep, trusted=trusted)

    def judge(self, change: Change) -> Verdict:
        """Say what becomes of a change. Of an environment only what its constructors take is a setting;
        its other attributes are drawn anew at every start and belong to the checkpoint."""
        if self._judge is not None:
            return self._judge(change)
        if change.component == ENVIRONMENTS:
            return environment_verdict(change, setting_names(self.roots.values()))
        return usual_verdict(change)

    def volatile(self) -> frozenset[str]:
        """Return the names of attributes that hold wall-clock time."""
        return self.policy.volatile

    def sick_components(self, snapshot: Snapshot) -> list[str]:
        """Return the components whose weights hold NaN or infinity."""
        return [
            name for name in WEIGHTS if name in snapshot.components and not finite(snapshot.components[name])
        ]

    def threads(self) -> dict[str, str]:
        """Return the thread counts that PyTorch computes with, if it is in use."""
        torch = sys.modules.get("torch")
        if torch is None:
            return {}
        return {
            "torch threads": str(torch.get_num_threads()),
            "torch instruction set": str(torch.backends.cpu.get_cpu_capability()),
        }


def environment_verdict(change: Change, settings: frozenset[str]) -> Verdict:
    """Return the verdict on a change inside an environment whose constructors take `settings`."""
    if change.kind == "structure":
        gone = change.birth is not None and change.now is not None and change.untouched
        return usual_verdict(change) if gone and change.name in ("env", "venv", *settings) else Verdict.SAVED
    return usual_verdict(change) if change.name.lstrip("_") in settings else Verdict.SAVED


def setting_names(roots: Iterator[object] | Sequence[object] | Any) -> frozenset[str]:
    """Return the names of all arguments that the constructors of environments and wrappers take."""
    found: set[str] = set()
    for root in roots:
        layer: Any = root
        for _ in range(64):
            if not (hasattr(layer, "reset") and hasattr(layer, "step")):
                break
            found |= _arguments(type(layer))
            inner = getattr(layer, "__dict__", {})
            for vectored in inner.get("envs") or ():
                found |= setting_names([vectored])
            layer = inner.get("env", inner.get("venv"))
    return frozenset(found)


def _arguments(cls: type) -> set[str]:
    names: set[str] = set()
    for base in cls.__mro__[:-1]:
        if "__init__" in base.__dict__:
            names |= inspect.signature(base.__dict__["__init__"]).parameters.keys()
    return names - {"self", "args", "kwargs", "env"}


def promises_of(snapshot: Snapshot) -> dict[str, Promise]:
    """Return what each component promises: exact, unless a note says otherwise of something in it."""
    found = {name: Promise(Fidelity.EXACT) for name in snapshot.components}
    for note in snapshot.notes:
        fidelity = _INEXACT.get(note.kind)
        if fidelity is not None:
            name = _component_of(note, snapshot)
            if found[name].fidelity is Fidelity.EXACT:
                found[name] = Promise(fidelity, f"{note.place}: {note.detail}")
    return found


def _component_of(note: Note, snapshot: Snapshot) -> str:
    best, length = next(iter(snapshot.components)), -1
    for name, component in snapshot.components.items():
        for root in component.roots:
            if (note.place == root or note.place.startswith(root + "/")) and len(root) > length:
                best, length = name, len(root)
    return best


def finite(component: Component) -> bool:
    """Return whether no floating-point array of a component holds NaN or infinity."""
    return all(
        _finite(node, component) for root, value in component.roots.items() for _, node in visit(root, value)
    )


def _finite(node: Value, component: Component) -> bool:
    if isinstance(node, Array) and (dtype := dtypes.parse(node.d)).kind in "fc":
        return bool(np.isfinite(_bytes(node, component).view(dtype)).all())
    half = _bfloat16_memory(node)
    if half is not None:
        # Numpy has no such type: not finite is what has every bit of the exponent set.
        return not bool(((_bytes(half, component).view("<u2") & 0x7F80) == 0x7F80).any())
    return True


def _bytes(node: Array, component: Component) -> Blob:
    return component.blobs[node.b] if node.b >= 0 else np.frombuffer(node.data, np.uint8)


def _bfloat16_memory(node: Value) -> Array | None:
    """Return the array that holds a bfloat16 tensor, at the place where it is written."""
    if not isinstance(node, Coded) or not isinstance(node.v, Dict) or node.v.v is None:
        return None
    memory = node.v.v.get("memory")
    half = node.v.v.get("dtype") == "bfloat16" and isinstance(memory, Coded)
    return memory.v if half and isinstance(memory, Coded) and isinstance(memory.v, Array) else None
