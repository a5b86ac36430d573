"""Differences are found, counted once, and named by place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from unbroken.state.diff import LeafDifference, compare
from unbroken.state.nodes import Scope, class_name
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component, Snapshot
from unbroken.state.walk import capture

POLICY = Policy()


class Part:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def differences(a: object, b: object, **options: Any) -> list[LeafDifference]:
    return compare(capture({"r": Part(v=a)}, POLICY), capture({"r": Part(v=b)}, POLICY), **options)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 2), (1, 1.0), (0.0, -0.0), (True, 1), (None, 0), ("a", "b"), (2**70, 2**71),
        (float("nan"), 1.0), (float("inf"), float("-inf")), (b"a", b"b"), (b"a", bytearray(b"a")),
        ([1], (1,)), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ({1: 2}, {1: 3}), ({1}, {2}),
        (np.zeros(3), np.zeros(3, np.float32)), (np.zeros(3), np.zeros(4)), (np.zeros(3), np.ones(3)),
        (np.zeros((2, 2)), np.asfortranarray(np.zeros((2, 2)))), (np.float32(1), np.float64(1)),
        (Part(a=1), Part(a=2)), (len, max), (int, float), ([0.0] * 100, [0.0] * 99 + [1.0]),
        ([[]] * 2, [[], []]),
    ],
)  # fmt: skip
def test_found(a: object, b: object) -> None:
    assert differences(a, a) == []
    assert differences(b, b) == []
    assert len(differences(a, b)) >= 1


def test_named_by_place_with_distance() -> None:
    a = {"x": np.array([1.0, 2.0]), "list": [1, 5]}
    b = {"x": np.array([1.0, 2.5]), "list": [1, 8]}
    found = differences(a, b)
    assert [(d.place, d.distance) for d in found] == [("r/v/x", 0.5), ("r/v/list/1", 3.0)]
    assert str(found[1]) == "r/v/list/1: 5 → 8 (by up to 3)"


def test_nan_is_infinitely_far() -> None:
    (found,) = differences(np.array([1.0]), np.array([np.nan]))
    assert found.distance == float("inf")


def test_a_truth_value_is_any_byte_but_0() -> None:
    """Memory that nobody has written yet holds any."""
    unwritten = np.empty(4, np.bool_)
    unwritten.view(np.uint8)[:] = 0, 156, 1, 7
    assert not differences(unwritten, np.array([False, True, True, True]))
    assert differences(unwritten, np.array([False, True, True, False]))
    assert differences(np.array([0, 156], np.uint8), np.array([0, 1], np.uint8))


def test_one_object_more_does_not_shift_the_others() -> None:
    shared = [1]
    a = {"first": [0], "x": shared, "y": shared}
    extra = [7]
    b = {"first": [0], "new": extra, "new2": extra, "x": shared, "y": shared}
    assert {d.place for d in differences(a, b)} == {"r/v/new", "r/v/new2"}


def test_contents_can_be_left_out() -> None:
    a = {"x": np.zeros(3), "t": 1.0}
    b = {"x": np.ones(3), "t": 2.0}
    assert [d.place for d in differences(a, b, contents=False)] == ["r/v/t"]


def test_skeletons_of_equal_programs_are_equal_whatever_the_arrays_hold() -> None:
    a = capture({"r": Part(v=np.zeros(5000))}, POLICY, contents=False)
    b = capture({"r": Part(v=np.ones(5000))}, POLICY, contents=False)
    assert compare(a, b) == []
    assert all(not component.blobs for component in a.components.values())


def test_components_on_one_side_only() -> None:
    a = Snapshot({"x": Component("x", {"r": 1})})
    found = compare(a, Snapshot())
    assert [(d.component, d.place, d.after) for d in found] == [("x", "r", "absent")]


def test_inside_another_process() -> None:
    def scoped(value: float) -> Snapshot:
        inner = capture({"env": Part(a=np.full(2000, value), b=[1])}, POLICY)
        component = inner.components["training_state"]
        scope = Scope(p="worker", roots=component.roots, blobs=[1])
        outer = Component("env_states", {"w": scope}, [np.zeros(3, np.uint8), *component.blobs])
        return Snapshot({"env_states": outer})

    assert compare(scoped(1.0), scoped(1.0)) == []
    assert [(d.place, d.distance) for d in compare(scoped(1.0), scoped(3.0))] == [("w/env/a", 2.0)]


@pytest.mark.parametrize(("value", "differs"), [(7.0, False), (8.0, True)])
def test_of_arrays_with_other_rows_the_common_ones_can_be_compared(value: float, differs: bool) -> None:
    class Buffer:
        def __init__(self, used: int, first: float) -> None:
            self.rows = np.arange(8000.0).reshape(1000, 8)
            self.rows[0] = first
            self.used = 10
            self.written = used

    def written(buffer: object) -> Mapping[str, int] | None:
        return {"rows": buffer.written} if isinstance(buffer, Buffer) else None

    policy = Policy(rings=(written,), skip={class_name(Buffer): frozenset({"written"})})
    saved = capture({"buffer": Buffer(400, 7.0)}, policy)
    for used in (300, 500, 1000):
        now = capture({"buffer": Buffer(used, value)}, policy)
        assert [found.place for found in compare(saved, now)] == ["buffer/rows"]
        assert bool(compare(saved, now, common_rows=True)) is differs
