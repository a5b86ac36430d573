"""Finds what a hand-written loop keeps in local variables that no checkpoint would bring back.

Looked for are objects that exist before the loop begins and change while it runs: arrays, tensors,
environments, modules, optimizers, generators, passes over data loaders, loaders with a generator of their own,
loaders whose worker processes outlast an epoch, and the usual containers of transitions. What is reachable from tracked objects counts as tracked.

Not promised: plain numbers. A local `episode_return = 0.0` looks like any constant.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

from unbroken.capture.process_group import unwrapped
from unbroken.capture.uncovered import UncoveredWarning, called_in_loop, changed_by_calls
from unbroken.state.contents import attributes_in, declared, items_of, members_of, slot_of
from unbroken.state.lookup import slots_of

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
)
_LOADERS = ("torch.utils.data", ("DataLoader", "Sampler"))
"""What holds nothing that changes, but for a generator of its own."""
MOST_OBJECTS = 200_000


class UntrackedWarning(UserWarning):
    """A loop has state that no checkpoint brings back."""


def untracked(
    variables: Mapping[str, object], tracked: Callable[[], Reached], scratch: Iterable[object] = ()
) -> list[str]:
    """Return the names of variables that hold state which no tracked object leads to, sorted. `tracked` is asked
    what they lead to only if there are variables of that kind. `scratch`: what need not come back; that holds for
    these objects and for views of them, and not for what they lead to."""
    kinds, loaders = _loaded(_KINDS), _loaded([_LOADERS])
    ended = set(map(id, scratch))
    suspects = {
        name: value
        for name, value in variables.items()
        if not name.startswith("__")
        and (isinstance(value, (*kinds, *loaders)) or type(value) is deque)
        and id(value) not in ended
        and id(declared(value, "base", value)) not in ended
        and declared(value, "grad_fn") is None  # a loss of the loop before: nothing carries it on
    }
    if not suspects:
        return []
    known = tracked().known
    return sorted(
        name
        for name, value in suspects.items()
        if id(value) not in known
        and not _part(value, known)
        and not (isinstance(value, loaders) and _draws_from_known(value, known))
    )


def warn_of_untracked(
    frame: FrameType, tracked: Iterable[object], known: set[str], scratch: Iterable[object] = ()
) -> None:
    """Name what the loop in `frame` keeps in its variables and does not track, and what the functions that it calls
    change beside that; each once, by `known`."""
    tracked, scratch = list(tracked), list(scratch)
    reached = cache(lambda: _reachable(tracked))
    forgotten = untracked(frame.f_locals, reached, scratch)
    if new := [name for name in forgotten if name not in known]:
        told = (
            f"Not in the checkpoint: {', '.join(new)}. If the loop changes them, give them to run.track()"
            " or keep them in run.vars; a resumed run would start them anew."
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
    called = called_in_loop(frame)
    notes = changed_by_calls(called, reached().maybe_known, scratch) if called else []
    if changed := [note for note in notes if note.detail not in known]:
        _warn(frame, UncoveredWarning.of(changed))
    known.update(forgotten, loaders, (note.detail for note in notes))


def persistent(variables: Mapping[str, object], scratch: Iterable[object] = ()) -> list[str]:
    """Return the names of variables that hold loaders whose worker processes outlast an epoch, sorted."""
    loaders = _loaded([("torch.utils.data", ("DataLoader",))])
    ended = set(map(id, scratch))
    return sorted(
        name
        for name, value in variables.items()
        if isinstance(value, loaders) and id(value) not in ended and declared(value, "persistent_workers")
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
        for part in (declared(value, "base"), declared(value, "unwrapped"), inner)
        if part is not None
    )


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
            queue.extend(item for _, item in items_of(value))
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            queue.extend(members_of(value))
        queue.extend(attributes_in(value).values())
        kind = type(value)
        if id(kind) not in slots:
            slots[id(kind)] = slots_of(kind)
        queue.extend([slot_of(value, name) for name in slots[id(kind)]])
    return Reached(set(seen), whole=not queue)
