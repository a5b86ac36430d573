"""What processes share: numbers are put back where they lie, the rest is named."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
from multiprocessing.managers import SyncManager
from multiprocessing.queues import SimpleQueue
from typing import Any

import numpy as np
import pytest

from tests.state.values import ENCODINGS, POLICY, Holder, restored
from unbroken.state.graft import plan
from unbroken.state.walk import capture


class Pair(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("number", ctypes.c_int))


def _held(value: Any) -> Any:
    return value.get_obj() if hasattr(value, "get_obj") else value


@ENCODINGS
@pytest.mark.parametrize(
    ("saved", "twin"),
    [
        (multiprocessing.Value("i", -7), multiprocessing.Value("i", 1)),
        (multiprocessing.Value("d", float("nan")), multiprocessing.Value("d", 1.0)),
        (multiprocessing.Value(ctypes.c_bool, True), multiprocessing.Value(ctypes.c_bool, False)),
        (multiprocessing.Array("f", [1, -0.0, 3]), multiprocessing.Array("f", 3)),
        (multiprocessing.Array("d", [0.5] * 5000), multiprocessing.Array("d", 5000)),
        (multiprocessing.Array("u", "ab"), multiprocessing.Array("u", 2)),
        (multiprocessing.Array("i", 0), multiprocessing.Array("i", 0)),
        (multiprocessing.Array("c", b"abc"), multiprocessing.Array("c", 3)),
    ],
    ids=lambda value: type(_held(value)).__name__,
)
def test_it_comes_back_in_its_own_memory(encoding: str, saved: Any, twin: Any) -> None:
    memory = np.frombuffer(_held(twin), np.uint8) if ctypes.sizeof(_held(twin)) else np.empty(0)
    assert restored(encoding, saved, twin) is twin
    assert memory.tobytes() == bytes(_held(saved))


def test_another_process_sees_what_came_back() -> None:
    saved, shared = multiprocessing.Value("i", 41), multiprocessing.Value("i", 0)
    ready, go = os.pipe()

    # The child is there before the restore, and looks after it.
    child = os.fork()
    if child == 0:
        os.read(ready, 1)
        os._exit(shared.value)
    restored("json", saved, shared)
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41


def test_memory_of_another_size_or_kind_is_refused() -> None:
    saved = capture({"it": Holder(v=multiprocessing.Array("i", 3))}, POLICY)
    others: list[Any] = [multiprocessing.Array("i", 4), multiprocessing.Array("d", 3)]
    for other in others:
        assert "cannot be changed" in str(plan(saved, {"it": Holder(v=other)}, POLICY).errors)
    others = [multiprocessing.Value("i", 3), None, 3]
    for other in others:
        assert "has another object here" in str(plan(saved, {"it": Holder(v=other)}, POLICY).errors)


def _notes(value: object) -> list[str]:
    return [note.kind for note in capture({"it": Holder(v=value)}, POLICY).notes]


def test_what_holds_more_than_numbers_is_named() -> None:
    assert _notes(multiprocessing.Value(ctypes.c_void_p, 1)) == ["not captured"]
    assert _notes(multiprocessing.Array(Pair, 1)) == ["not captured"]
    twin = Holder(v=multiprocessing.Value(ctypes.c_void_p, 2))
    saved = capture({"it": Holder(v=multiprocessing.Value(ctypes.c_void_p, 1))}, POLICY)
    found = plan(saved, {"it": twin}, POLICY)
    assert found.errors == []
    found.apply()
    assert twin.__dict__["v"].value == 2


def test_what_waits_between_processes_or_tasks_is_named() -> None:
    simple: SimpleQueue[int] = multiprocessing.SimpleQueue()
    assert _notes(simple) == ["external"]
    simple.put(1)
    assert _notes(simple) == ["not captured"]
    simple.close()
    assert _notes(simple) == ["external"]

    async def tasks() -> list[list[str]]:
        waiting: asyncio.Queue[int] = asyncio.Queue()
        before = _notes(waiting)
        await waiting.put(1)
        return [before, _notes(waiting)]

    assert asyncio.run(tasks()) == [["external"], ["not captured"]]


def test_what_a_manager_holds_is_named() -> None:
    with multiprocessing.Manager() as manager:
        assert isinstance(manager, SyncManager)
        assert _notes(manager.dict()) == ["not captured"]
