"""Finds what a training has made while it ran, and what no start of the script could go on with: named at the
first save that holds it.

A restore lays a state over what the script has built. What is only made later has nothing there to be laid over.
Plain values, containers, objects of the program's classes, networks, optimizers and schedulers are built; an
environment, a whole model, a function or a generator is not. It is compared with how this process began, before
anything was restored.

Not promised: that everything is found which a start would refuse; what is in other processes.
"""

from __future__ import annotations

import re
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from unbroken.capture.uncovered import KIND, SHOWN, UncoveredWarning
from unbroken.state.graft import TRUSTED
from unbroken.state.lookup import ClassFacts, Kind, lookup
from unbroken.state.nodes import Class, Function, Method, Value, class_name
from unbroken.state.places import tables_of, visit
from unbroken.state.planning.values import VALUE_TYPES
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Note, Snapshot

if TYPE_CHECKING:
    from unbroken.state.walk import Walk

MADE_LATER = "made while training ran; a start of this script has nothing there and cannot build it"
_NO_LONGER = frozenset({"weakref:ReferenceType", "weakref:WeakMethod", "builtins:weakproxy"})
"""External classes whose objects are of no use once they were left out."""
_NUMBER = re.compile(r"/#?\d+")


class MadeLaterWarning(UncoveredWarning):
    """A training has made something that no start of the script has, and that cannot be built from a checkpoint."""

    @classmethod
    def of_later(cls, notes: Iterable[Note]) -> MadeLaterWarning:
        """Return the warning that names it."""
        told = [note.place + note.detail.removeprefix(MADE_LATER) for note in notes]
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        return cls(
            f"Made while training ran: {', '.join(told[:SHOWN])}{more}. A start of this script cannot"
            " build it, so what was saved of it cannot come back. Where the script has a function of its own, a resume"
            " goes on with that and is no longer exact; elsewhere it needs allow_changed= to go on without it. Make it"
            " before training begins."
        )


class MadeLater:
    """Compares what captures meet with how the process began."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._facts = lookup(policy).facts
        self._began = False
        self._kinds: dict[str, str] = {}
        """Place -> class, of what is only built in some cases."""
        self._objects: dict[int, weakref.ref[Any]] = {}
        self._names: frozenset[tuple[str, str]] = frozenset()
        """Module and name, of what networks list."""
        self._callables: frozenset[str] = frozenset()
        self._classes: frozenset[str] = frozenset()
        self._noted: set[Note] = set()
        self._told: set[tuple[str, str]] = set()

    def begin(self, walk: Walk) -> None:
        """Take what `walk` has met as the beginning, if there was none."""
        if self._began:
            return
        self._began = True
        for value, _, place in self._special(walk):
            self._kinds[place] = class_name(type(value))
            try:
                self._objects[id(value)] = weakref.ref(value)
            except TypeError:  # of a class without room for it
                continue
        self._names = frozenset(tables_of(walk.snapshot))
        self._callables = frozenset(walk.callables)
        self._classes = frozenset(walk.classes)
        self.heard(walk.snapshot.notes)

    def look(self, walk: Walk) -> list[Note]:
        """Return a note on each thing that was made since and that a start could not build."""
        found = [
            *self._unbuilt(walk),
            *self._unknown_code(walk),
            *self._unknown_classes(walk),
            *self._gone(walk.snapshot),
        ]
        places = {note.place for note in found}
        return [note for note in dict.fromkeys(found) if places.isdisjoint(_ancestors(note.place))]

    def heard(self, notes: Iterable[Note]) -> None:
        """Take it that a person knows what these say."""
        self._noted.update(notes)
        self._told.update(map(_key, notes))

    def warn(self, notes: Iterable[Note], later: Iterable[Note]) -> None:
        """Name, once, the `later` ones, and what other `notes` say since the beginning that is in no checkpoint."""
        notes, later = list(notes), list(later)
        if made := self._new(note for note in later if note.detail.startswith(MADE_LATER)):
            warnings.warn(MadeLaterWarning.of_later(made), stacklevel=3)
        if lost := self._new(note for note in [*notes, *later] if note.kind in (KIND, "outside")):
            warnings.warn(UncoveredWarning.of(lost), stacklevel=3)
        if roughly := self._new(note for note in notes if note.kind == "approximate"):
            told = "; ".join(f"{note.place}: {note.detail}" for note in roughly[:SHOWN])
            warnings.warn(UncoveredWarning(f"Comes back only approximately: {told}"), stacklevel=3)

    def _new(self, notes: Iterable[Note]) -> list[Note]:
        new: dict[tuple[str, str], Note] = {}
        for note in notes:
            if (key := _key(note)) not in self._told:
                new.setdefault(key, note)
        self._told.update(new)
        return list(new.values())

    def _special(self, walk: Walk) -> Iterator[tuple[Any, ClassFacts, str]]:
        for value, tell in walk.places():
            facts = self._facts(type(value))
            if facts.structural or facts.remade:
                yield value, facts, tell()

    def _unbuilt(self, walk: Walk) -> Iterator[Note]:
        named = {
            place
            for component in walk.snapshot.components.values()
            for module, table in component.tensors.items()
            if module not in self._kinds  # what a network of the script itself has gained is not built
            for place in table.values()
        }
        renamed = {place for name, place in tables_of(walk.snapshot).items() if name[0] in self._kinds}
        renamed -= {place for name, place in tables_of(walk.snapshot).items() if name in self._names}
        met = {place: (value, facts) for value, facts, place in self._special(walk)}
        late: dict[str, bool] = {}
        """Place -> whether it can be built, of what was made later."""
        for place in sorted(met, key=lambda place: place.count("/")):
            value, facts = met[place]
            known = self._knows(value) and place not in renamed
            if self._kinds.get(place) == facts.name or known or facts.remade:
                if facts.remade and self._kinds.get(place) != facts.name:
                    late[place] = True
                continue
            around = next((at for at in _ancestors(place) if at in met), None)
            if around in late and not late[around]:
                late[place] = False
                continue
            why = self._obstacle(place, value, facts, around, late, named)
            late[place] = why is None
            if why is not None:
                yield Note(KIND, place, f"{MADE_LATER}{why}")

    def _obstacle(
        self,
        place: str,
        value: Any,
        facts: ClassFacts,
        around: str | None,
        late: dict[str, bool],
        named: set[str],
    ) -> str | None:
        """Return why a start could not build it: in words, or empty where it never can; None if it could."""
        if facts.kind is Kind.CODED:
            return None if late.get(around or "") or place in named else ""
        if facts.grown is None or self._kinds.get(place):
            return ""
        fixed = around is not None and around not in late and self._is_grown(around)
        if fixed or not self._is_loaded(facts.name):
            return ""
        why = facts.grown.obstacle(value)
        return f" ({why})" if why else None

    def _is_grown(self, place: str) -> bool:
        name = self._kinds.get(place, "")
        found = _class_of(name)
        return found is not None and self._facts(found).grown is not None

    def _knows(self, value: object) -> bool:
        known = self._objects.get(id(value))
        return known is not None and known() is value

    def _unknown_code(self, walk: Walk) -> Iterator[Note]:
        names = {
            name
            for name in walk.callables.keys() - self._callables
            if name not in VALUE_TYPES
            and name not in self._policy.functions
            and not isinstance(walk.callables[name], type(sys))
        }
        if not names:
            return
        methods = {name.rpartition(".")[2] for name in names}
        for component in walk.snapshot.components.values():
            for root, node in component.roots.items():
                for place, found in visit(root, node):
                    if _name(found) in names or (isinstance(found, Method) and found.n in methods):
                        yield Note(KIND, place, MADE_LATER)

    def _unknown_classes(self, walk: Walk) -> Iterator[Note]:
        new = {name for name in walk.classes.keys() - self._classes if not self._is_loaded(name)}
        if not new:
            return
        for value, tell in walk.places():
            facts = self._facts(type(value))
            if facts.name in new and not facts.structural:
                yield Note(KIND, tell(), MADE_LATER)

    def _is_loaded(self, name: str) -> bool:
        """Whether a start could find the class of this name, and may build objects of it."""
        if name in self._classes:
            return True
        cls = _class_of(name)
        if cls is None or hasattr(cls, "__del__"):
            return False
        package = cls.__module__.partition(".")[0]
        own = {known.partition(":")[0].partition(".")[0] for known in self._classes}
        return package in TRUSTED | self._policy.trusted | own

    def _gone(self, snapshot: Snapshot) -> Iterator[Note]:
        for note in snapshot.notes:
            if note.kind == "external" and note.detail in _NO_LONGER and note not in self._noted:
                yield Note(KIND, note.place, note.detail)


def _key(note: Note) -> tuple[str, str]:
    """Return what two notes have in common that are told once: the members of one container are alike."""
    return _NUMBER.sub("/#", note.place), note.detail


def _name(node: Value) -> str:
    return node.q if isinstance(node, (Function, Class)) else ""


def _class_of(name: str) -> type | None:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part) if found is not None else None
    return found if isinstance(found, type) else None


def _ancestors(place: str) -> Iterator[str]:
    while "/" in place:
        place = place.rpartition("/")[0]
        yield place
