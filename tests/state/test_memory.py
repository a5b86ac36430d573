"""Bytes in memory are copied and compared whole, whatever their size, in little memory of their own."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unbroken.state.memory import (
    ALONE,
    BLOCK,
    HUGE_FROM,
    PIECE,
    Bytes,
    bytes_of,
    copy_all,
    copy_array,
    fresh,
    move,
    overwrite,
    same_bytes,
)

SIZES = [0, 1, 7, 8, BLOCK - 1, BLOCK + 9, ALONE, ALONE + 1, ALONE + PIECE + 13]


def noise(size: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@contextmanager
def at_most(size: int) -> Generator[None, None, None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_is_whole(size: int) -> None:
    sources = [noise(size), noise(100, 1)]
    targets = [np.zeros_like(source) for source in sources]
    copy_all(list(zip(targets, sources, strict=True)))
    assert all(np.array_equal(target, source) for target, source in zip(targets, sources, strict=True))


@pytest.mark.parametrize("size", [size for size in SIZES if size])
def test_one_byte_that_differs_is_seen_wherever_it_stands(size: int) -> None:
    left = noise(size)
    right = left.copy()
    assert same_bytes(left, right)
    for at in {0, size // 2, size - 1}:
        right[at] ^= 1
        assert not same_bytes(left, right)
        right[at] ^= 1
    assert not same_bytes(left, right[:-1])


def test_bytes_that_are_not_aligned_are_compared() -> None:
    room = noise(ALONE + 100)
    assert same_bytes(room[3:-1], room[3:-1].copy())
    assert not same_bytes(room[3:-1], room[2:-2])


@pytest.mark.parametrize("size", SIZES)
def test_overwriting_leaves_what_is_there_already(size: int) -> None:
    source = noise(size)
    target = source.copy()
    target.flags.writeable = False
    overwrite(target, source)  # nothing is written, not even the same
    target = np.zeros_like(source)
    overwrite(target, source)
    assert np.array_equal(target, source)


@pytest.mark.parametrize("size", [*SIZES, HUGE_FROM + 1])
def test_what_is_moved_arrives_whole(size: int) -> None:
    source, beside = fresh(size), fresh(HUGE_FROM)
    source[:] = noise(size)
    beside[:] = 7
    target = np.zeros(size, np.uint8)
    move(target, source)
    assert np.array_equal(target, noise(size))
    assert (beside == 7).all()


def test_what_is_moved_gives_its_memory_back() -> None:
    source = fresh(2 * ALONE + 100)
    source[:] = 7
    move(np.zeros_like(source), source)
    assert not source.any()
    plain = noise(2 * ALONE)
    move(np.zeros_like(plain), plain)
    assert np.array_equal(plain, noise(2 * ALONE))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (3000, 1000)])
def test_arrays_are_copied_in_either_order(order: Any, shape: tuple[int, ...]) -> None:
    source: NDArray[np.float64] = np.asarray(np.random.default_rng(0).random(shape), order=order)
    for other in (np.zeros(shape), np.zeros(shape, order="F"), np.zeros((*shape, 2))[..., 0]):
        copy_array(other, source)
        assert np.array_equal(other, source)


def test_memory_with_holes_has_no_bytes() -> None:
    assert bytes_of(np.zeros((4, 4))[:, ::2]) is None
    found = bytes_of(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert found is not None
    assert found.tobytes() == np.array([0.0, 3, 1, 4, 2, 5]).tobytes()


def test_large_memory_is_copied_and_compared_without_memory_of_its_size() -> None:
    source = noise(8 * ALONE)
    target = np.zeros_like(source)
    with at_most(ALONE):
        overwrite(target, source)
        assert same_bytes(target, source)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unbroken-memory")]


@pytest.mark.parametrize("size", [0, 1, HUGE_FROM - 1, HUGE_FROM, HUGE_FROM + 1])
def test_fresh_memory_has_the_size_that_was_asked_for(size: int) -> None:
    memory = fresh(size)
    memory[:] = 7
    assert memory.shape == (size,)
    assert memory.flags.writeable
    assert memory.ctypes.data % 16 == 0
