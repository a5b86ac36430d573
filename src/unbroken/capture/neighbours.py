"""What stands beside an environment and may move with it: attributes of its classes, globals of its modules.

No checkpoint holds them, since they belong to the program; one that moves while the environment steps is
state that a restore does not bring back, however late it shows. Looked at is what the code of the
environment's own classes names, and what the functions named there name in turn: numbers, text, containers,
arrays, generators and objects of its own classes. Libraries are left out.

Not promised: globals that are reached by a name made at run time, values within C, caches of decorators.
"""

from __future__ import annotations

import random
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from unbroken.capture.generators import GlobalGenerators
from unbroken.state import walk
from unbroken.state.code import changing_parts
from unbroken.state.diff import compare
from unbroken.state.nodes import unescape
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Snapshot

LIBRARIES = frozenset({
    "gymnasium", "numpy", "scipy", "torch", "stable_baselines3", "sb3_contrib", "unbroken", "pygame", "Box2D",
    "mujoco", "ale_py", "minigrid", "pandas", "matplotlib", "PIL", "cv2", "numba", "jax", "jaxlib", "cloudpickle",
})  # fmt: skip
"""Packages of which neither classes nor modules are looked at, beside the standard library."""

LARGEST = 1 << 26
"""Bytes of the largest array that is looked at."""

_PLAIN = (
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, np.ndarray,
    np.generic, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random,
)  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.MethodType)
_ENVIRONMENT = "<environment>"
_GENERATORS = "<generators>"


def is_own(module: str | None) -> bool:
    """Whether a module is part of the user's program, and of no library."""
    top = (module or "builtins").partition(".")[0]
    return top == "__main__" or (top not in sys.stdlib_module_names and top not in LIBRARIES)


class Neighbours:
    """Watches what stands beside an environment (the layers of its chain, outermost first)."""

    def __init__(self, layers: Iterable[Any], policy: Policy) -> None:
        self._layers = list(layers)
        self._policy = policy
        self._classes = self._own_classes()
        self._before = self._look()

    @property
    def modules(self) -> set[str]:
        """The modules of the environment's own classes."""
        return {cls.__module__ for cls in self._classes}

    def moved(self) -> list[str]:
        """Return the names of what has moved since the beginning, as a person would write them."""
        now = self._look()
        places = (unescape(found.place.partition("/")[0]) for found in compare(self._before, now))
        return sorted({place for place in places if place not in (_ENVIRONMENT, _GENERATORS)})

    def _own_classes(self) -> list[type]:
        """Return the environment's own classes: of its wrappers, its base, and the objects in it."""
        found = {base: None for layer in self._layers for base in type(layer).__mro__}
        try:
            met = walk.walk({_ENVIRONMENT: self._layers[0]}, self._policy, contents=False).classes
        except Exception:  # noqa: BLE001 - a foreign object in it may raise anything; the trial will find that
            met = Counter()
        for name in met:
            module, _, qualname = name.partition(":")
            cls: Any = sys.modules.get(module)
            for part in qualname.split("."):
                cls = getattr(cls, "__dict__", {}).get(part)
            if isinstance(cls, type):
                found.update(dict.fromkeys(cls.__mro__))
        return [cls for cls in found if is_own(cls.__module__)]

    def _look(self) -> Snapshot:
        names = {name: value for name, value in _Search(self._classes).found.items() if self._bears(value)}
        # What the environment itself holds, and the generators that are restored, is met before them: the
        # program's own variable for the environment is then no more than a reference to it.
        first: Mapping[str, object] = {_ENVIRONMENT: self._layers[0], _GENERATORS: GlobalGenerators()}
        try:
            return walk.capture({**first, **names}, self._policy)
        except Exception:  # noqa: BLE001 - the environment cannot be walked, which the trial itself will find
            return walk.capture({_GENERATORS: GlobalGenerators(), **names}, self._policy)

    def _bears(self, value: object) -> bool:
        """Whether a value can be walked."""
        if isinstance(value, np.ndarray) and value.nbytes > LARGEST:
            return False
        try:
            walk.walk({"": value}, self._policy, contents=False)
        except Exception:  # noqa: BLE001 - whatever a foreign object raises: then nobody can say if it moved
            return False
        return True


class _Search:
    """Collects values by name, from classes over the functions in them to what these name."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.found: dict[str, object] = {}
        self._seen: set[int] = set()
        for cls in classes:
            self._class(cls)

    def _class(self, cls: type) -> None:
        if id(cls) in self._seen or not is_own(cls.__module__):
            return
        self._seen.add(id(cls))
        for base in cls.__mro__[1:]:
            self._class(base)
        for name, value in list(vars(cls).items()):
            for part in _unwrapped(value):
                if not name.startswith("__") or isinstance(part, _FUNCTIONS):
                    self._consider(f"{cls.__module__}.{cls.__qualname__}.{name}", part, ())

    def _function(self, function: types.FunctionType) -> None:
        if id(function) in self._seen or not is_own(function.__module__):
            return
        self._seen.add(id(function))
        label = f"{function.__module__}.{function.__qualname__}"
        names = list(_names(function.__code__))
        space = function.__globals__
        for name in names:
            if name in space and not name.startswith("__"):
                self._consider(f"{space.get('__name__', '?')}.{name}", space[name], names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if name != "__class__":
                self._consider(f"{label}.<{name}>", content, names)
        for name, part in changing_parts(function).items():
            self._consider(f"{label}.{name}", part, names)

    def _consider(self, label: str, value: object, names: Iterable[str]) -> None:
        if isinstance(value, types.MethodType):
            value = value.__func__
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.ModuleType):
            if is_own(value.__name__) and id(value) not in self._seen:
                self._seen.add(id(value))
                for name in names:
                    if name in vars(value) and not name.startswith("__"):
                        self._consider(f"{value.__name__}.{name}", vars(value)[name], names)
                self._seen.discard(id(value))  # another function may name other things in it
        elif isinstance(value, _PLAIN) or is_own(type(value).__module__) or _is_space(value):
            self.found[label] = value


def _is_space(value: object) -> bool:
    return any(base.__module__ == "gymnasium.spaces.space" for base in type(value).__mro__)


def _unwrapped(value: object) -> Iterator[object]:
    """Yield the functions behind a property or a method of the class; the value itself, if it is none."""
    if isinstance(value, property):
        yield from (part for part in (value.fget, value.fset) if part is not None)
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__  # pyright: ignore[reportUnknownMemberType]
    else:
        yield value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
