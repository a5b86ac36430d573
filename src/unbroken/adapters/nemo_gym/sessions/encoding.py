"""A state between the live server and the log: made into sealed bytes, and read back without touching anything.

A pickle is never loaded before its seal is verified, and what was read is digested and compared with what was written: a class that
drops a part of itself on the way is an error here, not a wrong reward later.
"""

from __future__ import annotations

import hmac
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import zstandard

from unbroken.adapters.nemo_gym.keys import seal
from unbroken.adapters.nemo_gym.records import Encoded
from unbroken.adapters.nemo_gym.sessions.digests import NOTHING, digest_of, plain_digest
from unbroken.adapters.nemo_gym.sessions.pickling import BY_VALUE, pickled, unpickled
from unbroken.adapters.nemo_gym.sessions.plain import decoded as from_plain
from unbroken.adapters.nemo_gym.sessions.plain import encoded as to_plain
from unbroken.errors import CorruptObject, UnsupportedFormat, Untrusted

_PACKED_FROM = 1024
_LEVEL = 1
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True, slots=True)
class Missing:
    """Stands for an object outside that the server does not have (yet)."""

    name: str


@dataclass(slots=True, eq=False)
class Decoded:
    """A state that was read and found whole. Not yet in any server."""

    value: Any
    digest: str
    age: float
    """Seconds by which moments of the monotonic clock in it have to be moved."""
    form: Literal["json", "pickle"]
    data: bytes
    """What it was read from, verified. It is read again to be installed a second time, or after objects outside were
    exchanged."""
    refers: bool = False
    """Whether it refers to objects outside."""
    missing: tuple[str, ...] = ()
    generation: int = 0
    """Of the server's shared state when this was read."""
    taken: bool = False
    """Whether the value is in a server already."""


def digest_and_plain(
    value: object, *, external: Callable[[], Mapping[int, str]], clocks: frozenset[str] = frozenset()
) -> tuple[str, bytes | None]:
    """Return the digest of a state ("" of none), and its JSON if that says all of it. `external` names objects outside.

    Raises:
        RecursionError: it is nested too deeply.
    """
    plain = to_plain(value)
    if plain == b"{}":
        return "", plain
    if plain is None or clocks:
        return digest_of(value, external=NOTHING if plain else external(), clocks=clocks), plain
    return plain_digest(plain), plain


def encode(
    value: object,
    *,
    key: bytes,
    external: Callable[[], Mapping[int, str]],
    clocks: frozenset[str] = frozenset(),
) -> Encoded:
    """Make a state into sealed bytes.

    Raises:
        Unpicklable: a part of it can be taken into no other process.
        RecursionError: it is nested too deeply.
    """
    digest, plain = digest_and_plain(value, external=external, clocks=clocks)
    clock = time.monotonic()
    if plain is not None:
        return _sealed(key, "json", plain, digest, clock=clock)
    result = pickled(value, external())
    return _sealed(key, "pickle", result.data, digest, result.classes, result.excluded, clock)


def _sealed(
    key: bytes,
    form: Literal["json", "pickle"],
    data: bytes,
    digest: str,
    classes: tuple[str, ...] = (),
    excluded: tuple[str, ...] = (),
    clock: float = 0.0,
) -> Encoded:
    packed = len(data) > _PACKED_FROM
    if packed:
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    return Encoded(
        form=form,
        data=data,
        digest=digest,
        seal=seal(key, form.encode(), data, digest.encode()),
        packed=packed,
        classes=classes,
        excluded=excluded,
        python=_PYTHON,
        clock=clock,
    )


def decode(
    encoded: Encoded,
    *,
    key: bytes,
    resolve: Callable[[str], object],
    clocks: frozenset[str] = frozenset(),
    generation: int = 0,
) -> Decoded:
    """Read a state. Nothing is touched, and of a pickle nothing runs unless its seal is right.

    Raises:
        Untrusted: the seal is not that of this key.
        UnsupportedFormat: it holds code of another version of Python.
        CorruptObject: it cannot be read, or is another once it is.
    """
    data = _verified(encoded, key)
    age = time.monotonic() - encoded.clock
    if encoded.form == "json":
        try:
            value = from_plain(data)
        except msgspec.DecodeError as error:
            raise CorruptObject(
                f"The state of a session cannot be read: {error}.", digest=encoded.digest
            ) from error
        digest = digest_and_plain(value, external=lambda: NOTHING, clocks=clocks)[0]
        _compare(digest, encoded)
        return Decoded(value, digest, age, "json", data)
    _check_python(encoded)
    value, external, missing = load(data, resolve)
    try:
        digest = digest_of(value, external=external, clocks=clocks)
    except RecursionError:
        raise CorruptObject("The state of a session is nested too deeply.", digest=encoded.digest) from None
    _compare(digest, encoded)
    return Decoded(value, digest, age, "pickle", data, bool(external), missing, generation)


def load(data: bytes, resolve: Callable[[str], object]) -> tuple[Any, dict[int, str], tuple[str, ...]]:
    """Read a pickle whose seal was verified: the value, the objects outside that it refers to, and which are missing.

    Raises:
        CorruptObject: it cannot be read.
    """
    external: dict[int, str] = {}
    found: dict[str, object] = {}

    def look_up(name: str) -> object:
        if name not in found:
            found[name] = resolve(name)
            external[id(found[name])] = name
        return found[name]

    try:
        value = unpickled(data, look_up)
    except Exception as error:  # classes of the user run here, and may raise anything
        raise CorruptObject(
            f"The pickled state of a session cannot be read: {type(error).__name__}: {error}.",
            hint="Look whether the server's code is the one that wrote it.",
        ) from error
    return value, external, tuple(name for name, thing in found.items() if isinstance(thing, Missing))


def _verified(encoded: Encoded, key: bytes) -> bytes:
    expected = seal(key, encoded.form.encode(), encoded.data, encoded.digest.encode())
    if not hmac.compare_digest(expected, encoded.seal):
        raise Untrusted(
            "The state of a session does not carry the seal of this key: it was changed, or sealed under another key."
            " Nothing in it was run.",
            hint="Set UNBROKEN_KEY to the key of its writer.",
        )
    if not encoded.packed:
        return encoded.data
    try:
        return zstandard.ZstdDecompressor().decompress(encoded.data)
    except zstandard.ZstdError as error:
        raise CorruptObject(
            f"The state of a session cannot be decompressed: {error}.", digest=encoded.digest
        ) from error


def _check_python(encoded: Encoded) -> None:
    by_value = [name.removeprefix(BY_VALUE) for name in encoded.classes if name.startswith(BY_VALUE)]
    if by_value and encoded.python != _PYTHON:
        raise UnsupportedFormat(
            f"The state of a session holds code of Python {encoded.python} ({', '.join(by_value[:3])}),"
            f" and this is Python {_PYTHON}.",
            hint="Start the server with the Python that wrote it, or put that code into a module.",
        )


def _compare(digest: str, encoded: Encoded) -> None:
    if digest != encoded.digest:
        what = f" Its classes are {', '.join(encoded.classes[:5])}." if encoded.classes else ""
        raise CorruptObject(
            f"The state of a session has digest {digest} once it is read, and had {encoded.digest}.{what}",
            hint='A class that drops a part of itself when it is pickled needs capability="replay".',
            digest=encoded.digest,
        )
