"""Staging: one region of memory, bounded, used again, and given back where little of it is needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unbroken.state.policy import Policy
from unbroken.state.shared import SharedMemory
from unbroken.state.snapshot import Bytes, Component, Rows, Snapshot
from unbroken.state.staging import IDLE, PAGE, AnonymousMemory, Memory, Staging, own
from unbroken.state.walk import walk

MEBIBYTE = 1 << 20


@pytest.fixture(params=[AnonymousMemory, SharedMemory])
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    found: AnonymousMemory | SharedMemory = request.param()
    yield found
    if isinstance(found, SharedMemory):
        found.close()


def live(*arrays: Bytes) -> Snapshot:
    """A snapshot whose blobs lie in the memory of the training."""
    return Snapshot({"a": Component("a", blobs=list(arrays), live=set(range(len(arrays))))})


def noise(size: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_taken_is_shared_with_nothing_live(memory: Memory) -> None:
    arrays = [noise(9 * MEBIBYTE + 3), noise(5), noise(PAGE)]
    truth = [array.copy() for array in arrays]
    snapshot = live(*arrays)
    assert Staging(lambda: 1 << 30, memory).take(snapshot)
    for array in arrays:
        array[:] = 0
    assert not snapshot.is_live
    component = snapshot.components["a"]
    assert [component.content(i).tobytes() for i in range(3)] == [array.tobytes() for array in truth]


def test_of_a_ring_only_the_ranges_are_taken() -> None:
    array = noise(3 * MEBIBYTE)
    rows = Rows(array.nbytes, MEBIBYTE, ((0, array[:MEBIBYTE]), (2 * MEBIBYTE, array[2 * MEBIBYTE :])))
    snapshot = Snapshot({"a": Component("a", blobs=[rows], live={0})})
    staging = Staging(lambda: 1 << 30)
    assert staging.take(snapshot)
    truth = array.copy()
    array[:] = 0
    taken = snapshot.components["a"].blobs[0]
    assert isinstance(taken, Rows)
    assert [start for start, _ in taken.ranges] == [0, 2 * MEBIBYTE]
    assert all(part.tobytes() == truth[at : at + part.nbytes].tobytes() for at, part in taken.ranges)


def test_beyond_the_ceiling_nothing_is_copied(memory: Memory) -> None:
    array = noise(2 * MEBIBYTE)
    snapshot = live(array)
    staging = Staging(lambda: MEBIBYTE, memory)
    assert not staging.take(snapshot)
    assert snapshot.is_live
    assert snapshot.components["a"].blobs[0] is array
    assert staging.size == 0


def test_where_the_system_refuses_nothing_is_copied(memory: Memory) -> None:
    def refuse(size: int) -> Bytes:
        raise OSError(errno.ENOMEM, f"{size} bytes are too many")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "resize", refuse)
        snapshot, staging = live(noise(MEBIBYTE)), Staging(lambda: 1 << 30, memory)
        assert not staging.take(snapshot)
        assert snapshot.is_live
        assert staging.size == 0
    assert staging.take(snapshot)


def test_spare_memory_stays_below_the_ceiling() -> None:
    staging = Staging(lambda: MEBIBYTE + PAGE)
    assert staging.take(live(noise(MEBIBYTE)))
    assert MEBIBYTE <= staging.size <= MEBIBYTE + PAGE


def test_the_same_memory_is_used_again(memory: Memory) -> None:
    staging = Staging(lambda: 1 << 30, memory)
    addresses = set[int]()
    for seed in range(3):
        snapshot = live(noise(MEBIBYTE, seed))
        assert staging.take(snapshot)
        addresses.add(snapshot.components["a"].content(0).ctypes.data)
    assert len(addresses) == 1


def test_memory_that_lies_idle_is_given_back_and_taken_again(memory: Memory) -> None:
    staging = Staging(lambda: 1 << 30, memory)
    large, small = noise(4 * IDLE), noise(MEBIBYTE, 1)
    assert staging.take(live(large.copy()))
    before = resident()
    snapshot = live(small.copy())
    assert staging.take(snapshot)
    assert snapshot.components["a"].content(0).tobytes() == small.tobytes()
    assert staging.size < 2 * MEBIBYTE
    assert before - resident() > 3 * IDLE
    again = live(large.copy())
    assert staging.take(again)
    assert again.components["a"].content(0).tobytes() == large.tobytes()


def test_a_walk_leaves_arrays_where_they_are_until_they_are_owned() -> None:
    array = np.arange(10_000, dtype=np.float32)
    snapshot = walk({"array": array}, Policy()).snapshot
    (component,) = snapshot.components.values()
    assert np.shares_memory(component.content(0), array)
    assert not own(snapshot).is_live
    assert not np.shares_memory(component.content(0), array)
