"""The contract of a byte store: objects with names, nothing more.

A store promises, for every backend:

- `put` and `put_if_absent` are atomic: a reader sees the whole object, the one before, or none;
- when they return, the object and its name survive a power loss;
- of several `put_if_absent` for one key, at most one returns True;
- an object that was put is found by `get` and `list` at once.

It does not promise that an error means "nothing happened": a response can be lost. Whoever must know
looks again. What a store can do beyond this is a Protocol of its own, asked with `isinstance`.
`testing/store_suite.py` checks all of it for any backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from unbroken.errors import ObjectBlocked, ObjectMissing, StoreError, StoreUnavailable
from unbroken.format.buffers import Content

Names: TypeAlias = list[str]
"""Keys or names, sorted."""

MAX_KEY = 1024
MAX_NAME = 255


class ByteStore(Protocol):
    """Named objects. Keys are relative paths with ``/``, see `check_key`."""

    def get(self, key: str) -> bytes:
        """Return the object; `ObjectMissing` if there is none."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`: fewer only where the object ends."""
        ...

    def size(self, key: str) -> int:
        """Return the object's size in bytes; `ObjectMissing` if there is none."""
        ...

    def put(self, key: str, data: Content) -> None:
        """Write the object, in place of one that is there."""
        ...

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Write the object if there is none of this name. Return whether it was written."""
        ...

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix` (a key followed by ``/``, without it), sorted."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object. It is no error if there is none."""
        ...


@runtime_checkable
class SupportsChildren(Protocol):
    """Can say what lies directly below a prefix without listing everything."""

    def children(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`, sorted; of objects and of prefixes alike."""
        ...


@runtime_checkable
class SupportsTaken(Protocol):
    """May hold something else than an object under an object's name."""

    def taken(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`, sorted, of objects, of prefixes and of what is neither."""
        ...


@runtime_checkable
class SupportsLocalPath(Protocol):
    """Keeps objects as files that other programs may read."""

    def local_path(self, key: str = "") -> Path:
        """Return the path of an object or prefix, whether or not it exists."""
        ...


@runtime_checkable
class SupportsSweep(Protocol):
    """May hold leftovers of writes that a crash has cut off."""

    def sweep(self, *, older_than: float) -> Names:
        """Delete leftovers not touched for `older_than` seconds; return their names."""
        ...


@runtime_checkable
class SupportsAppend(Protocol):
    """Can add to the end of an object without writing the whole of it again."""

    def append(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Add `data` at the end; make the object if there is none. A crash may leave part of it. What is not to be
        `durable` outlives the process, and may be lost with the machine."""
        ...


@runtime_checkable
class SupportsPutAll(Protocol):
    """Can make several objects durable together, which costs hardly more than one."""

    def put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        """Write the objects. The last name appears once all the others are durable; those before it, in any order.

        The content of one is read to its end before the next one is asked for. When it returns, all are
        durable; after an error some of them may be there. A store in a directory promises more: no name
        appears before all contents are durable, and after an error in a content none does.
        """
        ...


@runtime_checkable
class SupportsDeleteAll(Protocol):
    """Can delete several objects with one wait for the disk."""

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete the objects in this order; when it returns, all deletions are durable.

        Each is deleted before the next key is asked for: whoever deletes makes sure before each that he
        still may.
        """
        ...


@runtime_checkable
class SupportsReadInto(Protocol):
    """Can read into memory that is there already."""

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts` one after the other with the bytes from `offset` on; return how many were read,
        fewer than asked for only where the object ends. `ObjectMissing` if there is none."""
        ...


@runtime_checkable
class SupportsProbe(Protocol):
    """May turn out to be no such store as this contract asks for."""

    def probe(self) -> None:
        """Try it out, and leave nothing behind. `ConfigError` if it does not keep its promises."""
        ...


@runtime_checkable
class SupportsLocalHints(Protocol):
    """Keeps some objects on this machine, where they cost no network and no other host sees them."""

    def is_local(self, key: str) -> bool:
        """Whether the object of this name lies, or would lie, on this machine."""
        ...

    def hint_path(self, name: str) -> Path:
        """Return a path on this machine that belongs to this store alone, whether or not it exists."""
        ...


@runtime_checkable
class SupportsNotes(Protocol):
    """Can write a small object again and again for less than it costs to replace one."""

    def note(self, key: str, data: bytes) -> None:
        """Write the object in place, durably; make it if there is none. It may come to be followed by
        blanks. A crash may leave a part of it: only for what its reader can do without."""
        ...


@runtime_checkable
class SupportsWords(Protocol):
    """Can tell other processes something at less cost than an object takes that must outlive a power loss."""

    def say(self, key: str, data: bytes) -> bool:
        """Write a small object if there is none of this name; return whether it was written. It appears whole
        or not at all, and a power loss may take it: only for what nobody needs when all processes are gone."""
        ...


def say(store: ByteStore, key: str, data: bytes) -> bool:
    """Write a small object, if there is none of this name, for processes that live now."""
    return store.say(key, data) if isinstance(store, SupportsWords) else store.put_if_absent(key, data)


def note(store: ByteStore, key: str, data: bytes) -> None:
    """Write a small object of which a reader makes nothing if it is torn; spaces at its end mean nothing."""
    if isinstance(store, SupportsNotes):
        store.note(key, data)
    else:
        store.put(key, data)


def clear_note(store: ByteStore, key: str) -> None:
    """Leave nothing of a note: no object, or one of blanks."""
    if isinstance(store, SupportsNotes):
        store.note(key, b"")
    else:
        store.delete(key)


def put_all(store: ByteStore, items: Iterable[tuple[str, Content]]) -> None:
    """Write several objects, in this order or together; the last one is there last."""
    if isinstance(store, SupportsPutAll):
        store.put_all(items)
        return
    for key, data in items:
        store.put(key, data)


def delete_all(store: ByteStore, keys: Iterable[str]) -> None:
    """Delete several objects in this order, each before the next key is asked for."""
    if isinstance(store, SupportsDeleteAll):
        store.delete_all(keys)
        return
    for key in keys:
        store.delete(key)


def read_into(store: ByteStore, key: str, offset: int, parts: Sequence[memoryview]) -> int:
    """Fill `parts` with the bytes from `offset` on; return how many were read."""
    if isinstance(store, SupportsReadInto):
        return store.read_into(key, offset, parts)
    data = memoryview(store.get_range(key, offset, sum(part.nbytes for part in parts)))
    at = 0
    for part in parts:
        piece = data[at : at + part.nbytes]
        part.cast("B")[: piece.nbytes] = piece
        at += piece.nbytes
    return at


def append(store: ByteStore, key: str, line: bytes, *, durable: bool = True) -> None:
    """Add a line to an object that grows by lines. One that a crash has cut off is ended first.

    A store that cannot append is given the whole object; of two writers at once one may then be lost.
    """
    try:
        size = store.size(key)
        torn = size > 0 and store.get_range(key, size - 1, 1) != b"\n"
    except ObjectMissing:
        size, torn = 0, False
    except ObjectBlocked:
        size, torn = 0, False
    if torn:
        line = b"\n" + line
    if isinstance(store, SupportsAppend):
        try:
            store.append(key, line, durable=durable)
        except ObjectBlocked:
            store.put(key, line)  # no file is there, and so no line that could be lost
        return
    try:
        before = store.get(key)
    except ObjectMissing:
        before = b""
    if len(before) < size:
        # An answer that was cut short: written back, it would take the other lines with it.
        raise StoreUnavailable(f"Of {key} only {len(before)} bytes of {size} arrived.", key=key)
    store.put(key, before + line)


def check_key(key: str) -> str:
    """Return `key` if it is a usable name; else raise `StoreError`.

    A key consists of names joined by ``/``. A name is not empty, does not start with a dot (such are
    the store's own) and holds no backslash and no control character.

    >>> check_key("commits/0000000001.json")
    'commits/0000000001.json'
    """
    problem = _problem(key)
    if problem:
        raise StoreError(f"{key[:200]!r} is not a usable name for an object: {problem}.", key=key[:200])
    return key


def is_key(name: str) -> bool:
    """Whether `name` is a usable key."""
    return not _problem(name)


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it is empty or a usable key; else raise `StoreError`."""
    return check_key(prefix) if prefix else prefix


def check_range(key: str, offset: int, length: int) -> None:
    """Raise `StoreError` if a range is negative: no backend agrees with another on what that means."""
    if offset < 0 or length < 0:
        raise StoreError(f"{length} bytes from {offset} on is not a range.", key=key)


def exists(store: ByteStore, key: str) -> bool:
    """Whether there is an object of this name, whatever a listing says."""
    try:
        store.size(key)
    except ObjectMissing:
        return False
    except ObjectBlocked:
        return True  # nobody can write one of this name
    return True


def taken(store: ByteStore, prefix: str) -> Names:
    """Return the keys directly below `prefix` under which something stands, be it no object."""
    if isinstance(store, SupportsTaken):
        return [f"{prefix}/{name}" if prefix else name for name in store.taken(prefix)]
    return store.list(prefix)


def children(store: ByteStore, prefix: str = "") -> Names:
    """Return the names directly below `prefix`, by the store's own means or by listing everything."""
    if isinstance(store, SupportsChildren):
        return store.children(prefix)
    start = len(prefix) + 1 if prefix else 0
    return sorted({key[start:].partition("/")[0] for key in store.list(prefix)})


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _problem(key: str) -> str:
    try:
        encoded = key.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not text"
    if len(encoded) > MAX_KEY:
        return f"it is longer than {MAX_KEY} bytes"
    if "\\" in key:
        return "it holds a backslash"
    if _CONTROL.search(key):
        return "it holds a control character"
    for name in key.split("/"):
        if not name:
            return "a part of it is empty"
        if name.startswith("."):
            return "a part of it starts with a dot"
        if len(name.encode("utf-8")) > MAX_NAME:
            return f"a part of it is longer than {MAX_NAME} bytes"
    return ""
