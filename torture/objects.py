"""Faults of an object store: at every request, those that only read included.

Over a store in memory that keeps the contract: what is on trial is the protocol, and not a server. Servers are
in `tests/store/test_object_faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torture.case import Case
from torture.life import Promises, first_start
from torture.recovery import examine
from torture.returned import copy_of
from torture.trouble import demand_that_it_went_on, endure
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import ALL, WRITES, Fault, FaultyStore, Kind

KINDS = {
    "no answer, once": Kind.UNAVAILABLE,
    "no answer any more": Kind.OUTAGE,
    "response lost": Kind.LOST_RESPONSE,
    "request doubled": Kind.DUPLICATE,
    "request doubled, the second one late": Kind.DELAYED,
    "no room": Kind.FULL,
    "read cut short": Kind.TRUNCATED,
    "listing out of date": Kind.STALE,
    "process gone before a request": Kind.STOP_BEFORE,
    "process gone after a request": Kind.STOP_AFTER,
}
_ABOUT: dict[Kind, frozenset[str]] = {
    Kind.DUPLICATE: WRITES,
    Kind.DELAYED: WRITES,
    Kind.LOST_RESPONSE: WRITES,
    Kind.FULL: WRITES - {"delete"},
    Kind.STOP_BEFORE: WRITES,
    Kind.STOP_AFTER: WRITES,
    Kind.TRUNCATED: frozenset({"get", "get_range"}),
    Kind.STALE: frozenset({"list"}),
}


def cases() -> Iterator[Case]:
    """Yield the faults, at the birth of a run and at its second start."""
    old, promises = MemoryStore(), Promises()
    first_start(old, promises)
    contents = {key: old.get(key) for key in old.list()}
    for life, (objects, promised) in {
        "birth": ({}, Promises()),
        "second start": (contents, promises),
    }.items():
        counting = FaultyStore(_filled(objects), counted=ALL)
        endure(counting, copy_of(promised))
        for at, operation in enumerate(counting.operations):
            for name, kind in KINDS.items():
                if operation.name in _ABOUT.get(kind, ALL):
                    yield Case(
                        f"bucket: {name}",
                        f"{life}, request {at}: {operation.name} {operation.key}",
                        f"bucket {life} {at} {name}",
                        partial(_run, objects, promised, kind, at),
                    )


def _filled(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        store.put(key, data)
    return store


def _run(objects: dict[str, bytes], promises: Promises, kind: Kind, at: int, _folder: Path) -> int:
    made, inner = copy_of(promises), _filled(objects)
    store = FaultyStore(inner, fault=Fault(kind, at), counted=ALL)
    over: list[bool] = []

    def mended() -> None:
        over.append(store.fired)
        store.mend()

    trouble = endure(store, made, before_last=mended)
    assert store.fired, "the fault has not happened"
    if over == [True] and kind is not Kind.FULL and not trouble.stopped:
        demand_that_it_went_on(trouble, kind.value)
    counting = FaultyStore(inner, counted=ALL)
    examine(counting, made)
    return len(counting.operations)
