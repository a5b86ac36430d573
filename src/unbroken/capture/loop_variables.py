"""Which variables a loop changes: read from its code, nothing is run.

It changes what it carries from one iteration to the next (`total += reward`, `obs = next_obs`), the containers that were
there before it and that its body changes, iterators that it asks for their next, and attributes of objects of the
program's own: those that it sets, or that methods change which it calls.

Not promised: what a function changes that it hands a variable to; what a method changes by way of another object's
methods. An attribute that is set anew in each iteration before it is read counts as changed.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from unbroken.capture.names import ASSIGNED, CHANGED, PASSED, USED, Loop, Use, all_uses
from unbroken.capture.uncovered import CHANGES, CONTAINERS, functions_in, is_a, is_kind, is_program, line_of

_HANDED_ON = frozenset({"__call__", "__next__", "__iter__"})
"""Methods that may be called of an object that is called or handed on."""


class Variable(NamedTuple):
    """One that was there before a loop, and that the loop may read as it was."""

    name: str
    value: object
    is_changed: bool
    """Whether it is bound anew, or changed where it stands; of objects of the program see `attributes`."""
    is_rebound: bool
    """Whether it may come to stand for another object."""
    attributes: frozenset[str]
    """Of an object of the program: its attributes that are changed."""

    @property
    def is_own(self) -> bool:
        """Whether the value is an object of a class of the program."""
        return is_own(self.value)


def variables_of(loop: Loop, frame: types.FrameType) -> Iterator[Variable]:
    """Yield the variables, sorted by name, of the loop which `frame` is about to enter."""
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for name in sorted(loop.carried):
        space: Mapping[str, object] = frame.f_locals if name in own else frame.f_globals
        if name in space and not name.startswith("__"):
            value = space[name]
            acts = [use for use in loop.acts if use.name == name and use.scope != "attribute"]
            yield Variable(
                name,
                value,
                name in loop.bound or _is_changed(value, acts),
                name in loop.rebound,
                _attributes(type(value), acts, loop) if is_own(value) else frozenset(),
            )


def is_own(value: object) -> bool:
    """Whether a value is an object of a class that the program has made."""
    return is_program(type.__getattribute__(type(value), "__module__"))


def _is_changed(value: object, acts: Collection[Use]) -> bool:
    if is_a(value, CONTAINERS) or is_kind(value, "torch", "Tensor"):
        return any(map(_changes, acts))
    return _is_iterator(value) and any(use.act == PASSED for use in acts)


def _changes(use: Use) -> bool:
    return use.act == CHANGED or (use.act == USED and use.attribute in CHANGES)


def _is_iterator(value: object) -> bool:
    """Whether it is an iterator of Python's own: what a library's does when it is asked, nobody knows."""
    kind = type(value)
    made = type.__getattribute__(kind, "__module__") in ("builtins", "itertools")
    return made and "__next__" in type.__getattribute__(kind, "__dict__")


def _attributes(kind: type, acts: Collection[Use], loop: Loop) -> frozenset[str]:
    """Return the attributes of an object of this class that a loop changes which does `acts` with it."""
    called = {use.attribute for use in acts if use.act == USED}
    changed = {use.attribute for use in acts if use.act == ASSIGNED and use.attribute}
    changed |= {
        use.name
        for use in loop.acts
        if use.scope == "attribute" and use.name in called and (_changes(use) or _sets_in(use))
    }
    if any(use.act == PASSED for use in acts):
        called |= _HANDED_ON
    if any(use.act == CHANGED for use in acts):
        called |= {"__setitem__", "__delitem__"}
    open_, seen = set(called), set[str]()
    while open_:
        name = open_.pop()
        seen.add(name)
        for function in _methods(kind, name):
            itself = function.__code__.co_varnames[:1]  # however `self` is called
            for use in all_uses(function.__code__):
                if use.scope == "attribute" and (_changes(use) or _sets_in(use)):
                    changed.add(use.name)
                elif use.name in itself and use.act == ASSIGNED:
                    changed.add(use.attribute)
                elif use.name in itself and use.attribute not in seen:
                    open_.add(use.attribute)
    return frozenset(changed)


def _sets_in(use: Use) -> bool:
    """Whether an attribute of the value is set."""
    return use.act == ASSIGNED and use.attribute != ""


def _methods(kind: type, name: str) -> Iterator[types.FunctionType]:
    for cls in line_of(kind):
        held = type.__getattribute__(cls, "__dict__")
        if name in held:
            yield from functions_in(held[name])
            return
