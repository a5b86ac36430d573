"""What a walk names as lost, what stays shared, and what decides nothing."""

from __future__ import annotations

import array
import csv
import gc
import io
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.state.values import (
    ENCODINGS,
    POLICY,
    Holder,
    Slotted,
    alike,
    filled,
    moved,
    restored,
)
from unbroken.errors import NotCapturable
from unbroken.state.diff import compare
from unbroken.state.policy import Policy
from unbroken.state.walk import capture


def _lost(value: Any) -> list[str]:
    return [note.kind for note in capture({"root": Holder(v=value)}, POLICY).notes]


@pytest.mark.parametrize(
    "value",
    [
        (i for i in range(3)), iter({1: 2}), itertools.groupby([1]), map(str, (i for i in range(3))),
        queue.SimpleQueue(), {}.keys(), weakref.WeakValueDictionary(), reversed({1: 2}),
    ],
)  # fmt: skip
def test_what_holds_something_out_of_reach_is_named_as_not_captured(value: Any) -> None:
    assert _lost(value) == ["not captured"]


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), threading.Event(), sys.__stdout__, weakref.ref(Holder), types.MappingProxyType({})],
)
def test_what_belongs_to_the_process_is_named_as_external(value: Any) -> None:
    assert _lost(value) == ["external"]


def test_a_file_that_is_open_is_named_and_a_closed_one_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1,2\n3,4\n")
    with (tmp_path / "data").open() as file, (tmp_path / "log").open("a") as log:
        assert _lost(file) == ["not captured"]
        assert _lost(csv.reader(file)) == ["not captured"]
        assert _lost(log) == ["outside"]
    assert _lost(file) == _lost(log) == ["external"]


def test_what_goes_on_by_itself_is_named_until_it_has_ended() -> None:
    free = threading.Event()
    thread = threading.Thread(target=free.wait)
    assert _lost(thread) == ["external"]
    thread.start()
    one, other = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert _lost(thread) == _lost(one) == _lost(child) == ["not captured"]
    child.communicate(b"\n")
    for end in (one.close, other.close, free.set, thread.join):
        end()
    assert _lost(thread) == _lost(one) == _lost(child) == ["external"]


def test_an_array_of_a_class_of_its_own_is_refused_by_name() -> None:
    with pytest.raises(NotCapturable, match="MaskedArray"):
        capture({"root": Holder(v=np.ma.MaskedArray([1.0, 2.0], mask=[True, False]))}, POLICY)


@ENCODINGS
@pytest.mark.parametrize("order", ["za", "az"])
def test_a_slice_of_something_large_stays_one_wherever_it_is_met(encoding: str, order: str) -> None:
    def state(fill: float) -> dict[str, Any]:
        large = np.full(10_000, fill)
        parts = {"a": large[:4], "z": large}
        return {name: parts[name] for name in order}

    twin = state(0.0)
    back = restored(encoding, state(7.0), twin)
    assert back["a"].base is back["z"]
    back["z"][0] = 9.0
    assert back["a"].tolist() == [9.0, 7.0, 7.0, 7.0]


@ENCODINGS
def test_a_slice_of_something_that_is_not_saved_is_filled_where_it_lies(encoding: str) -> None:
    hidden = np.zeros(10_000)
    twin = {"seen": hidden[10:14]}
    back = restored(encoding, {"seen": np.arange(10_000.0)[10:14]}, twin)
    assert back["seen"].base is hidden
    assert hidden[9:15].tolist() == [0.0, 10.0, 11.0, 12.0, 13.0, 0.0]


@ENCODINGS
def test_a_shared_count_stays_shared(encoding: str) -> None:
    counter = itertools.count(5)
    back = restored(encoding, {"a": counter, "b": counter}, {"a": itertools.count(), "b": itertools.count()})
    assert [next(back["a"]), next(back["b"])] == [5, 6]


@ENCODINGS
def test_holders_of_the_twin_are_filled_in_place(encoding: str) -> None:
    saved = {"a": array.array("d", [1.0]), "q": filled(queue.Queue(), 1), "b": moved(io.BytesIO(b"ab"), 1)}
    twin = {"a": array.array("d", [5.0, 6.0]), "q": filled(queue.Queue(), 7), "b": io.BytesIO(b"xyz")}
    before = dict(twin)
    back = restored(encoding, saved, twin)
    for name, holder in before.items():
        assert back[name] is holder
        assert alike(holder, saved[name])


@ENCODINGS
def test_a_function_keeps_its_attributes_and_its_default_containers(encoding: str) -> None:
    def make() -> Any:
        def count(key: str, seen: dict[str, int] = {}, *, log: list[str] = []) -> int:  # noqa: B006
            seen[key] = seen.get(key, 0) + 1
            log.append(key)
            return seen[key]

        return count

    saved, twin = make(), make()
    saved("a")
    saved("a")
    saved.calls = [1]
    assert restored(encoding, saved, twin) is twin
    assert twin("a") == 3
    assert twin.calls == [1]


HASHED = """
import sys
sys.path[:0] = {paths!r}
from unbroken.state.code import code_hash
def ask(x, y=("a", ("b", "c"))):
    return x in {{"up", "down", "left", "right"}} and (lambda z: z in {{"one", "two"}})(y)
print(code_hash(ask.__code__))
"""


def test_the_hash_of_code_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", HASHED.format(paths=sys.path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_what_a_set_holds_decides_its_order_and_nothing_else() -> None:
    class Thing:
        def __init__(self, n: int) -> None:
            self.n = n

        def __repr__(self) -> str:
            raise AssertionError("code of the object was run")

    things = [Thing(n) for n in range(20)]
    others = [Thing(n) for n in reversed(range(20))]  # at other addresses, so in another order
    a, b = capture({"s": set(things)}, POLICY), capture({"s": set(others)}, POLICY)
    assert compare(a, b) == []


def test_a_policy_that_nobody_holds_is_forgotten() -> None:
    policy = Policy()
    capture({"a": [1]}, policy)
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None


@ENCODINGS
def test_slots_that_the_saved_object_had_unset_are_unset(encoding: str) -> None:
    twin = Slotted()
    twin.unset = 5
    assert not hasattr(restored(encoding, Slotted(), twin), "unset")


def test_the_snapshot_is_true() -> None:
    array, items, data = np.ones(2000), [1, 2], bytearray(b"abc")
    state = Holder(array=array, view=array[::2], items=items, data=data)
    snapshot = capture({"root": state}, POLICY)
    before = capture({"root": state}, POLICY)
    array[:] = 7
    items.append(3)
    data[0] = 0
    assert compare(snapshot, before) == []
    assert compare(snapshot, capture({"root": state}, POLICY)) != []
