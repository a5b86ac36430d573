"""What sessions share: everything of a server that is not kept under a session's id.

How it was when the server was built is remembered as digests, so that only what has changed since is ever written. An
attribute that is alive, or holds something that cannot be compared, is left as the new process builds it, and named. Locks and
the like that nobody holds or awaits are no state: those that the new process builds are as good, and they are not named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from unbroken.adapters.nemo_gym.sessions.attributes import Attributes, Place
from unbroken.adapters.nemo_gym.sessions.digests import TooLarge, digest_and_opaque
from unbroken.adapters.nemo_gym.sessions.live import LOCKS, held_kind, kind_of
from unbroken.adapters.nemo_gym.sessions.pickling import in_use
from unbroken.adapters.nemo_gym.words import SKIPPED_FIELDS

_SCALARS = (str, int, float, bool, bytes, type(None), complex, tuple, frozenset)
_MOST_PARTS = 200_000
_MOST_ITEMS = 256
_SERVER = "server"


class Outside:
    """Built when the server was."""

    def __init__(self, attributes: Attributes) -> None:
        self.ever_changed = False
        self._attributes = attributes
        self._built: dict[str, str] = {}
        self._put_back: dict[str, str] = {}
        """Digests of attributes that were given another value before there was a call, which is no change by one."""
        self._why: dict[str, str] = {}
        self._stood = {name: _stand(value) for name, value in attributes.values().items() if kind_of(value)}
        """How events and semaphores stood when the server was built, by attribute."""
        self._items: list[tuple[str, Any, object]] = []
        """Attribute, key and value of what shared dicts and lists held from the beginning."""
        for name, value in attributes.values().items():
            if held_kind(value):
                continue
            digest = self._digest(name, value)
            if digest:
                self._built[name] = digest
            self._remember_items(name, value)
        self._built_why = dict(self._why)

    def excluded(self, maps: Collection[str]) -> dict[str, str]:
        """Return the attributes that are left out, and why. `maps`: those that are keyed by sessions."""
        found: dict[str, str] = {}
        for name, value in self._attributes.values().items():
            if name not in maps:
                why = held_kind(value) or self._why.get(name, "")
                if why and not self._is_free(name, value):
                    found[name] = why
        return found

    def _is_free(self, name: str, value: Any) -> bool:
        """Whether an attribute is a lock or the like, or holds such only, and the one that a new process builds is as good."""
        kind = kind_of(value)
        if kind:
            return kind in LOCKS and not _is_used(value) and _stand(value) == self._stood.get(name)
        entries = cast("Mapping[Any, object]", value).values() if isinstance(value, Mapping) else value
        return bool(held_kind(value)) and all(
            kind_of(entry) in LOCKS
            and not _is_used(entry)
            and not (kind_of(entry) == "an event" and _stand(entry))
            for entry in entries
        )

    def changed(self, maps: Collection[str]) -> dict[str, Any]:
        """Return the attributes that are not what they were when the server was built."""
        found: dict[str, Any] = {}
        self._why = dict(self._built_why)
        for name, value in self._attributes.values().items():
            if name in maps or name in self._why or held_kind(value):
                continue
            digest = self._digest(name, value)
            if digest and digest != self._built.get(name):
                found[name] = value
                self.ever_changed = self.ever_changed or digest != self._put_back.get(name)
        return found

    def digests(self) -> dict[str, str]:
        """Return the digests of all attributes that can be compared, as they are."""
        found: dict[str, str] = {}
        for name, value in self._attributes.values().items():
            if name not in self._why and not held_kind(value):
                digest = self._digest(name, value)
                if digest:
                    found[name] = digest
        return found

    def put_back(self, names: Iterable[str]) -> None:
        """Learn that these were given another value before there was a call."""
        now = self.digests()
        self._put_back = {name: now[name] for name in names if name in now}

    def names(self, places: Mapping[str, Place], *, skip: Collection[str] = ()) -> dict[int, str]:
        """Return the names of the objects that no session owns, by id. `skip` leaves out attributes."""
        server = self._attributes.server
        found: dict[int, str] = {}
        maps = {place.attribute for place in places.values() if not place.module}
        for name, key, item in self._items:
            if name not in skip and name not in maps:
                found[id(item)] = f"{_SERVER}.{name}[{'i' if type(key) is int else 's'}:{key}]"
        for text, place in places.items():
            if place.attribute not in skip and (place.module or place.key is not None or place.name):
                holder = self._attributes.holder(place, make=False)
                if holder is not None:
                    found[id(holder)] = f"place {text}"
        values = self._attributes.values()
        for name, value in values.items():
            if name not in skip and not isinstance(value, _SCALARS):
                found[id(value)] = f"{_SERVER}.{name}"
        for (
            name
        ) in skip:  # nor under the name of another attribute, or of an entry: nowhere would it be looked into
            found.pop(id(values.get(name)), None)
        for name in SKIPPED_FIELDS:
            value = getattr(server, name, None)
            if not isinstance(value, _SCALARS):
                found[id(value)] = f"{_SERVER}.{name}"
        found[id(server)] = _SERVER
        return found

    def find(self, name: str) -> object:
        """Return the object of a name; None if the server has none."""
        if name == _SERVER:
            return self._attributes.server
        if name.startswith("place "):
            return self._attributes.holder(Place.read(name.removeprefix("place ")), make=False)
        attribute, bracket, rest = name.removeprefix(f"{_SERVER}.").partition("[")
        value: Any = (
            getattr(self._attributes.server, attribute, None)
            if attribute in SKIPPED_FIELDS
            else self._attributes.values().get(attribute)
        )
        if bracket:
            kind, _, key = rest[:-1].partition(":")
            try:
                value = value[int(key) if kind == "i" else key]
            except (KeyError, IndexError, TypeError):
                return None
        return None if isinstance(value, _SCALARS) else cast("object", value)

    def put(self, name: str, value: Any) -> None:
        """Set an attribute; a dict, list or set that is there stays the same object."""
        live: Any = self._attributes.values().get(name)
        if live is value:
            return
        if type(live) is type(value) and isinstance(live, (dict, set)):
            live.clear()
            cast("dict[Any, Any]", live).update(value)
        elif type(live) is type(value) and isinstance(live, list):
            live[:] = value
        else:
            self._attributes.put(name, value)

    def _digest(self, name: str, value: Any) -> str:
        """Return the digest of an attribute; "" if it cannot be compared, which is then in `_why`."""
        try:
            digest, opaque = digest_and_opaque(value, external=self.names({}, skip=(name,)), most=_MOST_PARTS)
        except TooLarge:
            self._why[name] = "too large to compare; left as the server builds it"
            return ""
        except RecursionError:
            self._why[name] = "nested too deeply to compare; left as the server builds it"
            return ""
        if opaque:
            self._why[name] = f"holds {opaque}; left as the server builds it"
            return ""
        return digest

    def _remember_items(self, name: str, value: Any) -> None:
        if isinstance(value, dict):
            pairs = list(cast("dict[Any, object]", value).items())[:_MOST_ITEMS]
        elif isinstance(value, list):
            pairs = list(enumerate(cast("list[object]", value)[:_MOST_ITEMS]))
        else:
            return
        for key, item in pairs:
            if type(key) in (str, int) and not isinstance(item, _SCALARS):
                self._items.append((name, key, item))


def _is_used(lock: Any) -> bool:
    try:
        return in_use(lock, kind_of(lock))
    except AttributeError:  # a class of the user's with parts of its own
        return True


def _stand(value: Any) -> object:
    """Return whether an event is set, or how often a semaphore can be had; else None."""
    kind = kind_of(value)
    if kind == "an event":
        return bool(value.is_set())
    return getattr(value, "_value", None) if kind == "a semaphore" else None
