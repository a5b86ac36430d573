"""Pickles of a session's values, which leave outside what is not the session's own.

Objects outside (the server, its client and configuration, what all sessions share) are named in the pickle and looked up when
it is read. Locks that nobody holds or awaits are made anew; one in use is refused. Classes and functions are named where their
module can be imported, also those of the script that runs; others are pickled by value if cloudpickle is there.

Nothing here asks where a pickle comes from: `encoding` does, before.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from unbroken.adapters.nemo_gym.sessions.live import LOCKS, kind_of, name_of

BY_VALUE = "by value: "
"""Begins the name of a class or function that no module has: its code is in the pickle, for one version of Python."""
_PROTOCOL = 5
_KNOWN = frozenset(
    {str, int, float, bool, bytes, bytearray, type(None), dict, list, tuple, set, frozenset, complex}
)
_DEEPEST = 40


class Unpicklable(Exception):
    """A value cannot be pickled. The message names its class."""


@dataclass(frozen=True, slots=True)
class Pickled:
    data: bytes
    classes: tuple[str, ...]
    excluded: tuple[str, ...]


class _Base(Protocol):
    def dump(self, obj: object, /) -> None: ...


def pickled(value: object, external: Mapping[int, str]) -> Pickled:
    """Pickle a value. `external` names the objects outside (id -> name).

    Raises:
        Unpicklable: a part of it cannot be pickled.
    """
    target = io.BytesIO()
    pickler: Any = _pickler()(target, external)
    try:
        cast("_Base", pickler).dump(value)
    except RecursionError:
        raise Unpicklable("it is nested too deeply") from None
    except Exception as error:  # code of the user's classes runs here, and may raise anything
        raise Unpicklable(str(error) or type(error).__name__) from error
    return Pickled(target.getvalue(), tuple(sorted(pickler.classes)), tuple(sorted(pickler.renewed)))


def unpickled(data: bytes, resolve: Callable[[str], object]) -> Any:
    """Read what `pickled` wrote; `resolve` finds an object outside by its name."""

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> object:
            return resolve(str(pid))

    return Reader(io.BytesIO(data)).load()


def culprit(value: object, external: Mapping[int, str]) -> str:
    """Return the place below `value`, and the class, of the innermost part that cannot be pickled; "" if all can."""
    try:
        pickled(value, external)
    except Unpicklable:
        pass
    else:
        return ""
    place = ""
    for _ in range(_DEEPEST):
        for name, child in _children(value):
            try:
                pickled(child, external)
            except Unpicklable:
                place, value = place + name, child
                break
        else:
            break
    kind = kind_of(value)
    cls = value.__qualname__ if isinstance(value, types.FunctionType) else name_of(type(value))
    return f"{place} is {kind} ({cls})" if kind else f"{place} is of class {cls}"


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            yield f"[{key!r:.60}]", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[object]", value)):
            yield f"[{index}]", item
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f".<closure>.{name}", cell.cell_contents
    elif not kind_of(value) and hasattr(value, "__dict__"):
        for name, item in cast("dict[str, object]", vars(value)).items():
            yield f".{name}", item
        yield from _private(value)


def _private(value: object) -> Iterator[tuple[str, object]]:
    private = getattr(value, "__pydantic_private__", None)
    if isinstance(private, dict):
        for name, item in cast("dict[str, object]", private).items():
            yield f".{name}", item


@cache
def _pickler() -> type:
    """Return the class of picklers: over cloudpickle's where it is, else over that of the standard library."""
    try:
        base: Any = importlib.import_module("cloudpickle").Pickler
    except ImportError:
        base = pickle.Pickler
    inherited: Any = getattr(base, "reducer_override", None)

    class Pickler(base):  # type: ignore[misc]  # which base is known only here
        def __init__(self, file: io.BytesIO, external: Mapping[int, str]) -> None:
            super().__init__(file, protocol=_PROTOCOL)
            self.classes: set[str] = set()
            self.renewed: set[str] = set()
            self._external = external

        def persistent_id(self, obj: object) -> str | None:
            return self._external.get(id(obj))

        def reducer_override(self, obj: Any) -> Any:
            cls: type = type(obj)
            if cls in _KNOWN:
                return NotImplemented
            if isinstance(obj, (type, types.FunctionType)):
                if _is_importable(obj):
                    self.classes.add(f"{obj.__module__}.{obj.__qualname__}")
                    # By name, also from the script that runs: a copy of its class would be another class.
                    return obj.__qualname__ if obj.__module__ == "__main__" else NotImplemented
                said = inherited(self, obj) if inherited is not None else NotImplemented
                if said is not NotImplemented and obj.__module__ != "builtins":
                    self.classes.add(f"{BY_VALUE}{obj.__module__}.{obj.__qualname__}")
                return said
            kind = kind_of(obj)
            if kind in LOCKS:
                self.renewed.add(f"{name_of(cls)}: {kind} is made anew")
                return _renewal(obj, cls, kind)
            if kind and not isinstance(obj, (types.ModuleType, types.BuiltinFunctionType)):
                raise _Refused(f"{kind} ({name_of(cls)}) cannot be taken into another process")
            self.classes.add(name_of(cls))
            return inherited(self, obj) if inherited is not None else NotImplemented

    return Pickler


class _Refused(pickle.PicklingError):
    """Raised inside of a pickler."""


def _is_importable(obj: Any) -> bool:
    found: Any = sys.modules.get(getattr(obj, "__module__", None) or "")
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _renewal(obj: Any, cls: type, kind: str) -> tuple[Any, ...]:
    if in_use(obj, kind):
        raise _Refused(f"{kind} ({name_of(cls)}) is held or awaited")
    package = cls.__module__.split(".", maxsplit=1)[0]
    if kind == "an event":
        return _event, (package, "set" if obj.is_set() else "clear")
    if kind == "a semaphore":
        return _semaphore, (package, cls.__name__, obj._value)
    return _lock, (package, cls.__name__)


def in_use(obj: Any, kind: str) -> bool:
    """Whether somebody holds or awaits an object of `live.LOCKS`, or a semaphore is not as it began."""
    if kind == "a lock":
        if hasattr(obj, "locked"):
            return bool(obj.locked()) or bool(getattr(obj, "_waiters", None))
        if not obj.acquire(blocking=False):  # a reentrant lock before Python 3.14 has no other question
            return True
        obj.release()
        return bool(obj._is_owned()) if hasattr(obj, "_is_owned") else False
    if kind == "a semaphore":
        bound = getattr(obj, "_bound_value", getattr(obj, "_initial_value", None))
        return (
            obj._value == 0
            or (bound is not None and obj._value != bound)
            or bool(getattr(obj, "_waiters", None))
        )
    if kind == "a condition":
        return bool(getattr(obj, "_waiters", None)) or in_use(obj._lock, "a lock")
    waiters = getattr(obj, "_waiters", None)
    return bool(waiters) if waiters is not None else bool(obj._cond._waiters)


def _event(package: str, state: str) -> Any:
    event: Any = asyncio.Event() if package == "asyncio" else threading.Event()
    if state == "set":
        event.set()
    return event


def _semaphore(package: str, name: str, value: int) -> Any:
    module: Any = asyncio if package == "asyncio" else threading
    return getattr(module, name)(value)


def _lock(package: str, name: str) -> Any:
    if package == "asyncio":
        return asyncio.Condition() if name == "Condition" else asyncio.Lock()
    if name == "Condition":
        return threading.Condition()
    return threading.RLock() if "RLock" in name else threading.Lock()
