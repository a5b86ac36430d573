"""A store that fails at a chosen operation: the fake behind crash-at-every-step tests.

Wrap a store, let the code run once without a fault to count its operations, then once for each of
them with a fault there, and look at what is left:

    counting = FaultyStore(MemoryStore())
    save(counting)
    for at in range(len(counting.operations)):
        store = MemoryStore()
        with contextlib.suppress(Stopped):
            save(FaultyStore(store, fault=Fault(Kind.STOP_AFTER, at)))
        assert_recoverable(store)

What a store can do beyond the contract the faulty one can do too, and no more. Several objects at once
count as one operation each, so that a fault can fall between their names.

Only what a caller can observe is simulated; whether a real disk keeps its promises is not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

from unbroken.errors import StoreFull, StoreUnavailable
from unbroken.format.buffers import Content, pieces
from unbroken.store.base import (
    ByteStore,
    Names,
    SupportsDeleteAll,
    SupportsPutAll,
    SupportsReadInto,
    delete_all,
    put_all,
    read_into,
)

T = TypeVar("T")

WRITES = frozenset({"put", "put_if_absent", "delete"})
"""The operations that change something."""
ALL = WRITES | {"get", "get_range", "size", "list", "read_into"}
UNSEEN = 3
"""Objects that a stale listing does not show yet."""


class Stopped(BaseException):
    """The process "died" here. No `Exception`: code under test must not be able to handle its death."""


class Kind(Enum):
    """What goes wrong."""

    STOP_BEFORE = "the process stops before the operation"
    STOP_AFTER = "the process stops after the operation"
    KILL_BEFORE = "this very process gets SIGKILL before the operation"
    KILL_AFTER = "this very process gets SIGKILL after the operation"
    TORN = "half of what is written arrives, and the process stops: a store without atomic writes"
    UNAVAILABLE = "nothing happens, and the store says that it cannot be reached"
    LOST_RESPONSE = "the operation happens, and the store says that it cannot be reached"
    FULL = "nothing happens, and no room is left for this write or any later one"
    OUTAGE = "from here on the store cannot be reached, until `mend` is called"
    DUPLICATE = "the operation happens twice, and the second answer is given"
    DELAYED = "the operation happens, and once more after the one that follows"
    TRUNCATED = "what is read arrives by half"
    STALE = "a listing does not show what was written last"


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` happens at operation number `at`, counted from 0 over the operations that are counted."""

    kind: Kind
    at: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that was asked for."""

    name: str
    key: str


class FaultyStore:
    """Passes everything on to `inner`, except at the fault.

    Counts and records the operations in `counted`; by default those that change something, since
    a stop between two reads leaves the same as one before the first.
    """

    put_all: Callable[[Iterable[tuple[str, Content]]], None]
    """See `SupportsPutAll`; there only if `inner` has it, as the two below."""
    delete_all: Callable[[Iterable[str]], None]
    read_into: Callable[[str, int, Sequence[memoryview]], int]

    def __init__(
        self, inner: ByteStore, *, fault: Fault | None = None, counted: frozenset[str] = WRITES
    ) -> None:
        self.inner = inner
        self.operations: list[Operation] = []
        self._fault = fault
        self._counted = counted
        self._stopped = False
        self._full = False
        self._out = False
        self._delayed: Callable[[], object] | None = None
        self._written: list[str] = []
        if isinstance(inner, SupportsPutAll):
            self.put_all = self._put_all
        if isinstance(inner, SupportsDeleteAll):
            self.delete_all = self._delete_all
        if isinstance(inner, SupportsReadInto):
            self.read_into = self._read_into

    @property
    def fired(self) -> bool:
        """Whether the fault has happened. A test that does not look may have tested nothing."""
        return self._fault is not None and len(self.operations) > self._fault.at

    def mend(self) -> None:
        """End an outage."""
        self._out = False

    def get(self, key: str) -> bytes:
        """See `ByteStore`."""
        return self._read(self._run("get", key, lambda: self.inner.get(key)))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ByteStore`."""
        return self._read(self._run("get_range", key, lambda: self.inner.get_range(key, offset, length)))

    def size(self, key: str) -> int:
        """See `ByteStore`."""
        return self._run("size", key, lambda: self.inner.size(key))

    def put(self, key: str, data: Content) -> None:
        """See `ByteStore`."""
        content = b"".join(pieces(data))
        self._run("put", key, lambda: self.inner.put(key, content), self._torn(key, content))

    def put_if_absent(self, key: str, data: Content) -> bool:
        """See `ByteStore`."""
        content = b"".join(pieces(data))
        torn = self._torn(key, content, only_new=True)
        return self._run("put_if_absent", key, lambda: self.inner.put_if_absent(key, content), torn)

    def list(self, prefix: str = "") -> Names:
        """See `ByteStore`."""
        found = self._run("list", prefix, lambda: self.inner.list(prefix))
        if self._happens_now(Kind.STALE, "list"):
            return [key for key in found if key not in self._written[-UNSEEN:]]
        return found

    def delete(self, key: str) -> None:
        """See `ByteStore`."""
        self._run("delete", key, lambda: self.inner.delete(key))

    def _put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        contents = [(key, b"".join(pieces(data))) for key, data in items]
        for key, _ in contents:
            self._check("put", key)
        counted = [Operation("put", key) for key, _ in contents if "put" in self._counted]
        ahead = len(self.operations)
        fault = self._fault
        if fault is None or not ahead <= fault.at < ahead + len(counted):
            self.operations += counted
            put_all(self.inner, contents)
        elif fault.kind is Kind.FULL:
            # Room is needed before the first name appears: a disk that gets full leaves none of them.
            self.operations += counted
            self._full = True
            raise _full(counted[fault.at - ahead].key)
        else:
            for key, content in contents:
                self.put(key, content)

    def _delete_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._run("delete", key, partial(delete_all, self.inner, [key]))

    def _read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        return self._run("read_into", key, lambda: read_into(self.inner, key, offset, parts))

    def _torn(self, key: str, content: bytes, *, only_new: bool = False) -> Callable[[], None]:
        def write_half() -> None:
            half = content[: len(content) // 2]
            if only_new:
                self.inner.put_if_absent(key, half)
            else:
                self.inner.put(key, half)

        return write_half

    def _read(self, data: bytes) -> bytes:
        return data[: len(data) // 2] if self._happens_now(Kind.TRUNCATED, "get", "get_range") else data

    def _happens_now(self, kind: Kind, *names: str) -> bool:
        """Whether the operation that was just done is the one at which a fault of its answer happens."""
        fault = self._fault
        return (
            fault is not None
            and fault.kind is kind
            and len(self.operations) == fault.at + 1
            and self.operations[-1].name in names
            and self.operations[-1].name in self._counted
        )

    def _check(self, name: str, key: str) -> None:
        if self._stopped:
            raise Stopped(f"{name} {key} by a process that has stopped")
        if self._full and name in WRITES and name != "delete":
            raise _full(key)
        if self._out:
            raise _unavailable(key)

    def _run(
        self, name: str, key: str, operation: Callable[[], T], torn: Callable[[], None] | None = None
    ) -> T:
        self._check(name, key)
        if name in WRITES:
            self._written.append(key)
        if name not in self._counted:
            return operation()
        number = len(self.operations)
        self.operations.append(Operation(name, key))
        if self._fault is None or number != self._fault.at:
            delayed, self._delayed = self._delayed, None
            try:
                return operation()
            finally:
                if delayed is not None:
                    delayed()
        return self._fail(self._fault.kind, name, key, operation, torn)

    def _fail(
        self, kind: Kind, name: str, key: str, operation: Callable[[], T], torn: Callable[[], None] | None
    ) -> T:
        if kind is Kind.KILL_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind is Kind.FULL:
            if name == "delete":
                return operation()
            self._full = True
            raise _full(key)
        if kind in (Kind.UNAVAILABLE, Kind.OUTAGE):
            self._out = kind is Kind.OUTAGE
            raise _unavailable(key)
        if kind in (Kind.TRUNCATED, Kind.STALE):
            return operation()  # what is wrong with the answer is seen to by whoever gives it
        if kind is Kind.DELAYED:
            self._delayed = operation
            return operation()
        if kind is Kind.DUPLICATE:
            operation()
            return operation()
        if kind is Kind.TORN and torn is not None:
            torn()
        if kind in (Kind.STOP_AFTER, Kind.KILL_AFTER, Kind.LOST_RESPONSE):
            operation()
        if kind is Kind.LOST_RESPONSE:
            raise _unavailable(key)
        if kind is Kind.KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        self._stopped = True
        raise Stopped(f"{kind.value}: {name} {key}")


def _full(key: str) -> StoreFull:
    return StoreFull(f"No room is left for writing {key}.", key=key)


def _unavailable(key: str) -> StoreUnavailable:
    return StoreUnavailable(f"The store did not answer for {key}.", key=key)
