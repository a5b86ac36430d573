"""Which variables a loop changes: read from its code, nothing is run.

It changes what it carries from one iteration to the next (`total += reward`, `obs = next_obs`), the containers that were
there before it and that its body changes, iterators that it asks for their next, and attributes of objects of the
program's own: those that it sets, or that methods change which it calls.

Not promised: what a function changes that it hands a variable to; what a method changes by way of another object's
methods; what is changed through another name for a part of it (`row = rows[0]; row.append(x)`). An attribute that is
set anew in each iteration before it is read counts as changed.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from unbroken.capture.names import ASSIGNED, CHANGED, ITEM_USED, PASSED, USED, Loop, Use, all_uses
from unbroken.capture.uncovered import CHANGES, functions_in, is_container, is_own, line_of

_HANDED_ON = frozenset({"__call__", "__next__", "__iter__"})
"""Methods that may be called of an object that is called or handed on."""


class Changes(NamedTuple):
    """What a loop does with the attributes of an object of the program."""

    set: frozenset[str] = frozenset()
    """Those that come to stand for another value."""
    changed: frozenset[str] = frozenset()
    """Those whose value changes where it stands, if it is a container, an array or an object of the program."""
    items: frozenset[str] = frozenset()
    """Those of which an item changes where it stands."""
    called: frozenset[tuple[str, str]] = frozenset()
    """Attributes with the methods of theirs that are called."""


class Variable(NamedTuple):
    """One that was there before a loop, and that the loop may read as it was."""

    name: str
    value: object
    is_changed: bool
    """Whether it is bound anew, or changed where it stands; of objects of the program see `changes`."""
    is_changed_inside: bool
    """Whether an item of it is changed where it stands."""
    is_rebound: bool
    """Whether it may come to stand for another object."""
    changes: Changes

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
                is_changed=name in loop.bound or _is_changed(value, acts),
                is_changed_inside=is_container(value) and any(map(_changes_item, acts)),
                is_rebound=name in loop.rebound,
                changes=_changes_of(type(value), acts, loop) if is_own(value) else Changes(),
            )


def changes_itself(kind: type, method: str) -> bool:
    """Whether a method changes what an object of this class holds, as far as its own code does."""
    changes = _changes_by(kind, [method], set(), set())
    return bool(changes.set or changes.changed)


def _is_changed(value: object, acts: Collection[Use]) -> bool:
    if is_container(value):
        return any(map(_changes, acts))
    return _is_iterator(value) and any(use.act == PASSED for use in acts)


def _changes(use: Use) -> bool:
    return use.act == CHANGED or (use.act == USED and use.attribute in CHANGES)


def _changes_item(use: Use) -> bool:
    return use.act == ITEM_USED and use.attribute in CHANGES


def _is_iterator(value: object) -> bool:
    """Whether it is an iterator of Python's own: what a library's does when it is asked, nobody knows."""
    kind = type(value)
    module = type.__getattribute__(kind, "__module__")
    made = type(module) is str and module in ("builtins", "itertools")
    return made and "__next__" in type.__getattribute__(kind, "__dict__")


def _changes_of(kind: type, acts: Collection[Use], loop: Loop) -> Changes:
    """Return what a loop changes of an object of this class with which it does `acts`."""
    called = {use.attribute for use in acts if use.act == USED}
    through = {use for use in loop.acts if use.scope == "attribute" and use.name in called}
    if any(use.act == PASSED for use in acts):
        called |= _HANDED_ON
    if any(use.act == CHANGED for use in acts):
        called |= {"__setitem__", "__delitem__"}
    return _changes_by(
        kind, called, {use.attribute for use in acts if use.act == ASSIGNED and use.attribute}, through
    )


def _changes_by(kind: type, methods: Iterable[str], set_: set[str], through: set[Use]) -> Changes:
    """Return what methods of these names do, and those that they call in turn, beside what is done already: attributes
    that are `set_`, and what is done `through` attributes."""
    open_, seen = set(methods), set[str]()
    while open_:
        name = open_.pop()
        seen.add(name)
        for function in _methods(kind, name):
            itself = function.__code__.co_varnames[:1]  # however `self` is called
            for use in _uses_of(function.__code__):
                if use.scope == "attribute":
                    through.add(use)
                elif use.name in itself and use.act == ASSIGNED:
                    set_.add(use.attribute)
                elif use.name in itself and use.attribute not in seen:
                    open_.add(use.attribute)
    return Changes(
        set=frozenset(set_),
        changed=frozenset(
            use.name for use in through if _changes(use) or (use.act == ASSIGNED and use.attribute)
        ),
        items=frozenset(use.name for use in through if _changes_item(use)),
        called=frozenset((use.name, use.attribute) for use in through if use.act == USED),
    )


@lru_cache(maxsize=4096)
def _uses_of(code: types.CodeType) -> tuple[Use, ...]:
    return tuple(dict.fromkeys(all_uses(code)))


def _methods(kind: type, name: str) -> Iterator[types.FunctionType]:
    """Yield the functions behind a name, those that it covers in other classes too: it may call them."""
    for cls in line_of(kind):
        held = type.__getattribute__(cls, "__dict__")
        if name in held:
            yield from functions_in(held[name])
