"""What stands beside an environment and may move with it: attributes of its classes, globals of its modules.

No checkpoint holds them, since they belong to the program; one that moves while the environment steps is
state that a restore does not bring back, however late it shows. Looked at is what the code of the
environment's own classes names, and what the functions named there name in turn, behind decorators too: numbers,
text, containers, counters and iterators, arrays, tensors, networks, generators, context variables, objects of its
own classes, and the variables of the process's environment (`os.environ`) where code names them. Libraries are
left out.

Not promised: what is reached by a name made at run time (`setattr(module, name, ...)`), attributes put on a library's
modules and classes, values within C, what decorators remember (`lru_cache`), files.
"""

from __future__ import annotations

import argparse
import array
import contextvars
import ctypes
import functools
import itertools
import os
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

_PLAIN: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, array.array, np.ndarray,
    np.generic, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random,
    itertools.count, itertools.cycle, type(iter([])), type(iter(())), type(iter(range(0))),
    types.SimpleNamespace, argparse.Namespace,
)  # fmt: skip
_MEMORY = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)  # pyright: ignore[reportPrivateUsage]
_FUNCTIONS = (types.FunctionType, types.MethodType)
_AROUND_FUNCTIONS = (
    functools.partial, functools.partialmethod, functools.cached_property, functools.singledispatchmethod,
)  # fmt: skip
_CACHE: Any = type(functools.lru_cache(maxsize=None)(len))
_ENVIRON = frozenset({"environ", "environb", "putenv", "unsetenv"})
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
        self._classes, self._functions = self._own_code()
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

    def _own_code(self) -> tuple[list[type], list[types.FunctionType]]:
        """Return the environment's own classes, of its wrappers, its base and the objects in it, and functions that
        stand in their attributes."""
        found = {base: None for layer in self._layers for base in type(layer).__mro__}
        functions: list[types.FunctionType] = []
        try:
            walked = walk.walk({_ENVIRONMENT: self._layers[0]}, self._policy, contents=False)
            met, held = walked.classes, list(walked.met())
        except Exception:  # noqa: BLE001 - a foreign object in it may raise anything; the trial will find that
            met, held = Counter[str](), []
        for name in met:
            module, _, qualname = name.partition(":")
            cls: Any = sys.modules.get(module)
            for part in qualname.split("."):
                cls = getattr(cls, "__dict__", {}).get(part)
            if isinstance(cls, type):
                found.update(dict.fromkeys(cls.__mro__))
        for value in held:
            functions += [part for part in _unwrapped(value) if isinstance(part, types.FunctionType)]
        return [cls for cls in found if is_own(cls.__module__)], functions

    def _look(self) -> Snapshot:
        search = _Search(self._classes, self._functions)
        names = {name: value for name, value in search.found.items() if self._bears(value)}
        # What the environment itself holds, and the generators that are restored, is met before them: the
        # program's own variable for the environment is then no more than a reference to it.
        first: Mapping[str, object] = {_ENVIRONMENT: self._layers[0], _GENERATORS: GlobalGenerators()}
        try:
            return walk.capture({**first, **names}, self._policy)
        except Exception:  # noqa: BLE001 - the environment cannot be walked, which the trial itself will find
            return walk.capture({_GENERATORS: GlobalGenerators(), **names}, self._policy)

    def _bears(self, value: object) -> bool:
        """Whether a value can be walked."""
        try:
            if _size(value) > LARGEST:
                return False
            walk.walk({"": value}, self._policy, contents=False)
        except Exception:  # noqa: BLE001 - whatever a foreign object raises: then nobody can say if it moved
            return False
        return True


class _Search:
    """Collects values by name, from classes over the functions in them to what these name."""

    def __init__(self, classes: Iterable[type], functions: Iterable[types.FunctionType] = ()) -> None:
        self.found: dict[str, object] = {}
        self._seen: set[int] = set()
        functions = list(functions)
        self._held = {id(function) for function in functions}
        """Functions that the environment holds: their variables, attributes and defaults come back with it."""
        for cls in classes:
            self._class(cls)
        for function in functions:
            self._function(function)

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
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        inner = vars(function).get("__wrapped__")
        if isinstance(inner, _FUNCTIONS):
            self._consider("", inner, ())
        # Its globals tell where it was written: a decorator's own function takes the name of what it stands for.
        if not is_own(function.__globals__.get("__name__")):
            return
        label = f"{function.__module__}.{function.__qualname__}"
        names = list(_names(function.__code__))
        space = function.__globals__
        for name in names:
            if name in space and not name.startswith("__"):
                self._consider(f"{space.get('__name__', '?')}.{name}", space[name], names)
        if "globals" in names:  # by a name made at run time: then it may be any
            for name, value in list(space.items()):
                if not name.startswith("__") and isinstance(value, _PLAIN):
                    self._consider(f"{space.get('__name__', '?')}.{name}", value, ())
        if not _ENVIRON.isdisjoint(names):
            self.found["os.environ"] = dict(os.environ)
        if id(function) in self._held:
            return
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
        if isinstance(value, _AROUND_FUNCTIONS):
            self._consider(label, value.func, names)
        elif type(value) is _CACHE:
            self._consider(label, vars(value)["__wrapped__"], names)
        elif isinstance(value, types.FunctionType):
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
        elif isinstance(value, types.GeneratorType):
            # Where it stands, and what it remembers: both end with it.
            frame = value.gi_frame
            self.found[label] = None if frame is None else (frame.f_lasti, dict(frame.f_locals))
        elif isinstance(value, contextvars.ContextVar):
            self.found[label] = value.get(None)
        elif isinstance(value, _MEMORY):
            self.found[label] = bytes(value)
        elif (
            isinstance(value, _PLAIN)
            or is_own(type(value).__module__)
            or _is_space(value)
            or _is_of_torch(value)
        ):
            self.found[label] = value


def _is_space(value: object) -> bool:
    return any(base.__module__ == "gymnasium.spaces.space" for base in type(value).__mro__)


def _is_of_torch(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    if torch is None or not type(value).__module__.startswith("torch"):
        return False
    return isinstance(value, (torch.Tensor, torch.Generator, torch.nn.Module, torch.optim.Optimizer))


def _size(value: Any) -> int:
    """Return the bytes of an array, a tensor or a network."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if not _is_of_torch(value):
        return 0
    if hasattr(value, "parameters"):
        return sum(part.nbytes for part in (*value.parameters(), *value.buffers()))
    return getattr(value, "nbytes", 0)


def _unwrapped(value: object) -> Iterator[object]:
    """Yield the functions behind a property or a method of the class; the value itself, if it is none."""
    if isinstance(value, property):
        yield from (part for part in (value.fget, value.fset, value.fdel) if part is not None)
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__  # pyright: ignore[reportUnknownMemberType]
    else:
        yield value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
