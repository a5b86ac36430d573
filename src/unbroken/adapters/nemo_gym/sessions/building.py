"""What a server drew when it was built, kept so that a server that is started again has what was drawn first.

Every start builds the server anew, and what it takes from chance then (`self._bonus = random.random()`, an unseeded
`random.Random()`) is another. At a log's first start each attribute is read out by itself. A later start compares, puts back those
that are others, and touches nothing that is the same. What cannot be put back is named.

What says where something is (an address, a port, a directory that is gone) stays as this start has it: the old one may be dead.

Not promised: that an object which two attributes share below themselves stays one object where one of the two was drawn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from unbroken.adapters.nemo_gym.records import Built, Encoded
from unbroken.adapters.nemo_gym.sessions.attributes import Attributes
from unbroken.adapters.nemo_gym.sessions.clocks import moved
from unbroken.adapters.nemo_gym.sessions.encoding import Decoded, decode, encode
from unbroken.adapters.nemo_gym.sessions.live import kind_of, name_of
from unbroken.adapters.nemo_gym.sessions.outside import Outside
from unbroken.adapters.nemo_gym.sessions.pickling import Unpicklable
from unbroken.adapters.nemo_gym.sessions.registry import config_hash
from unbroken.errors import UnbrokenError

LARGEST = 1 << 20
"""Bytes of an attribute, as it is written, up to which it is kept. Of a larger one only the digest is."""
_ANEW = "drawn anew when the server was built, and"
_COPYING = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
_PLACES = re.compile(r"(^|_)(ports?|hosts?|hostname|urls?|addr(ess)?|endpoints?|pid)$", re.IGNORECASE)


class Building:
    """Of one server. `left` are the attributes that are not what the log's first start drew, and why."""

    def __init__(
        self,
        attributes: Attributes,
        outside: Outside,
        *,
        key: bytes,
        clocks: frozenset[str],
        resolve: Callable[[str], object],
    ) -> None:
        self.left: dict[str, str] = {}
        self._attributes = attributes
        self._outside = outside
        self._key = key
        self._clocks = clocks
        self._resolve = resolve

    def read(self) -> Built:
        """Read out all attributes that can be compared."""
        digests = self._outside.digests()
        values = self._attributes.values()
        states: dict[str, Encoded] = {}
        left: dict[str, str] = {}
        for name in digests:
            encoded = self._encode(name, values[name])
            if isinstance(encoded, Encoded):
                states[name] = encoded
            else:
                left[name] = encoded
        return Built(config=config_hash(self._attributes.server), digests=digests, states=states, left=left)

    def install(self, built: Built) -> tuple[str, ...]:
        """Put back what was drawn; return what was done and what is to be known. Never raises for one attribute: it is named in `left`."""
        now = self._outside.digests()
        others = [name for name, digest in built.digests.items() if now.get(name, digest) != digest]
        self.left = {}
        notes: list[str] = []
        if others and built.config != config_hash(self._attributes.server):
            self.left = dict.fromkeys(others, f"{_ANEW} not put back: the configuration is another")
            return ()
        wanted: dict[str, Decoded] = {}
        for name in others:
            if name not in built.states:
                self.left[name] = f"{_ANEW} {built.left.get(name, 'not kept')}"
                continue
            try:
                decoded = self._decode(built.states[name])
            except UnbrokenError as error:
                self.left[name] = f"{_ANEW} what was kept is of no use: {error}"
                continue
            if decoded.missing:
                self.left[name] = f"{_ANEW} what was kept refers to {', '.join(decoded.missing)}"
            elif self._is_place(name, decoded):
                notes.append(f"{name}: says where something is, and is that of this start")
            else:
                wanted[name] = decoded
        # Those that refer to other attributes come last, and are read again: these may be other objects then.
        for name, decoded in sorted(wanted.items(), key=lambda item: item[1].refers):
            fresh = self._decode(built.states[name]) if decoded.refers else decoded
            value = fresh.value["value"]
            if self._clocks:
                value = moved({name: value}, self._clocks, fresh.age)[name]
            self._put(name, value)
            notes.append(f"{name}: as its log has it; it was drawn anew when the server was built")
        self._outside.put_back(wanted)
        return tuple(notes)

    def _encode(self, name: str, value: Any) -> Encoded | str:
        """Return an attribute as it is written; why not, if it is not."""
        if getattr(value, "nbytes", 0) > LARGEST:
            return "too large to keep"
        try:
            encoded = encode(
                {"value": value},
                key=self._key,
                external=lambda: self._outside.names({}, skip=(name,)),
                clocks=self._clocks,
            )
        except (Unpicklable, RecursionError) as error:
            return f"cannot be kept: {error}"
        except Exception as error:  # noqa: BLE001 - the user's code; one attribute must not stop a server
            return f"cannot be kept: {type(error).__name__}: {error}"
        return encoded if len(encoded.data) <= LARGEST else "too large to keep"

    def _decode(self, encoded: Encoded) -> Decoded:
        return decode(encoded, key=self._key, resolve=self._resolve, clocks=self._clocks)

    def _is_place(self, name: str, decoded: Decoded) -> bool:
        if _PLACES.search(name) or b"://" in decoded.data:
            return True
        value, live = decoded.value["value"], self._attributes.values().get(name)
        if not isinstance(value, (str, Path)) or not isinstance(live, (str, Path)):
            return False
        return _is_there(live) and not _is_there(value)

    def _put(self, name: str, value: Any) -> None:
        """Set an attribute; where that can be done it stays the same object, which others may refer to."""
        live: Any = self._attributes.values().get(name)
        if type(live) is type(value):
            if type(live) is random.Random:
                live.setstate(value.getstate())
                return
            if name_of(type(live)) == "numpy.random._generator.Generator" and type(
                live.bit_generator
            ) is type(value.bit_generator):
                live.bit_generator.state = value.bit_generator.state
                return
            if _is_what_it_has(live):
                fields = dict(cast("dict[str, Any]", vars(value)))
                vars(live).clear()
                vars(live).update(fields)
                return
        self._outside.put(name, value)


def _is_there(path: str | Path) -> bool:
    try:
        return Path(path).is_absolute() and Path(path).exists()
    except (OSError, ValueError):  # a text that is no path at all
        return False


def _is_what_it_has(value: Any) -> bool:
    """Whether an object of a plain class is all that its attributes are."""
    cls, plain = type(value), cast("Any", object)
    return (
        hasattr(value, "__dict__")
        and not kind_of(value)
        and not isinstance(value, type)
        and all(getattr(cls, name, None) is getattr(plain, name, None) for name in _COPYING)
        and not any(
            issubclass(cls, kind) for kind in (dict, list, set, tuple, str, bytes, int, float, BaseException)
        )
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
    )
