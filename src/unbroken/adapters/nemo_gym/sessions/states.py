"""The state of a server's sessions, live: what of it belongs to which session, read out and put back one session at a time.

What a session owns is found by its id: whatever the server keeps under it, in any dict or set. All of it goes into one
pickle, so that what refers to the same object still does afterwards. What sessions share stays outside of it, and is taken by itself as
far as it has changed since the server was built.

As long as nothing of any session was ever found, a session that holds nothing is not read out as empty: what it has may lie where
nobody looks, in a closure or in a list. Its calls are made again. Once it is known where sessions are, one without a value has none.

Not promised: that a value which two sessions refer to without the server referring to it stays one object; and, of a server that
keeps a part of a session under its id and another part elsewhere, that other part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, MutableSet
from typing import Any, cast

from unbroken.adapters.nemo_gym.control import Capability
from unbroken.adapters.nemo_gym.records import Built, Encoded
from unbroken.adapters.nemo_gym.sessions.attributes import Attributes, Holder, Place
from unbroken.adapters.nemo_gym.sessions.building import Building
from unbroken.adapters.nemo_gym.sessions.clocks import clock_names, moved
from unbroken.adapters.nemo_gym.sessions.context import in_words, view
from unbroken.adapters.nemo_gym.sessions.encoding import (
    Decoded,
    Missing,
    decode,
    digest_and_plain,
    encode,
    load,
)
from unbroken.adapters.nemo_gym.sessions.mentions import mentions
from unbroken.adapters.nemo_gym.sessions.nature import Nature
from unbroken.adapters.nemo_gym.sessions.outside import Outside
from unbroken.adapters.nemo_gym.sessions.pickling import Unpicklable, culprit
from unbroken.adapters.nemo_gym.sessions.plain import decoded as from_plain
from unbroken.errors import ConfigError, StateMismatch

_PASSING = "held or awaited"
_DEEP = "it is nested too deeply"
_NOTHING = "nothing of this session was found in the server, so its calls are made again"
_UNREAD = "holds something of sessions that cannot be told apart by them; their calls are made again"
_LEFT = "its calls were made in this process before, and what they left there was not found; a server that is started again has nothing of it"
_MOST_LOOKED_AT = 100_000


class SessionStates:
    """Everything that is done with the sessions of one server. Built when the server was, before its first request."""

    def __init__(
        self,
        server: object,
        *,
        key: bytes,
        capability: Capability | None = None,
        exclude: Collection[str] = (),
    ) -> None:
        if isinstance(exclude, str):
            raise ConfigError(f"exclude={exclude!r} is one text.", hint="Give a list of attributes.")
        self._key = key
        self._given: Capability | None = capability
        self._exclude = tuple(exclude)
        self._nature = Nature(type(server))
        self._attributes = Attributes(server, exclude=exclude, later=self._nature.assigned)
        self._outside = Outside(self._attributes)
        self._clocks = clock_names(type(server))
        self._building = Building(
            self._attributes, self._outside, key=key, clocks=self._clocks, resolve=self._resolve
        )
        self._known: dict[str, None] = {}
        self._maps: dict[str, Place] = {}
        self._reasons: dict[str, str] = {}
        self._left: set[int] = set()
        """Hashes of the sessions that were removed without anything of them having been found."""
        self._failed = False
        self._dropped: dict[str, str] = {}
        self._generation = 0

    @property
    def capability(self) -> Capability:
        """What can be done for this server: as the user says, else as its class and the traffic so far tell."""
        if self._given is not None:
            return self._given
        if self._known and not self._maps:
            self._find(next(reversed(self._known)))  # its place may have been made by the last call
        maps = self._maps_by_attribute()
        return self._nature.capability(
            {name: value for name, value in self._attributes.values().items() if name not in maps},
            has_maps=self.has_maps,
            changed=self._outside.ever_changed,
            failed=self._failed,
            excluded=bool(self.exclusions),
        )

    @property
    def has_maps(self) -> bool:
        """Whether it is known where this server keeps its sessions: its source says so, or one was found."""
        if self._maps:
            return True
        values = self._attributes.values() if self._nature.keyed else {}
        return any(
            isinstance(values.get(name), (MutableMapping, MutableSet)) and name not in self._exclude
            for name in self._nature.keyed
        )

    @property
    def reads_sessions(self) -> bool:
        """Whether sessions are worth reading out. Where they have processes and the like, what can be read is not all there is."""
        return self._given != "replay" and not self._nature.has_processes

    @property
    def exclusions(self) -> tuple[str, ...]:
        """What is left out of the promise: "<attribute>: <why>". What the user says is no state is not; see `notes`."""
        found = self._outside.excluded(self._maps_by_attribute())
        found |= self._dropped
        found |= self._building.left
        return tuple(f"{name}: {why}" for name, why in found.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known, and lowers no promise: "<attribute>: <what>"."""
        return tuple(
            f"{name}: no state, says the user, and left as the server builds it" for name in self._exclude
        )

    def know(self, session: str) -> None:
        """Learn that this is the id of a session: dicts that have it as a key are keyed by sessions."""
        if session not in self._known:
            self._known[session] = None
            self._find(session)

    def capture(self, session: str) -> Encoded | None:
        """Read out all that the server keeps of a session. None: it cannot be, or nothing was found; see `reason`."""
        self.know(session)
        values = self._find(session)
        if not values and not self.has_maps:
            self._reasons[session] = _NOTHING
            return None
        try:
            encoded = self._encode(values)
        except Unpicklable as error:
            self._fail(session, values, str(error))
            return None
        except RecursionError:
            self._fail(session, values, _DEEP)
            return None
        except Exception as error:  # noqa: BLE001 - the user's code; one session must not stop a server
            self._fail(session, values, f"{type(error).__name__}: {error}")
            return None
        self._reasons.pop(session, None)
        return encoded

    def reason(self, session: str) -> str:
        """Return why the last capture of a session gave nothing: place and class, if it failed; "" if it did not."""
        return self._reasons.get(session, "")

    def shared(self) -> Encoded | None:
        """Read out what sessions share, as far as it has changed since the server was built. None: nothing has."""
        self._dropped = {}
        changed = self._outside.changed(self._maps_by_attribute())
        if not self.has_maps:
            # Whose calls are made again from the first on must not find there already what they left there.
            for name in [
                name for name, value in changed.items() if mentions(value, self._known, _MOST_LOOKED_AT)
            ]:
                self._dropped[name] = _UNREAD
                del changed[name]
        leftover = self._leftover()
        external = self._external(skip=changed)
        while changed or leftover:
            value = {"attributes": changed, "others": leftover}
            try:
                return encode(value, key=self._key, external=lambda: external, clocks=self._clocks)
            except (Unpicklable, RecursionError) as error:
                if not self._drop_one(changed, leftover, external, str(error)):
                    raise
        return None

    def built(self) -> Built:
        """Read out what the server was built with: the attributes as they are, before anything was brought back."""
        return self._building.read()

    def install_built(self, built: Built) -> tuple[str, ...]:
        """Give the server what it was built with when its log began, before anything else is brought back; return what was done.

        Attributes that are the same are not touched. What cannot be put back is in `exclusions`.
        """
        notes = self._building.install(built)
        self._generation += 1
        return notes

    def decode(self, encoded: Encoded) -> Decoded:
        """Read a state, of a session or shared, and touch nothing.

        Raises:
            Untrusted: its seal is not that of this key.
            CorruptObject: it cannot be read, or is another once it is.
            UnsupportedFormat: it holds code of another version of Python.
        """
        return decode(
            encoded,
            key=self._key,
            resolve=self._resolve,
            clocks=self._clocks,
            generation=self._generation,
        )

    def install(self, session: str, decoded: Decoded) -> None:
        """Make a state that of a session, in place of all that it had. Dicts of the server stay the same objects.

        Raises:
            StateMismatch: the server has no such attributes. Nothing was touched.
        """
        values = self._current(decoded)
        if not isinstance(values, dict):
            raise StateMismatch("This is no state of a session.", hint="It may be what sessions share.")
        wanted = {text: (Place.read(text), value) for text, value in cast("dict[str, Any]", values).items()}
        for place, _ in wanted.values():
            self._attributes.holder(place, make=False)
        # From here on nothing can fail but memory.
        for place, holder in list(self._attributes.holders(session)):
            if place.text not in wanted:
                _take_out(holder, session)
        for text, (place, value) in wanted.items():
            holder = cast("Holder", self._attributes.holder(place, make=True))
            self._maps[text] = place
            if isinstance(holder, Mapping):
                named = bool({place.attribute, place.key, place.name} & self._clocks)
                holder[session] = (
                    moved(value, self._clocks, decoded.age, named=named) if self._clocks else value
                )
            else:
                holder.add(session)
        self._known[session] = None

    def install_shared(self, decoded: Decoded) -> None:
        """Make a state that of what sessions share. Dicts, lists and sets of the server stay the same objects.

        Raises:
            StateMismatch: the server has no such attributes. Nothing was touched.
        """
        values = self._current(decoded)
        if not isinstance(values, dict) or set(cast("dict[str, Any]", values)) != {"attributes", "others"}:
            raise StateMismatch("This is no shared state of a server.", hint="It may be that of a session.")
        attributes: dict[str, Any] = values["attributes"]
        others: dict[str, Any] = values["others"]
        absent = [name for name in attributes if not self._attributes.has(name)]
        if absent:
            raise StateMismatch(
                f"{type(self._attributes.server).__name__} has no {', '.join(absent)}. Nothing was touched.",
                hint="Start the version of the server that wrote the state.",
                differences=absent,
            )
        places = {text: Place.read(text) for text in others}
        for place in places.values():
            self._attributes.holder(place, make=False)
        if self._clocks:
            attributes = moved(attributes, self._clocks, decoded.age)
        for name, value in attributes.items():
            self._outside.put(name, value)
        for text, rest in others.items():
            cast("dict[Any, Any]", self._attributes.holder(places[text], make=True)).update(rest)
            self._maps[text] = places[text]
        self._generation += 1

    def remove(self, session: str) -> None:
        """Free all that the server keeps of a session, as far as it is found; see `left_behind`."""
        if session in self._known and not self.has_maps and self.capability != "stateless":
            self._left.add(hash(session))
        for _, holder in list(self._attributes.holders(session)):
            _take_out(holder, session)
        self._known.pop(session, None)
        self._reasons.pop(session, None)

    def left_behind(self, session: str) -> str:
        """Return why the calls of a session cannot be made again in this process; "" if they can.

        What it did here once, and was not found, is still there: it would be done twice. A new process has nothing of it.
        """
        return _LEFT if hash(session) in self._left else ""

    def digest(self, session: str) -> str:
        """Return the digest of a session's live state; "" if nothing of it was found, which says nothing about what it is.

        Of what is nested too deeply it is no digest.
        """
        self.know(session)
        values = self._find(session)
        if not values:
            return ""
        try:
            return digest_and_plain(values, external=self._external, clocks=self._clocks)[0]
        except RecursionError:
            return _DEEP  # like no digest of what was captured, and not like that of nothing

    def agrees(self, session: str, encoded: Encoded) -> bool:
        """Say whether the live state of a session is the one that was read out. Nothing found agrees with an empty state only."""
        return self.digest(session) == (encoded.digest if not _is_empty(encoded) else "")

    def context(self, session: str) -> Any:
        """Return what the server keeps of a session as people read it. See `context.view` for what is cut."""
        self.know(session)
        return view(self._find(session))

    def cache(self) -> dict[str, str]:
        """Return what sessions share, by attribute, in a few words each."""
        maps = self._maps_by_attribute()
        excluded = self._outside.excluded(maps)
        return {
            name: in_words(value)
            for name, value in self._attributes.values().items()
            if name not in maps and name not in excluded
        }

    def _find(self, session: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for place, holder in self._attributes.holders(session):
            text = place.text
            if text not in self._maps:
                self._maps[text] = place
            values[text] = True if place.member else cast("Mapping[str, Any]", holder)[session]
        # In the order of their names: that of attributes made on demand depends on who came first.
        return dict(sorted(values.items())) if len(values) > 1 else values

    def _encode(self, values: dict[str, Any]) -> Encoded:
        return encode(values, key=self._key, external=self._external, clocks=self._clocks)

    def _external(self, *, skip: Collection[str] = ()) -> dict[int, str]:
        return self._outside.names(self._maps, skip=skip)

    def _resolve(self, name: str) -> object:
        found = self._outside.find(name)
        return Missing(name) if found is None else found

    def _current(self, decoded: Decoded) -> Any:
        """Return the value, read again if what it refers to outside was exchanged since it was read."""
        exchanged = decoded.refers and decoded.generation != self._generation
        if not (decoded.taken or exchanged or decoded.missing):
            decoded.taken = True
            return decoded.value
        if decoded.form == "json":
            return from_plain(decoded.data)
        value, _, missing = load(decoded.data, self._resolve)
        if missing:
            raise StateMismatch(
                f"The state refers to {', '.join(missing)}, which the server does not have. Nothing was touched.",
                hint="Install what sessions share first, or start the version of the server that wrote the state.",
                differences=missing,
            )
        return value

    def _fail(self, session: str, values: dict[str, Any], why: str) -> None:
        external = self._external()
        for text, value in values.items():
            found = culprit(value, external)
            if found:
                self._reasons[session] = f"{text}{found} and cannot be taken into another process: {why}"
                break
        else:
            self._reasons[session] = why
        if _PASSING not in why:
            self._failed = True

    def _drop_one(
        self, changed: dict[str, Any], leftover: dict[str, Any], external: Mapping[int, str], why: str
    ) -> bool:
        for group in (changed, leftover):
            for name, value in group.items():
                found = culprit(value, external)
                if found:
                    self._dropped[name] = f"cannot be taken into another process: {name}{found}"
                    del group[name]
                    return True
        for group in (changed, leftover):
            for name in group:
                self._dropped[name] = f"cannot be taken into another process: {why or _DEEP}"
                del group[name]
                return True
        return False

    def _leftover(self) -> dict[str, Any]:
        """Return what stands under other keys in the dicts that sessions are keys of."""
        found: dict[str, Any] = {}
        for text, place in self._maps.items():
            holder = self._attributes.holder(place, make=False) if not place.member else None
            if isinstance(holder, Mapping):
                rest = {key: holder[key] for key in holder if key not in self._known}
                if rest:
                    found[text] = rest
        return found

    def _maps_by_attribute(self) -> frozenset[str]:
        """Return the attributes that are keyed by sessions themselves."""
        return frozenset(
            place.attribute
            for place in self._maps.values()
            if not place.module and place.key is None and not place.name
        )


def _is_empty(encoded: Encoded) -> bool:
    return encoded.form == "json" and not encoded.packed and encoded.data == b"{}"


def _take_out(holder: Holder, session: str) -> None:
    if isinstance(holder, Mapping):
        del holder[session]
    else:
        holder.discard(session)
