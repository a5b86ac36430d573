"""The attributes of a server, and where in them a session has values.

A place is written as people would: `counters`, `tables[orders]` or `tools.timing` one level below, `module:NAME` for a global
of the server's own modules. `done{}` says that the session is a member of a set. Looked into are dicts and sets, and one
level below each attribute dicts of at most 64 entries and objects; deeper down sessions are not found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, MutableMapping, MutableSet
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from unbroken.adapters.nemo_gym.sessions.clocks import modules_of
from unbroken.adapters.nemo_gym.sessions.live import held_kind, kind_of
from unbroken.adapters.nemo_gym.words import SKIPPED_FIELDS
from unbroken.errors import StateMismatch

Holder: TypeAlias = "MutableMapping[Any, Any] | MutableSet[Any]"
OURS = "_unbroken"
"""Begins the names of attributes that Unbroken gives to a server."""
_SCALARS = frozenset({str, int, float, bool, bytes, type(None), complex, tuple, frozenset})
_WIDEST = 64
_PLACE = re.compile(
    r"(?:(?P<module>[\w.]+):)?(?P<attribute>\w+)(?P<below>\[.*\]|\.\w+)?(?P<member>\{\})?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where sessions have values. `module` is empty for an attribute of the server."""

    attribute: str
    module: str = ""
    key: str | None = None
    """Of the dict that the attribute is."""
    name: str = ""
    """Of the attribute of the object that the attribute is."""
    member: bool = False

    @property
    def text(self) -> str:
        below = f"[{self.key}]" if self.key is not None else f".{self.name}" if self.name else ""
        return (
            f"{f'{self.module}:' if self.module else ''}{self.attribute}{below}{'{}' if self.member else ''}"
        )

    @staticmethod
    def read(text: str) -> Place:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise StateMismatch(
                f"{text!r} names no place in a server.", hint="Look which Unbroken wrote the state."
            )
        below = match["below"] or ""
        return Place(
            attribute=match["attribute"],
            module=match["module"] or "",
            key=below[1:-1] if below.startswith("[") else None,
            name=below[1:] if below.startswith(".") else "",
            member=match["member"] is not None,
        )


class Attributes:
    """Reads and writes a server's attributes, declared or not, without running its validators."""

    def __init__(self, server: object, *, exclude: Collection[str] = (), later: Collection[str] = ()) -> None:
        """`later` names attributes that the server's code makes when it needs them."""
        self.server = server
        self._exclude = frozenset(exclude)
        self._later = frozenset(later)
        self._globals = _globals(type(server))

    def values(self) -> dict[str, Any]:
        """Return all attributes but those of the framework, ours, and those that the user excludes."""
        server, exclude = self.server, self._exclude
        private: dict[str, Any] | None = getattr(server, "__pydantic_private__", None)
        extra: dict[str, Any] | None = getattr(server, "__pydantic_extra__", None)
        found: dict[str, Any] = {}
        for source in (vars(server), private, extra):
            if source:
                found.update(source)
        return {
            name: value
            for name, value in found.items()
            if name not in SKIPPED_FIELDS and name not in exclude and not name.startswith(("__", OURS))
        }

    def has(self, name: str) -> bool:
        return name in self.values() or name in self._later

    def put(self, name: str, value: object) -> None:
        server = self.server
        private: dict[str, Any] | None = getattr(server, "__pydantic_private__", None)
        extra: dict[str, Any] | None = getattr(server, "__pydantic_extra__", None)
        for source in (private, extra):
            if source is not None and name in source:
                source[name] = value
                return
        object.__setattr__(server, name, value)

    def holders(self, session: str) -> Iterator[tuple[Place, Holder]]:
        """Find every dict or set that has the session."""
        for name, value in self.values().items():
            if type(value) in _SCALARS:
                continue
            member = _has(value, session)
            if member is not None:
                yield Place(name, member=member), value
            else:
                yield from _below(name, value, session)
        for module, name, value in self._globals:
            member = _has(value, session)
            if member is not None:
                yield Place(name, module=module, member=member), value

    def global_holders(self) -> Iterator[tuple[str, Holder]]:
        """Return the globals that sessions may be looked for in, by their place."""
        for module, name, value in self._globals:
            yield f"{module}:{name}", value

    def holder(self, place: Place, *, make: bool) -> Holder | None:
        """Return the dict or set at a place; None if there is none, but one can be made. `make`: make it.

        Raises:
            StateMismatch: the server has no such place. Nothing was touched.
        """
        if place.module:
            for module, name, held in self._globals:
                if (module, name) == (place.module, place.attribute):
                    return held
            raise self._no(place)
        value: Any = self.values().get(place.attribute)
        if value is None and self.has(place.attribute):
            if not make:
                return None
            value = {} if place.key is not None or not place.member else set[Any]()
            self.put(place.attribute, value)
        if place.key is not None and isinstance(value, MutableMapping):
            outer = cast("MutableMapping[str, Any]", value)
            value = outer.get(place.key)
            if value is None:
                if not make:
                    return None
                value = outer[place.key] = set[Any]() if place.member else {}
        elif place.name:
            value = getattr(value, place.name, None)
        if not isinstance(value, MutableSet if place.member else MutableMapping):
            raise self._no(place)
        holder: Holder = value
        return holder

    def _no(self, place: Place) -> StateMismatch:
        return StateMismatch(
            f"{type(self.server).__name__} has no {'set' if place.member else 'dict'} {place.text},"
            " in which the session had a value. Nothing was touched.",
            hint="Start the version of the server that wrote the state.",
            differences=(place.text,),
        )


def _has(value: Any, session: str) -> bool | None:
    """Whether a session is a member of a set (True) or a key of a dict (False); None: neither."""
    if isinstance(value, MutableMapping):
        held = cast("MutableMapping[object, object]", value)
        return False if session in held and not kind_of(held) else None
    if isinstance(value, MutableSet):
        return True if session in value and not kind_of(value) else None
    return None


def _below(attribute: str, value: Any, session: str) -> Iterator[tuple[Place, Holder]]:
    if isinstance(value, dict):
        items = cast("dict[object, Any]", value)
        for key, item in items.items() if len(items) <= _WIDEST else ():
            member = _has(item, session)
            if member is not None and type(key) is str:
                yield Place(attribute, key=key, member=member), item
    elif hasattr(value, "__dict__") and not held_kind(value):
        fields = cast("dict[str, Any]", vars(value))
        for name, item in fields.items():
            member = _has(item, session)
            if member is not None:
                yield Place(attribute, name=name, member=member), item


def _globals(cls: type) -> tuple[tuple[str, str, Holder], ...]:
    """Return the dicts and sets that the modules of a server's package hold, each once."""
    prefixes = tuple(
        f"{name.rpartition('.')[0]}."
        for name in (module.__name__ for module in modules_of(cls))
        if name.count(".") > 1
    )
    modules = {module.__name__: module for module in modules_of(cls)}
    modules |= {name: module for name, module in list(sys.modules.items()) if name.startswith(prefixes)}
    found: dict[int, tuple[str, str, Holder]] = {}
    for module_name, module in modules.items():
        for name, value in list(vars(module).items()):
            if not name.startswith("__") and isinstance(value, (dict, set)):
                held: Holder = value
                found.setdefault(id(held), (module_name, name, held))
    return tuple(found.values())
