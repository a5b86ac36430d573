from __future__ import annotations

import numpy as np

from benchmarks.rings import ReplayRing


def filled(rows: int, adds: int) -> ReplayRing:
    ring = ReplayRing(rows, (2,), (), np.float32)
    for number in range(adds):
        ring.add(np.full(2, number, np.float32), 0.0, number, 0.0)
    return ring


def test_the_newest_rows_are_those_that_the_last_adds_wrote() -> None:
    ring = filled(10, 7)
    assert [float(row[0]) for row in ring.newest(3)[0]] == [4, 5, 6]


def test_newest_rows_that_wrap_come_in_two_pieces() -> None:
    ring = filled(10, 12)
    first, second = ring.newest(4)[:2]
    assert [float(row[0]) for row in (*first, *second)] == [8, 9, 10, 11]


def test_newest_rows_share_the_memory_of_the_ring() -> None:
    ring = filled(10, 4)
    assert all(
        any(np.shares_memory(piece, array) for array in ring.arrays().values()) for piece in ring.newest(2)
    )


def test_an_adopted_ring_goes_on_like_the_one_that_was_saved() -> None:
    saved, ring = filled(10, 13), filled(10, 0)
    ring.adopt({name: array.copy() for name, array in saved.arrays().items()}, saved.counters())
    for one in (saved, ring):
        one.add(np.ones(2, np.float32), 0.0, 99.0, 1.0)
    assert ring.counters() == saved.counters()
    assert all(np.array_equal(ring.arrays()[name], array) for name, array in saved.arrays().items())
