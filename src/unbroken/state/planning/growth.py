"""What a training has made while it ran: built anew from what was saved, where the program has nothing.

Only objects of the classes that a policy calls `grown` (networks, optimizers, schedulers), and only where nothing of
the program is in the way: another network than the one that was saved stays an error. No constructor runs; what
the document does not hold (hooks) is what such an object has when it is new.

Not promised: a part that a network of the program itself has gained; the layers of a network are its setting.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unbroken.state.lookup import ClassFacts
from unbroken.state.nodes import Link, Object, Ref, class_name
from unbroken.state.places import tables_of, visit
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import Walk
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft


class Growth:
    """The part of a plan that knows what may be built. `growing`: the plan stands in something that is built."""

    def __init__(self, saved: Snapshot, twin: Walk) -> None:
        self.growing = False
        self._fixed = False
        self._saved = saved
        self._twin = twin
        self._others: dict[str, list[str]] | None = None
        self._types: dict[str, object] | None = None
        self._named: set[str] | None = None

    def allows(self, facts: ClassFacts) -> bool:
        """Whether an object of this class may be built at the present place, where the program has none."""
        return facts.grown is not None and (self.growing or not self._fixed)

    @contextmanager
    def inside(self, facts: ClassFacts, *, mine: bool) -> Generator[None]:
        """Plan what is in an object: in one of a grown class that is the program's own, nothing grows."""
        outer = self.growing, self._fixed
        if facts.grown:
            self.growing, self._fixed = not mine, mine
        try:
            yield
        finally:
            self.growing, self._fixed = outer

    @contextmanager
    def elsewhere(self, *, grows: bool) -> Generator[None]:
        """Plan what a reference leads to, or (`grows`) what is known to stand in something that is built."""
        outer = self.growing, self._fixed
        self.growing, self._fixed = self.growing or grows, False
        try:
            yield
        finally:
            self.growing, self._fixed = outer

    def known_as(self, graft: Graft, node: Object) -> object:
        """Return the program's own object for what was first met at the present place, if the program has it at
        another of its places; else MISSING."""
        if self._others is None:
            self._others = _references(self._saved)
        for place in self._others.get(graft.place, ()):
            found = self._twin.object_at(place)
            if found is not MISSING and class_name(type(found)) == node.c:
                return found
        return MISSING

    def like(self, name: str) -> object:
        """Return some object of the class of this name that the program holds, or MISSING."""
        if self._types is None:
            self._types = {}
            for value in self._twin.met():
                self._types.setdefault(class_name(type(value)), value)
        return self._types.get(name, MISSING)

    def belongs_to_grown(self, place: str) -> bool:
        """Whether what was saved at `place` has a name in a network that the program does not have."""
        if self._named is None:
            tables = tables_of(self._saved)
            self._named = {
                at for (module, _), at in tables.items() if self._twin.object_at(module) is MISSING
            }
        return place in self._named


def _references(saved: Snapshot) -> dict[str, list[str]]:
    """Return the places from which something is referred to, by the place at which it stands."""
    numbers: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    waiting: list[tuple[int, str]] = []
    for component in saved.components.values():
        for root, value in component.roots.items():
            for place, node in visit(root, value):
                if isinstance(node, Ref):
                    waiting.append((node.to, place))
                elif isinstance(node, Link):
                    if node.to != place:
                        found.setdefault(node.to, []).append(place)
                elif (number := getattr(node, "id", 0)) and type(number) is int:
                    numbers[number] = place
    for number, place in waiting:
        if number in numbers:
            found.setdefault(numbers[number], []).append(place)
    return found
