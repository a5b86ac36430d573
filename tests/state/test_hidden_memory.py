"""What a class written in C holds behind all attributes is saved too, or named as lost; never half of it."""

from __future__ import annotations

import ctypes
import queue
import threading
import types
from typing import Any

import numpy as np
import pytest

from unbroken.state.graft import plan
from unbroken.state.lookup import Kind, lookup
from unbroken.state.nodes import Object, class_name
from unbroken.state.policy import Policy
from unbroken.state.walk import capture

POLICY = Policy()


class Holder:
    def __init__(self, value: object = None) -> None:
        self.value: Any = value


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("n", ctypes.c_int))


class Pointing(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p),)


class Letters(bytearray):
    pass


class Slots:
    __slots__ = ("a", "b")


class Both(Slots):
    __slots__ = ("__dict__", "__weakref__", "c")


class Own(threading.local):
    pass


class Namespace(types.SimpleNamespace):
    pass


def frame(rows: int) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"n": range(rows), "x": np.arange(rows) / 2, "name": ["a"] * rows})


def column(rows: int) -> Any:
    return frame(rows)["x"]


def tree(points: int) -> Any:
    spatial = pytest.importorskip("scipy.spatial")
    return spatial.KDTree(np.arange(2.0 * points).reshape(points, 2))


def point(n: int) -> Point:
    return Point(n / 2, n)


class Spoilt(ValueError):
    pass


def spoilt(n: int) -> Spoilt:
    return Spoilt("the reward is no number", n)


def shown(value: Any) -> object:
    if isinstance(value, Point):
        return value.x, value.n
    if type(value).__name__ == "KDTree":
        return value.query([4.0, 4.0]), value.n, value.data.tolist()
    return str(value)


def letters(n: int) -> Letters:
    return Letters(b"a" * n)


@pytest.mark.parametrize("make", [frame, column, tree, point, letters, spoilt])
def test_it_comes_back_whole(make: Any) -> None:
    saved, twin = Holder(make(5)), Holder(make(2))
    assert shown(saved.value) != shown(twin.value)
    plan(capture({"r": saved}, POLICY), {"r": twin}, POLICY, trusted=True).apply()
    assert shown(twin.value) == shown(saved.value)


def test_what_cannot_be_pickled_is_named() -> None:
    notes = capture({"r": Holder(Pointing(1))}, POLICY).notes
    assert [(note.kind, note.place) for note in notes] == [("not captured", "r/value")]


def test_where_attributes_may_be_shared_it_is_said_that_they_come_back_twice() -> None:
    stats: dict[str, int] = {}
    alone, shared = letters(3), letters(3)
    shared.__dict__["stats"] = stats
    kinds = {note.kind for note in capture({"r": Holder(alone)}, POLICY).notes}
    assert kinds == {"opaque"}
    kinds = {note.kind for note in capture({"r": Holder([shared, stats])}, POLICY).notes}
    assert kinds == {"opaque", "approximate"}


def test_what_was_saved_in_parts_is_refused_before_anything_is_written() -> None:
    document = capture({"r": Holder()}, POLICY)
    (component,) = document.components.values()
    root: Any = component.roots["r"]
    root.a["value"] = Object(c=class_name(Letters), a={"mark": 1})
    twin = Holder(letters(2))
    found = plan(document, {"r": twin}, POLICY)
    assert "half of it is lost" in str(found.errors)
    assert vars(twin.value) == {}


class Covered:
    """A slot in front of which a property stands."""

    __slots__ = ("a",)


setattr(Covered, "a", property(lambda covered: 1))  # noqa: B010 - what nobody could write as an assignment


@pytest.mark.parametrize(
    "cls", [Covered, Holder, Slots, Both, Own, Namespace, queue.Queue, ValueError, dict, np.ndarray]
)
def test_a_class_that_shows_what_it_holds_is_walked(cls: type) -> None:
    assert lookup(POLICY).facts(cls).kind is not Kind.OPAQUE
