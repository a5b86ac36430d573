"""Finds what a training changes and no checkpoint holds: named as early as the first save.

Whatever the roots lead to is captured. Beside it stands what only code leads to: globals of the script, attributes
of its classes, variables of functions around a method. Looked at is the code of the program itself, and of no
library: the methods of the objects that are captured, functions among them, and what these call in the program.
Named is what this code changes (`SEEN.append`, `global best`, `Mine.count += 1`), draws from or steps, and what
no root leads to.

Invariant: nothing is run and nothing is changed to find it.

Not promised: what code does under a name made at run time; code of environments, which the probe tries out; a
constant that is only read is no state, whatever it is.
"""

from __future__ import annotations

import random
import sys
import sysconfig
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unbroken.capture.names import ASSIGNED, CHANGED, PASSED, Use, uses
from unbroken.state.snapshot import Note
from unbroken.state.walk import Walk

KIND = "not captured"
SHOWN = 10
MOST_FUNCTIONS = 2000

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
_CHANGES = frozenset({
    "append", "appendleft", "add", "extend", "extendleft", "insert", "update", "setdefault", "pop", "popitem",
    "popleft", "remove", "discard", "clear", "sort", "reverse", "rotate", "fill", "resize", "put", "itemset",
    "partition", "difference_update", "intersection_update", "symmetric_difference_update",
    "add_", "mul_", "copy_", "zero_", "fill_",
})  # fmt: skip
"""Methods that change a container or an array."""


class UncoveredWarning(UserWarning):
    """Something that belongs to the training is in no checkpoint."""

    @classmethod
    def of(cls, notes: Iterable[Note]) -> UncoveredWarning:
        """Return the warning that names it."""
        told = list(dict.fromkeys(f"{note.place}: {note.detail}" for note in notes))
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        return cls(
            f"Not in the checkpoint: {'; '.join(told[:SHOWN])}{more}. A resumed run starts them anew. Keep what has"
            " to come back in an attribute of a callback or of another object that is saved."
        )


def warn_of(notes: Iterable[Note]) -> None:
    """Name what no checkpoint has; nothing where that is nothing."""
    lost = [note for note in notes if note.kind in (KIND, "outside")]
    if lost:
        warnings.warn(UncoveredWarning.of(lost), stacklevel=2)


def uncovered(walk: Walk) -> list[Note]:
    """Return a note on each thing that the code of the captured objects changes and that was not captured."""
    search = _Search({id(value) for value in walk.met()})
    for value, place in walk.places():
        search.at(value, place)
    return search.run()


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
        cls, function: types.FunctionType, place: str, *, owner: type | None = None, has_cells: bool = False
    ) -> _Code:
        names = () if has_cells else function.__code__.co_freevars
        cells = dict(zip(names, function.__closure__ or (), strict=False))
        return cls(function.__code__, function.__qualname__, function.__globals__, cells, place, owner)


@dataclass(slots=True)
class _Search:
    known: set[int]
    """Identities of everything that is captured."""
    queue: deque[_Code] = field(default_factory=deque[_Code])
    own: dict[type, set[str]] = field(default_factory=dict[type, set[str]])
    """Classes of the program, with the attributes that objects of theirs have for themselves."""
    _kinds: set[type] = field(default_factory=set[type])
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _found: dict[str, Note] = field(default_factory=dict[str, Note])

    def at(self, value: object, place: Any) -> None:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            if is_program(value.__module__):
                self.queue.append(_Code.of(value, place(), has_cells=True))
            return
        if kind not in self._kinds:
            self._kinds.add(kind)
            own = () if _is_kind(value, "gymnasium", "Env") else kind.__mro__
            for cls in own:
                if is_program(cls.__module__):
                    self.own[kind] = set()
                    self.queue += [_Code.of(f, place(), owner=cls) for f in functions_of(cls)]
        if kind in self.own:
            self.own[kind].update(getattr(value, "__dict__", ()))

    def run(self) -> list[Note]:
        while self.queue and len(self._seen) < MOST_FUNCTIONS:
            code = self.queue.popleft()
            key = (id(code.code), id(code.owner))
            if key not in self._seen:
                self._seen.add(key)
                self._look(code)
        return list(self._found.values())

    def _look(self, code: _Code) -> None:
        for use in uses(code.code):
            if use.scope == "global" and use.name in code.space:
                self._global(code, use, code.space[use.name])
            elif use.scope == "cell" and use.name in code.cells and use.name != "__class__":
                self._cell(code, use, code.cells[use.name])
            elif use.scope == "attribute" and code.owner is not None:
                self._attribute(code, use, code.owner)

    def _global(self, code: _Code, use: Use, value: object) -> None:
        if isinstance(value, types.FunctionType) and is_program(value.__module__):
            self.queue.append(_Code.of(value, code.place))
        elif isinstance(value, type):
            if use.act == ASSIGNED and is_program(value.__module__):
                self._tell(
                    code, "assigns", f"{value.__qualname__}.{use.attribute}", "an attribute of a class"
                )
        elif does := self._changed(use, value):
            self._tell(code, does, use.name, f"a global of {code.space.get('__name__', '?')}")

    def _cell(self, code: _Code, use: Use, cell: types.CellType) -> None:
        try:
            value: object = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        if does := self._changed(use, value):
            around = code.name.rpartition(".<locals>")[0]
            self._tell(code, does, use.name, f"a variable of {around}")

    def _attribute(self, code: _Code, use: Use, owner: type) -> None:
        """Something was done with an attribute of some object: is it one that only the class has?"""
        if any(use.name in names for kind, names in self.own.items() if issubclass(kind, owner)):
            return
        value = vars(owner).get(use.name)
        plain = use.act == ASSIGNED and not use.attribute  # of the object itself, not of its class
        if value is not None and not plain and (does := self._changed(use, value)):
            self._tell(code, does, f"{owner.__qualname__}.{use.name}", "an attribute of a class")

    def _changed(self, use: Use, value: object) -> str:
        """Return the word for what code does that uses a value so; empty if that changes nothing, or it is captured."""
        if id(value) in self.known and use.act != ASSIGNED:
            return ""
        if use.act == ASSIGNED and use.attribute == "":
            plain = value is None or isinstance(value, (bool, int, float, str, tuple, *CONTAINERS))
            return "assigns" if plain or _is_kind(value, "torch", "Tensor") else ""
        if isinstance(value, GENERATORS) or _is_kind(value, "torch", "Generator"):
            return "draws from"
        if isinstance(value, CONTAINERS) or _is_kind(value, "torch", "Tensor"):
            return "changes" if use.act == CHANGED or use.attribute in _CHANGES else ""
        for (module, name), methods in _DOES.items():
            if _is_kind(value, module, name) and (use.attribute in methods or use.act == PASSED):
                return "acts on"
        return ""

    def _tell(self, code: _Code, does: str, name: str, what: str) -> None:
        self._found.setdefault(f"{name}, {what}", Note(KIND, code.place, f"{does} {name}, {what}"))


def functions_of(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions that a class itself defines, those behind properties and class methods too."""
    for value in vars(cls).values():
        parts: tuple[object, ...] = (value,)
        if isinstance(value, property):
            parts = (value.fget, value.fset)
        elif isinstance(value, (staticmethod, classmethod)):
            parts = (value.__func__,)  # pyright: ignore[reportUnknownMemberType]
        for part in parts:
            if isinstance(part, types.FunctionType):
                yield part


def is_program(module: str | None) -> bool:
    """Whether a module is part of the program, and of no library that is installed."""
    if module == "__main__":
        return True
    top = (module or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names or top == "unbroken":
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return isinstance(file, str) and not file.startswith(_LIBRARIES) and "site-packages" not in file


def _libraries() -> tuple[str, ...]:
    paths: Mapping[str, str] = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


_LIBRARIES = _libraries()


def _is_kind(value: object, module: str, name: str) -> bool:
    """Whether a value is of a class of a framework, which is not imported to find out."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
