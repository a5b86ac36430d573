"""Finds what a training changes and no checkpoint holds: named as early as the first save.

Whatever the roots lead to is captured. Beside it stands what only code leads to: globals of the script, attributes
of its classes, variables of functions around a method. Looked at is the code of the program itself, and of no
library: the methods of the objects that are captured, functions among them, and what these call in the program,
behind decorators too. Where a function was written its globals tell: what a library's decorator makes, or the
methods that `dataclasses` writes, take the names of the program.
Named is what this code changes (`SEEN.append`, `global best`, `Mine.count += 1`), draws from or steps, and what
no root leads to.

Invariant: nothing is run and nothing is changed to find it, not even what a class has put in the place of
`__class__`, `__dict__` or `isinstance`.

Not promised: what code does under a name made at run time; code of environments and of all that they hold, which
are tried out as a whole, with a verdict of their own; a constant that is only read is no state, whatever it is;
functions behind the first `MOST_FUNCTIONS`, and then that is said.
"""

from __future__ import annotations

import functools
import random
import sys
import sysconfig
import types
import warnings
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from unbroken.capture.environments import known
from unbroken.capture.names import ASSIGNED, CHANGED, ITEM_USED, PASSED, READ, Loop, Use, uses
from unbroken.state.contents import attributes_in, members_of
from unbroken.state.nodes import PLAIN
from unbroken.state.snapshot import Note
from unbroken.state.walk import Walk

KIND = "not captured"
CUT_SHORT = "cut short"
"""Kind of the note that says that not everything was looked at."""
SHOWN = 10
MOST_FUNCTIONS = 2000
"""So many functions of the program are looked at."""

CONTAINERS = (list, dict, set, deque, bytearray, np.ndarray)
GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
_STEPPED = frozenset({"reset", "step", "step_async", "step_wait", "env_method"})
_DOES = {
    ("gymnasium", "Env"): _STEPPED,
    ("gymnasium.vector", "VectorEnv"): _STEPPED,
    ("stable_baselines3.common.vec_env", "VecEnv"): _STEPPED,
    ("stable_baselines3.common.base_class", "BaseAlgorithm"): frozenset({"learn", "train"}),
    ("stable_baselines3.common.buffers", "BaseBuffer"): frozenset({"add", "extend", "reset"}),
    ("torch.optim", "Optimizer"): frozenset({"step"}),
    ("torch.optim.lr_scheduler", "LRScheduler"): frozenset({"step"}),
}
"""Class -> those of its methods that change it."""
CHANGES = frozenset({
    "append", "appendleft", "add", "extend", "extendleft", "insert", "update", "setdefault", "pop", "popitem",
    "popleft", "remove", "discard", "clear", "sort", "reverse", "rotate", "fill", "resize", "put", "itemset",
    "partition", "difference_update", "intersection_update", "symmetric_difference_update",
    "add_", "mul_", "copy_", "zero_", "fill_",
})  # fmt: skip
"""Methods that change a container or an array."""


class UncoveredWarning(UserWarning):
    """Something that belongs to the training is in no checkpoint."""

    @classmethod
    def of(cls, notes: Iterable[Note], environments: Collection[str] = ()) -> UncoveredWarning:
        """Return the warning that names it. `environments`: the places of all of them."""
        lost = list(notes)
        cut = [f"At {note.place} {note.detail}." for note in lost if note.kind == CUT_SHORT]
        told = list(dict.fromkeys(f"{note.place}: {note.detail}" for note in lost if note.kind != CUT_SHORT))
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        if told:
            cut.insert(
                0,
                f"Not in the checkpoint: {'; '.join(told[:SHOWN])}{more}. A resumed run starts them anew."
                f" {_advice([note.place for note in lost if note.kind != CUT_SHORT], environments)}",
            )
        return cls(" ".join(cut))


def _advice(places: Iterable[str], environments: Collection[str]) -> str:
    """Return what a person can do about what is lost at these places."""
    inside = {place: _is_in(place, environments) for place in places}
    ways: list[str] = []
    if any(inside.values()):
        ways.append(
            "Say how an environment's state is read and written with unbroken.register_env_capturer, if it is needed."
        )
    if not all(inside.values()):
        callbacks = any(place.startswith("callbacks/") for place, within in inside.items() if not within)
        holder = "the callback or of another object" if callbacks else "an object"
        ways.append(f"Keep what has to come back in an attribute of {holder} that is saved.")
    return " ".join(ways)


def warn_of(notes: Iterable[Note], environments: Collection[str] = ()) -> None:
    """Name what no checkpoint has; nothing where that is nothing. `environments`: the places of all of them."""
    lost = [note for note in notes if note.kind in (KIND, "outside", CUT_SHORT)]
    if lost:
        warnings.warn(UncoveredWarning.of(lost, environments), stacklevel=2)


def environment_places(walk: Walk) -> frozenset[str]:
    """Return where a walk has met environments."""
    return frozenset(place() for value, place in walk.places() if _is_environment(value))


def _is_environment(value: object) -> bool:
    return is_kind(value, "gymnasium", "Env") or is_kind(value, "pettingzoo", "ParallelEnv")


def _is_in(place: str, environments: Collection[str]) -> bool:
    """Whether a place is that of an environment, or inside of one."""
    while place:
        if place in environments:
            return True
        place = place.rpartition("/")[0]
    return False


def uncovered(walk: Walk, scratch: Iterable[object] = ()) -> list[Note]:
    """Return a note on each thing that the code of the captured objects changes and that was not captured, and
    one where not all code was looked at. `scratch`: what need not be captured."""
    met = {id(value) for value in walk.met()}
    search = _Search(met, frozenset(map(id, scratch)), _tried(walk))
    for value, place in walk.places():
        search.at(value, place)
    return search.run()


def called_in(loop: Loop, frame: types.FrameType) -> list[tuple[str, types.FunctionType]]:
    """Return the functions of the program that are named in the body of a loop of `frame`, each with its name there."""
    own, space = frame.f_locals, frame.f_globals
    return [
        (name, function)
        for name in sorted(loop.read)
        for function in functions_in(own.get(name, space.get(name)))
    ]


def changed_by_calls(
    called: Iterable[tuple[str, types.FunctionType]], known: Container[int], scratch: Iterable[object] = ()
) -> list[Note]:
    """Return a note on each thing that these functions and what they call change, and that is not `known`: identities
    of what is captured."""
    search = _Search(known, frozenset(map(id, scratch)))
    search.queue += [_Code.of(function, name, known) for name, function in called]
    return search.run()


def _tried(walk: Walk) -> frozenset[str]:
    """Return the places of environments that are tried out. One that is known by name is not: what a program has put
    in it, a function for a wrapper of a library, is looked at like all else."""
    found = [(value, place) for value, place in walk.places() if _is_environment(value)]
    return frozenset(place() for value, place in found if known(value) is None)


@dataclass(frozen=True, slots=True)
class _Code:
    """The code of a function to look at, and where it belongs to. `owner` is the class that it is a method of."""

    code: types.CodeType
    name: str
    space: Mapping[str, Any]
    """The globals that it sees."""
    cells: Mapping[str, types.CellType]
    """The variables of functions around it, where the state does not hold them."""
    place: str
    owner: type | None = None

    @classmethod
    def of(
        cls, function: types.FunctionType, place: str, known: Container[int], *, owner: type | None = None
    ) -> _Code:
        names = () if id(function) in known else function.__code__.co_freevars
        cells = dict(zip(names, function.__closure__ or (), strict=False))
        return cls(function.__code__, function.__qualname__, function.__globals__, cells, place, owner)


@dataclass(slots=True)
class _Search:
    known: Container[int]
    """Identities of everything that is captured."""
    scratch: frozenset[int]
    """Identities of what nobody needs again."""
    tried: frozenset[str] = frozenset()
    """Places below which no code is looked at."""
    queue: deque[_Code] = field(default_factory=deque[_Code])
    own: dict[type, set[str]] = field(default_factory=dict[type, set[str]])
    """Classes of the program, with the attributes that objects of theirs have for themselves."""
    _kinds: set[type] = field(default_factory=set[type])
    _lines: dict[type, tuple[list[type], list[type]]] = field(
        default_factory=dict[type, "tuple[list[type], list[type]]"]
    )
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _found: dict[str, Note] = field(default_factory=dict[str, Note])

    def at(self, value: object, place: Any) -> None:
        kind = type(value)
        if type(value) in _CALLABLES:
            # Of a method the walk has met the object, and its class is looked at there.
            functions = [] if type(value) is types.MethodType else list(functions_in(value))
            if functions and not _is_in(place(), self.tried):
                self.queue += [_Code.of(function, place(), self.known) for function in functions]
            return
        if kind not in self._kinds:
            line = () if _is_environment(value) else line_of(kind)
            own = [cls for cls in line if is_program(_of_class(cls, "__module__"))]
            if own and _is_in(place(), self.tried):
                return  # another one of its class may stand elsewhere
            self._kinds.add(kind)
            for cls in own:
                self.own[kind] = set()
                self.queue += [_Code.of(f, place(), self.known, owner=cls) for f in functions_of(cls)]
        if kind in self.own:
            self.own[kind].update(attributes_in(value))

    def run(self) -> list[Note]:
        while self.queue and len(self._seen) < MOST_FUNCTIONS:
            code = self.queue.popleft()
            key = (id(code.code), id(code.owner))
            if key not in self._seen:
                self._seen.add(key)
                self._look(code)
        left = next((code for code in self.queue if (id(code.code), id(code.owner)) not in self._seen), None)
        notes = list(self._found.values())
        if left is not None:
            only = f"only {MOST_FUNCTIONS:,} functions of the program were searched for what they change beside the state"
            notes.append(Note(CUT_SHORT, left.place, f"{only}; what others change is not named"))
        return notes

    def _look(self, code: _Code) -> None:
        for use in uses(code.code):
            if use.scope == "global" and use.name in code.space:
                self._global(code, use, code.space[use.name])
            elif use.scope == "cell" and use.name in code.cells and use.name != "__class__":
                self._cell(code, use, code.cells[use.name])
            elif use.scope == "attribute" and code.owner is not None:
                self._attribute(code, use, code.owner)

    def _global(self, code: _Code, use: Use, value: object) -> None:
        if functions := list(functions_in(value)):
            self.queue += [_Code.of(function, code.place, self.known) for function in functions]
        elif (cls := _class(value)) is not None:
            scratch = id(_of_class(cls, "__dict__").get(use.attribute)) in self.scratch
            if (
                use.act == ASSIGNED
                and use.attribute
                and not scratch
                and is_program(_of_class(cls, "__module__"))
            ):
                name = f"{_of_class(cls, '__qualname__')}.{use.attribute}"
                self._tell(code, "assigns", name, "an attribute of a class")
        elif does := self._changed(use, value):
            self._tell(code, does, use.name, f"a global of {code.space.get('__name__', '?')}")

    def _cell(self, code: _Code, use: Use, cell: types.CellType) -> None:
        try:
            value: object = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        if use.act != ASSIGNED and (functions := list(functions_in(value))):
            self.queue += [_Code.of(function, code.place, self.known) for function in functions]
        elif does := self._changed(use, value):
            # A decorator gives its function the name of the one that it stands for.
            around = code.name.rpartition(".<locals>")[0]
            self._tell(code, does, use.name, f"a variable of {around or f'a function around {code.name}'}")

    def _attribute(self, code: _Code, use: Use, owner: type) -> None:
        """Something was done with an attribute of some object: is it one that only the class has?"""
        if owner not in self._lines:
            kinds = [kind for kind in self.own if owner in line_of(kind)]
            every = dict.fromkeys(cls for kind in kinds for cls in line_of(kind))
            self._lines[owner] = kinds, [cls for cls in every if is_program(_of_class(cls, "__module__"))]
        kinds, classes = self._lines[owner]
        if any(use.name in self.own[kind] for kind in kinds):
            return
        holder = next((cls for cls in classes if use.name in _of_class(cls, "__dict__")), owner)
        value = _of_class(holder, "__dict__").get(use.name)
        plain = use.act == ASSIGNED and not use.attribute  # of the object itself, not of its class
        if value is not None and not plain and (does := self._changed(use, value)):
            name = f"{_of_class(holder, '__qualname__')}.{use.name}"
            self._tell(code, does, name, "an attribute of a class")

    def _changed(self, use: Use, value: object) -> str:
        """Return the word for what code does that uses a value so; empty if that changes nothing, or it is captured."""
        if id(value) in self.scratch or use.act == READ or (id(value) in self.known and use.act != ASSIGNED):
            return ""
        if use.act == ASSIGNED and use.attribute == "":
            plain = value is None or is_a(value, (bool, int, float, str, tuple, *CONTAINERS))
            return "assigns" if plain or is_kind(value, "torch", "Tensor") else ""
        if is_a(value, GENERATORS) or is_kind(value, "torch", "Generator"):
            return "draws from"
        if is_container(value):
            inside = use.act != ITEM_USED or holds_unknown(value, self.known)
            return "changes" if use.act == CHANGED or (use.attribute in CHANGES and inside) else ""
        for (module, name), methods in _DOES.items():
            if is_kind(value, module, name) and (use.attribute in methods or use.act == PASSED):
                return "acts on"
        return ""

    def _tell(self, code: _Code, does: str, name: str, what: str) -> None:
        self._found.setdefault(f"{name}, {what}", Note(KIND, code.place, f"{does} {name}, {what}"))


def functions_of(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions of the program that a class itself defines, those behind properties and decorators too."""
    for value in _of_class(cls, "__dict__").values():
        yield from functions_in(value)


def functions_in(value: object) -> Iterator[types.FunctionType]:
    """Yield the functions of the program that are called where this is called, or got from a class: itself, or what
    a partial, a decorator or a descriptor stands before."""
    open_, seen = [value], set[int]()
    while open_:
        part = open_.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if (function := _function(part)) is not None:
            if is_program(function.__globals__.get("__name__")):
                yield function
            else:
                open_ += [content for content in _contents(function) if type(content) in _CALLABLES]
            open_.append(function.__dict__.get("__wrapped__"))
        elif type(part) is types.MethodType:
            open_.append(part.__func__)
        else:
            open_ += _stands_before(part)


def _stands_before(part: object) -> Iterator[object]:
    for kind, names in _AROUND_FUNCTIONS:
        if is_a(part, (kind,)):
            # By the slot itself: a class derived from it may do anything under that name.
            for inner in (_of_class(kind, "__dict__")[name].__get__(part) for name in names):
                yield from inner if type(inner) is tuple else (inner,)
            return
    if any("__get__" in _of_class(cls, "__dict__") for cls in line_of(type(part))):
        yield from (inner for inner in attributes_in(part).values() if type(inner) in _CALLABLES)


def _contents(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


_AROUND_FUNCTIONS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (property, ("fget", "fset", "fdel")),
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (functools.partial, ("func", "args")),
)
_CALLABLES: tuple[Any, ...] = (
    types.FunctionType, types.MethodType, functools.partial, type(functools.lru_cache(maxsize=None)(len)),
)  # fmt: skip


def is_program(module: object) -> bool:
    """Whether this is the name of a module of the program, and of no library that is installed."""
    if type(module) is not str:
        return False
    if module == "__main__":
        return True
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "unbroken":
        return False
    file = attributes_in(sys.modules.get(module)).get("__file__")
    return isinstance(file, str) and not file.startswith(_LIBRARIES) and "site-packages" not in file


def _libraries() -> tuple[str, ...]:
    paths: Mapping[str, str] = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


_LIBRARIES = _libraries()


def is_kind(value: object, module: str, name: str) -> bool:
    """Whether a value is of a class of a framework, which is not imported to find out."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and is_a(value, (kind,))


def is_a(value: object, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these classes: `isinstance` asks the value, and the class, which may run."""
    line = line_of(type(value))
    return any(kind in line for kind in kinds)


def is_own(value: object) -> bool:
    """Whether a value is an object of a class that the program has made."""
    return is_program(_of_class(type(value), "__module__"))


def is_container(value: object) -> bool:
    """Whether a value is a container or an array, which `CHANGES` change."""
    return is_a(value, CONTAINERS) or is_kind(value, "torch", "Tensor")


def members(value: object) -> Iterable[object]:
    """Return what a container, or an object of the program, holds; of a dict the values."""
    if is_a(value, (dict,)):
        return list(dict.values(cast("dict[object, object]", value)))  # at once: another thread may change it
    if is_a(value, (list, tuple, set, frozenset, deque)):
        return members_of(value)
    return list(attributes_in(value).values()) if is_own(value) else ()


def holds_unknown(container: object, known: Container[int]) -> bool:
    """Whether a container holds, or may come to hold, what changes and is not `known`."""
    held = list(members(container))
    return not held or any(type(one) not in PLAIN and id(one) not in known for one in held)


def _function(value: object) -> types.FunctionType | None:
    return value if type(value) is types.FunctionType else None


def _class(value: object) -> type | None:
    return cast("type", value) if is_a(value, (type,)) else None


def line_of(cls: type) -> tuple[type, ...]:
    """Return a class and those that it is derived from."""
    line: tuple[type, ...] = _of_class(cls, "__mro__")
    return line


def _of_class(cls: type, name: str) -> Any:
    """Return what `type` itself holds of a class, whatever its own class does under that name."""
    return type.__getattribute__(cls, name)
