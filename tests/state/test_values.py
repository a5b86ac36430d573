"""Every kind of value comes back as it was: through JSON, through MessagePack, and in place."""

from __future__ import annotations

import collections
import functools
import itertools
import struct
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from tests.state.values import (
    ENCODINGS,
    POLICY,
    VALUES,
    Holder,
    Names,
    Record,
    Slotted,
    alike,
    labelled,
    restored,
    through,
)
from unbroken.state.graft import plan
from unbroken.state.policy import Policy
from unbroken.state.walk import capture


def test_alike_sees_what_differs() -> None:
    for name, value in VALUES.items():
        assert alike(value, value), name
        others: tuple[Any, ...] = (None, 0, [], {}, np.zeros(1), Record("z", []))
        for other in others:
            if other is not value:
                assert not alike(value, other), name
    assert not alike(Record("a", [1]), Record("a", [2]))
    assert not alike(labelled(Names([1]), "a"), labelled(Names([1]), "b"))


@ENCODINGS
@pytest.mark.parametrize("name", VALUES)
def test_comes_back_where_nothing_stood(encoding: str, name: str) -> None:
    assert alike(restored(encoding, VALUES[name], None), VALUES[name])


@ENCODINGS
@pytest.mark.parametrize("name", VALUES)
def test_comes_back_over_something_else(encoding: str, name: str) -> None:
    for twin in (5, "text", [1, 2, 3], {"a": 1}, {1: [2]}):
        assert alike(restored(encoding, VALUES[name], twin), VALUES[name])


@ENCODINGS
def test_special_floats_keep_their_bits(encoding: str) -> None:
    odd = struct.unpack(">d", bytes.fromhex("fff8000000001234"))[0]
    back = restored(encoding, [-0.0, float("nan"), odd], None)
    assert [struct.pack(">d", x).hex() for x in back] == [
        "8000000000000000",
        "7ff8000000000000",
        "fff8000000001234",
    ]


@ENCODINGS
def test_mutable_objects_of_the_twin_are_filled_in_place(encoding: str) -> None:
    twins: dict[str, Any] = {
        "list": [9],
        "dict": {"b": 1, "a": 2},
        "ordered": collections.OrderedDict(z=1),
        "deque": collections.deque([5], maxlen=2),
        "set": {7},
        "array": np.zeros((2, 2)),
        "bytes": bytearray(b"zz"),
        "object": Record("old", []),
    }
    saved: dict[str, Any] = {
        "list": [1, 2],
        "dict": {"a": 1, "c": 3},
        "ordered": collections.OrderedDict(b=1, a=2),
        "deque": collections.deque([1, 2], maxlen=2),
        "set": {1},
        "array": np.ones((2, 2)),
        "bytes": bytearray(b"abc"),
        "object": Record("new", [1]),
    }
    before = dict(twins)
    back = restored(encoding, saved, twins)
    assert back is twins
    for name, twin in before.items():
        assert back[name] is twin
    assert list(back["ordered"]) == ["b", "a"]
    assert list(back["dict"]) == ["a", "c"]


@ENCODINGS
def test_slots_are_walked_private_ones_too(encoding: str) -> None:
    saved = Slotted()
    saved.left.append(2)
    back = restored(encoding, saved, Slotted())
    assert back.left == [1, 2]
    assert back.private() == 2
    assert not hasattr(back, "unset")


@ENCODINGS
def test_aliases_and_cycles_survive(encoding: str) -> None:
    shared: list[Any] = [1]
    cycle: list[Any] = []
    cycle.append(cycle)
    back = restored(encoding, {"a": shared, "b": (shared,), "c": cycle}, None)
    assert back["a"] is back["b"][0]
    assert back["c"][0] is back["c"]


@ENCODINGS
def test_two_saved_objects_never_become_one(encoding: str) -> None:
    twin_list = [0]
    back = restored(encoding, {"a": [1], "b": [1]}, {"a": twin_list, "b": twin_list})
    assert back["a"] is not back["b"]


@ENCODINGS
def test_views_keep_sharing_memory(encoding: str) -> None:
    base = np.arange(1000.0)
    value = {
        "base": base,
        "every third": base[::3],
        "backwards": base[::-1],
        "as ints": base[:8].view(np.int64),
    }
    back = restored(encoding, value, None)
    back["base"][0] = 77.0
    assert back["every third"][0] == 77.0
    assert back["backwards"][-1] == 77.0
    assert back["as ints"][0] == np.float64(77.0).view(np.int64)


def test_a_small_view_does_not_drag_its_base_along() -> None:
    base = np.zeros(1_000_000)
    snapshot = capture({"root": Holder(value=base[:2000])}, POLICY)
    assert sum(c.nbytes for c in snapshot.components.values()) == 16_000


@ENCODINGS
def test_an_unfilled_ring_saves_only_its_written_rows(encoding: str) -> None:
    class Ring:
        def __init__(self) -> None:
            self.rows = np.zeros((1000, 4))
            self.infos = np.empty(1000, dtype=object)

    def written(obj: object) -> dict[str, int] | None:
        return {"rows": 3, "infos": 2} if isinstance(obj, Ring) else None

    policy = Policy(rings=(written,))
    saved, twin = Ring(), Ring()
    saved.rows[:3] = 5
    saved.infos[:2] = [{"a": 1}, {}]
    snapshot = through(encoding, capture({"ring": saved}, policy))
    assert sum(c.nbytes for c in snapshot.components.values()) == 0  # 96 bytes stand in the document
    array = twin.rows
    graft = plan(snapshot, {"ring": twin}, policy)
    graft.apply()
    assert twin.rows is array
    assert twin.rows.tobytes() == saved.rows.tobytes()
    assert twin.infos.tolist() == saved.infos.tolist()


def _counter() -> Any:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


@ENCODINGS
def test_a_closure_keeps_counting(encoding: str) -> None:
    saved, twin = _counter(), _counter()
    for _ in range(5):
        saved()
    assert restored(encoding, saved, twin) is twin
    assert twin() == 6


@ENCODINGS
def test_partials_and_bound_methods_lead_to_the_twin(encoding: str) -> None:
    log: list[int] = [1, 2]
    value = {"log": log, "append": log.append, "partial": functools.partial(sorted, log)}
    twin_log: list[int] = []
    twin = {"log": twin_log, "append": twin_log.append, "partial": functools.partial(sorted, twin_log)}
    back = restored(encoding, value, twin)
    back["append"](9)
    assert back["log"] == [1, 2, 9]
    assert back["partial"]() == [1, 2, 9]


@ENCODINGS
def test_what_cannot_travel_is_kept_from_the_twin(encoding: str) -> None:
    target = Holder()
    value = {"lock": threading.Lock(), "ref": weakref.ref(target)}
    twin = {"lock": threading.Lock(), "ref": weakref.ref(target)}
    lock, ref = twin["lock"], twin["ref"]
    back = restored(encoding, value, twin)
    assert back["lock"] is lock
    assert back["ref"] is ref


@ENCODINGS
def test_a_count_goes_on(encoding: str) -> None:
    counter = itertools.count(3, 2)
    next(counter)
    back = restored(encoding, counter, itertools.count())
    assert next(back) == 5
