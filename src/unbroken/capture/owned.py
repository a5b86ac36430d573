"""Finds what an object owns and what the state that it tells leaves out.

Looked for are optimizers, schedules of them, networks, values that are learned, generators, environments, replay
buffers and deques: in its attributes, in containers, in the objects of those, and in hooks (methods, partials,
variables of closures). Of a library's own class only optimizers count that have gathered something: what else it
leaves out, its makers know.

Invariant: what the object has told is no finding. It has, if the very memory of a part is in what it returned.

Nothing of ours is looked through: an object that leads back to its run, as an adapter's does, owns none of that.

Not promised: plain numbers and containers, which are the object's to tell; what lies behind 10 000 objects; the
memory of a part of which a copy was returned, which is then saved twice.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from unbroken.capture.rings import is_buffer
from unbroken.capture.uncovered import GENERATORS, is_program
from unbroken.state.contents import items_of, members_of, slot_of
from unbroken.state.lookup import ClassFacts, Kind, lookup
from unbroken.state.nodes import PLAIN
from unbroken.state.policy import Policy
from unbroken.types import MISSING

MOST_OBJECTS = 10_000
_PARTS = (
    ("torch.optim.lr_scheduler", "LRScheduler"),
    ("torch.nn", "Module"),
    ("torch", "Generator"),
    ("gymnasium", "Env"),
    ("gymnasium.vector", "VectorEnv"),
)
_CONTAINERS = (Kind.DICT, Kind.LIST, Kind.TUPLE, Kind.DEQUE)
_BRANCHES = (*_CONTAINERS, Kind.FUNCTION, Kind.METHOD, Kind.PARTIAL)


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that an object owns. `put` puts another one in its place, where that can be done."""

    value: Any
    put: Callable[[Any], None] | None


def parts_of(owner: object, policy: Policy, named: Collection[int] = ()) -> dict[str, Part]:
    """Return what `owner` owns, by the way that leads there, the nearest first. Objects of the identities `named`
    have an owner of their own."""
    program = is_program(type(owner).__module__)
    found: dict[str, Part] = {}

    def meet(key: str, value: object) -> bool:
        return id(value) not in named and not _is_part(key, value, policy)

    for way, key, value, put in _reach(owner, policy, meet):
        if id(value) in named or not _is_part(key, value, policy):
            continue
        if program or _is_kind(value, "torch.optim", "Optimizer"):
            found[way] = Part(value, put)
    return found


def left_out(owner: object, state: object, policy: Policy, named: Collection[int] = ()) -> dict[str, Any]:
    """Return those parts of `owner` that are not in the `state` that it has told."""
    parts = parts_of(owner, policy, named)
    if not parts:
        return {}
    told, known = _memory(state), {id(state)}
    for _, _, value, _ in _reach(state, policy):
        known.add(id(value))
        told |= _memory(value)
    program = is_program(type(owner).__module__)
    return {
        way: part.value
        for way, part in parts.items()
        if id(part.value) not in known and not _is_told(part.value, told, policy, unsure=not program)
    }


def _is_told(part: object, told: set[Hashable], policy: Policy, *, unsure: bool) -> bool:
    facts = lookup(policy).facts(type(part))
    if facts.tabled:
        values = list(policy.tables[facts.tabled](part).values())
    else:
        is_optimizer = _is_kind(part, "torch.optim", "Optimizer")
        start: object = getattr(part, "state", {}) if is_optimizer else part
        values = [start, *(value for _, _, value, _ in _reach(start, policy))]
    needed: set[Hashable] = set().union(*map(_memory, values))
    return needed <= told if needed else unsure


def _reach(
    start: object, policy: Policy, enters: Callable[[str, object], bool] = lambda key, value: True
) -> Iterator[tuple[str, str, Any, Callable[[Any], None] | None]]:
    """Yield what has an identity below `start`: the way, its last key, the value and what replaces it. Below what is
    not to be entered nothing is looked for."""
    facts = lookup(policy).facts
    seen: dict[int, object] = {id(start): start}
    queue: deque[tuple[str, Any]] = deque([("", start)])
    while queue:
        way, holder = queue.popleft()
        for key, value, put in _inside(holder, facts(type(holder))):
            if type(value) in PLAIN or id(value) in seen:
                continue
            if len(seen) == MOST_OBJECTS:
                return
            seen[id(value)] = value
            below = f"{way}.{key}"
            yield below, key, value, put
            branches = facts(type(value)).kind in _BRANCHES or _is_object(facts(type(value)))
            if branches and not type(value).__module__.startswith("unbroken.") and enters(key, value):
                queue.append((below, value))


def _is_object(facts: ClassFacts) -> bool:
    """Whether objects of a class have attributes to look at: those that tell their own state have, too."""
    return facts.kind is Kind.OBJECT or getattr(facts.codec, "tells", False)


def _inside(holder: Any, facts: ClassFacts) -> Iterator[tuple[str, Any, Callable[[Any], None] | None]]:
    kind = facts.kind
    if kind is Kind.DICT:
        for key, value in list(islice(items_of(holder), MOST_OBJECTS)):
            yield str(key), value, functools.partial(holder.__setitem__, key)
    elif kind in _CONTAINERS:
        for i, value in enumerate(islice(members_of(holder), MOST_OBJECTS)):
            yield str(i), value, None if kind is Kind.TUPLE else functools.partial(holder.__setitem__, i)
    elif kind is Kind.METHOD:
        yield "__self__", holder.__self__, None
    elif kind is Kind.PARTIAL:
        yield "func", holder.func, None
        yield "args", holder.args, None
        yield "keywords", holder.keywords, None
    elif isinstance(holder, types.FunctionType):
        for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents, None
            except ValueError:  # not assigned yet
                continue
    if kind not in _CONTAINERS and not _is_object(facts):
        return
    attributes: dict[str, Any] = holder.__dict__ if type(holder).__dictoffset__ else {}
    for name in sorted(attributes.keys() - facts.skip):
        yield name, attributes[name], functools.partial(attributes.__setitem__, name)
    for name in facts.slots:
        if name not in facts.skip and (held := slot_of(holder, name)) is not MISSING:
            yield name, held, functools.partial(object.__setattr__, holder, name)


def _is_part(key: str, value: object, policy: Policy) -> bool:
    if isinstance(value, GENERATORS) or type(value) is deque or _is_kind(value, "torch.optim", "Optimizer"):
        return True
    if any(_is_kind(value, module, name) for module, name in _PARTS):
        return True
    if _is_kind(value, "torch", "Tensor"):
        learned: Any = value
        return bool(learned.requires_grad and learned.is_leaf)
    return lookup(policy).facts(type(value)).kind is Kind.OBJECT and is_buffer(key, value)


def _memory(value: Any) -> set[Hashable]:
    """Return what the values of an array or a tensor lie in."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return {("array", id(value))} if value.size else set()
    if _is_kind(value, "torch", "Tensor") and value.numel():
        try:
            return {("tensor", value.untyped_storage().data_ptr())}
        except (NotImplementedError, RuntimeError):  # sparse, or of a subclass without memory of its own
            return {("tensor", id(value))}
    return set()


def _is_kind(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
