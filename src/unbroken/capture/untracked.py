"""Finds what a hand-written loop keeps in variables that no checkpoint would bring back.

Looked for are objects that exist before the loop begins and may change while it runs: arrays, tensors,
environments, modules, optimizers, generators, passes over data loaders, loaders with a generator of their own,
loaders whose worker processes outlast an epoch, the usual containers of transitions, and objects of the program's own
that hold such; and whatever else the loop's code changes (`loop_variables`), plain numbers too. What is reachable from
tracked objects counts as tracked.

Not promised: plain numbers of a loop that is no `for`; objects of a library that is not known here.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import FrameType
from typing import Any

from unbroken.capture.loop_variables import Changes, Variable, changes_itself, variables_of
from unbroken.capture.names import loop_at
from unbroken.capture.process_group import unwrapped
from unbroken.capture.uncovered import (
    UncoveredWarning,
    called_in,
    changed_by_calls,
    holds_unknown,
    is_a,
    is_container,
    is_own,
    line_of,
    members,
)
from unbroken.state.contents import attributes_in, declared, members_of, slot_of
from unbroken.state.lookup import slots_of
from unbroken.state.nodes import PLAIN
from unbroken.types import MISSING

_KINDS = (
    ("numpy", ("ndarray",)),
    ("numpy.random", ("Generator", "RandomState", "BitGenerator")),
    ("random", ("Random",)),
    ("torch", ("Tensor", "Generator")),
    ("torch.nn", ("Module",)),
    ("torch.optim", ("Optimizer",)),
    ("torch.optim.lr_scheduler", ("LRScheduler",)),
    ("gymnasium", ("Env",)),
    ("gymnasium.vector", ("VectorEnv",)),
    ("torch.utils.data.dataloader", ("_BaseDataLoaderIter",)),
    ("torch.amp.grad_scaler", ("GradScaler",)),
    ("stable_baselines3.common.buffers", ("BaseBuffer",)),
)
_ARRAYS = (("numpy", ("ndarray",)), ("torch", ("Tensor",)))
_LOADERS = ("torch.utils.data", ("DataLoader", "Sampler"))
"""What holds nothing that changes, but for a generator of its own."""
MOST_OBJECTS = 200_000
MOST_HELD = 20_000
"""So many objects that a container, or an object of the program, leads to are looked at."""


class UntrackedWarning(UserWarning):
    """A loop has state that no checkpoint brings back."""


def untracked(
    variables: Mapping[str, object],
    tracked: Callable[[], Reached],
    scratch: Iterable[object] = (),
    loop: Iterable[Variable] = (),
) -> list[str]:
    """Return the names of variables, and of attributes of objects, that hold state which no tracked object leads to,
    sorted. `tracked` is asked what they lead to only if there are variables of that kind. `scratch`: what need not
    come back; that holds for these objects and for views of them, and not for what they lead to. `loop`: what the loop
    does with its variables."""
    kinds, loaders = _loaded(_KINDS), _loaded([_LOADERS])
    ended = set(map(id, scratch))

    def is_out(value: object) -> bool:
        return (
            id(value) in ended
            or _is_layer_without_state(value)
            or (
                is_a(value, kinds)  # others may answer in their own way
                and (
                    id(_said(value, "base", value)) in ended
                    or _said(value, "grad_fn") is not None  # a loss of the loop before: nothing carries it on
                )
            )
        )

    loop = list(loop)
    # Where nothing in the loop says that it changes, an array may be a constant.
    acting = tuple(kind for kind in kinds if kind not in _loaded(_ARRAYS))
    suspects = {
        name: value
        for name, value in variables.items()
        if not name.startswith("__")
        and (is_a(value, (*kinds, *loaders)) or type(value) is deque)
        and not is_out(value)
    }
    suspects |= {
        one.name: one.value
        for one in loop
        if (one.is_changed or is_a(one.value, acting)) and not is_out(one.value)
    }
    holders = [
        one
        for one in loop
        if one.name not in suspects
        and (one.is_own or one.is_changed_inside or is_a(one.value, (list, tuple, dict)))
        and not is_out(one.value)
    ]
    if not suspects and not holders:
        return []
    known = tracked().known
    if not tracked().whole:
        holders = []  # what they hold may be known all the same

    def is_lost(value: object) -> bool:
        within = id(value) in known or (is_a(value, kinds) and _part(value, known))
        return not (within or is_out(value) or (is_a(value, loaders) and _draws_from_known(value, known)))

    forgotten = {name for name, value in suspects.items() if is_lost(value)}
    for one in holders:
        forgotten.update(_lost_in(one, _Inside(known, is_lost, acting)))
    return sorted(forgotten)


def _lost_in(holder: Variable, inside: _Inside) -> list[str]:
    """Return the names of what is lost of a container, or an object of the program: itself, or some of its attributes."""
    value, changes = holder.value, holder.changes
    if not inside.is_lost(value):
        return []
    if not holder.is_own:
        changed = holder.is_changed_inside and holds_unknown(value, inside.known)
        return [holder.name] if changed or inside.holds_lost(value) else []
    held = _held(value)
    lost = [
        name
        for name, part in held.items()
        if inside.is_lost(part)
        and (name in changes.set or _is_changed(name, part, changes, inside.known) or inside.holds_lost(part))
    ]
    is_part = any(type(part) not in PLAIN and not inside.is_lost(part) for part in held.values())
    return [f"{holder.name}.{name}" for name in lost] if is_part else [holder.name] if lost else []


def _is_changed(name: str, part: object, changes: Changes, known: Container[int]) -> bool:
    """Whether what an attribute stands for is changed where it stands."""
    if is_container(part):
        return name in changes.changed or (name in changes.items and holds_unknown(part, known))
    called = (method for of, method in changes.called if of == name)
    return is_own(part) and (
        name in changes.changed or any(changes_itself(type(part), method) for method in called)
    )


class _Inside:
    """Looks for what is lost in what containers and objects of the program hold. What it has met counts once."""

    def __init__(
        self, known: Container[int], is_lost: Callable[[object], bool], kinds: tuple[type, ...]
    ) -> None:
        self.is_lost = is_lost
        self.known = known
        self._kinds = kinds
        self._seen = set[int]()
        self._left = MOST_HELD

    def holds_lost(self, value: object) -> bool:
        """Whether it is, or leads to, something of these kinds that is lost, among the nearest `MOST_HELD` objects."""
        queue = deque([value])
        while queue:
            value = queue.popleft()
            if type(value) in PLAIN or id(value) in self.known or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if is_a(value, self._kinds):
                if self.is_lost(value):
                    return True
                continue
            held = list(islice(members(value), self._left))
            self._left -= len(held)
            queue.extend(held)
        return False


def _is_layer_without_state(value: object) -> bool:
    """Whether it is a module of PyTorch's own that has neither parameters nor buffers, such as a loss function."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    if module is None or not is_a(value, (module,)):
        return False
    own = str(type.__getattribute__(type(value), "__module__")).startswith("torch.nn.modules.")
    return own and not any(True for _ in (*module.parameters(value), *module.buffers(value)))


def _held(value: object) -> dict[str, object]:
    """Return the attributes of an object, with those data of its class that it does not have for itself."""
    held: dict[str, object] = {}
    for cls in reversed(line_of(type(value))):
        own: Mapping[str, object] = type.__getattribute__(cls, "__dict__")
        held |= {
            name: part for name, part in own.items() if type(part) in PLAIN and not name.startswith("__")
        }
    held |= {name: slot_of(value, name) for name in slots_of(type(value))}
    return {name: part for name, part in (held | dict(attributes_in(value))).items() if part is not MISSING}


def warn_of_untracked(
    frame: FrameType, tracked: Iterable[object], known: set[str], scratch: Iterable[object] = ()
) -> None:
    """Name what the loop in `frame` keeps in its variables and does not track, and what the functions that it calls
    change beside that; each once, by `known`."""
    tracked, scratch = list(tracked), list(scratch)
    reached = cache(lambda: _reachable(tracked))
    loop = loop_at(frame.f_code, frame.f_lasti)
    variables = list(variables_of(loop, frame))
    bound = loop.bound - loop.carried  # before anything reads what stands there now
    present = {name: value for name, value in frame.f_locals.items() if name not in bound}
    forgotten = untracked(present, reached, scratch, variables)
    if new := [name for name in forgotten if name not in known]:
        told = (
            f"Not in the checkpoint: {', '.join(new)}. If the loop changes them, give objects to run.track() and"
            " keep plain values in run.vars; a resumed run would start them anew."
        )
        _warn(frame, UntrackedWarning(told))
    rebound = [one.name for one in variables if one.is_rebound and id(one.value) in reached().known]
    if new := [name for name in rebound if name not in known]:
        told = (
            f"The loop binds {', '.join(new)} anew. In the checkpoint is the object that stood there before, and not"
            " what stands there at a save. Keep it in run.vars, or change the object in its place."
        )
        _warn(frame, UntrackedWarning(told))
    loaders = persistent(frame.f_locals, scratch)
    if lasting := [name for name in loaders if name not in known]:
        told = (
            f"Not in the checkpoint: the worker processes of {', '.join(lasting)}. They go on from one epoch to the"
            " next, with generators of their own, and a resumed run starts them anew: its samples come in another"
            " order. Make the loader with persistent_workers=False."
        )
        _warn(frame, UntrackedWarning(told))
    called = called_in(loop, frame)
    notes = changed_by_calls(called, reached().maybe_known, scratch) if called else []
    if changed := [note for note in notes if note.detail not in known]:
        _warn(frame, UncoveredWarning.of(changed))
    known.update(forgotten, rebound, loaders, (note.detail for note in notes))


def persistent(variables: Mapping[str, object], scratch: Iterable[object] = ()) -> list[str]:
    """Return the names of variables that hold loaders whose worker processes outlast an epoch, sorted."""
    loaders = _loaded([("torch.utils.data", ("DataLoader",))])
    ended = set(map(id, scratch))
    return sorted(
        name
        for name, value in variables.items()
        if is_a(value, loaders) and id(value) not in ended and _said(value, "persistent_workers")
    )


def _warn(frame: FrameType, told: UserWarning) -> None:
    warnings.warn_explicit(
        told,
        type(told),
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _draws_from_known(loader: Any, known: set[int]) -> bool:
    """Whether all generators that a loader holds are known; without one it draws from the global ones."""
    holders = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    generators = [getattr(holder, "generator", None) for holder in holders]
    return all(generator is None or id(generator) in known for generator in generators)


def _loaded(kinds: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[type, ...]:
    found: list[type] = []
    for module, names in kinds:
        loaded = sys.modules.get(module)
        found += [kind for name in names if isinstance(kind := getattr(loaded, name, None), type)]
    return tuple(found)


def _part(value: Any, known: set[int]) -> bool:
    """Whether the value only shows the memory of something known, or wraps a known environment or module."""
    inner = unwrapped(value)
    return any(
        id(part) in known
        for part in (_said(value, "base"), _said(value, "unwrapped"), inner)
        if part is not None
    )


def _said(value: object, name: str, default: object = None) -> object:
    """Return an attribute that an object or its class has. One that fails to say so stops no training."""
    try:
        return declared(value, name, default)
    except Exception:  # noqa: BLE001 - any code of the program
        return default


class _All:
    """Holds any identity."""

    def __contains__(self, _: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Reached:
    """What tracked objects lead to: identities; if not the `whole`, those of the nearest `MOST_OBJECTS`."""

    known: set[int]
    whole: bool

    @property
    def maybe_known(self) -> Container[int]:
        return self.known if self.whole else _All()


def _reachable(roots: Iterable[object]) -> Reached:
    seen: dict[int, object] = {}
    slots: dict[int, tuple[str, ...]] = {}  # by identity: a class that is hashed may run anything
    queue: deque[Any] = deque(roots)
    while queue and len(seen) < MOST_OBJECTS:
        value = queue.popleft()
        if id(value) in seen or isinstance(value, (type, str, bytes, int, float, type(None))):
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            queue.extend(list(dict.values(value)))  # at once: another thread may change it
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            queue.extend(members_of(value))
        queue.extend(attributes_in(value).values())
        kind = type(value)
        if id(kind) not in slots:
            slots[id(kind)] = slots_of(kind)
        queue.extend([slot_of(value, name) for name in slots[id(kind)]])
    return Reached(set(seen), whole=not queue)
