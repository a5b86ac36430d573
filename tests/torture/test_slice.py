"""A choice of the faults of `make torture`, of each kind, each followed by a recovery that is verified."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from torture import bench, places
from torture.case import Case, tried
from torture.disks import room

EVERY = {
    "power fails: prefix": 61, "power fails: torn": 199, "power fails: reordered": 173,
    "ENOSPC once": 149, "ENOSPC for ever": 199, "EDQUOT once": 149, "EDQUOT for ever": 199, "EIO once": 149,
    "EIO for ever": 199, "EIO once, after it happened": 127, "EROFS for ever": 199, "EACCES for ever": 101,
    "network: a call is carried out and sent again": 31, "network: a handle is stale": 97,
    "network: a directory is listed as it was": 23, "network: a removed file lives on under another name": 17,
    "network: what was not written is told at close": 17,
    "directory moved away": 53, "directory moved away for a while": 53, places.AS_ANOTHER: 101, places.SMALL: 17,
    places.READ_ONLY: 29,
    "clock jumps": 13,
    "damage: a bit flipped": 101, "damage: cut off": 29, "damage: zeros at the end": 29, "damage: empty": 13,
    "damage: longer": 13, "damage: gone": 13, "damage: swapped": 29,
    "bucket: no answer, once": 97, "bucket: no answer any more": 97, "bucket: response lost": 41,
    "bucket: request doubled": 41, "bucket: request doubled, the second one late": 41, "bucket: no room": 29,
    "bucket: read cut short": 41, "bucket: listing out of date": 29, "bucket: process gone before a request": 41,
    "bucket: process gone after a request": 41,
}  # fmt: skip
"""Each kind, and that only each n-th fault of it is done here, from the one in the middle of the first n."""


@pytest.fixture(scope="module")
def faults() -> Iterator[list[Case]]:
    """All there are: they are made once for all tests here, and let go of after the last one."""
    found = bench.gathered(seed=0)
    yield found
    found.clear()


@pytest.mark.parametrize("kind", EVERY)
def test_nothing_is_lost_or_wrong_or_hangs(faults: list[Case], kind: str) -> None:
    if (reason := places.left_out().get(kind)) is not None:
        pytest.skip(f"{kind}: {reason}")
    chosen = [case for case in faults if case.kind == kind][EVERY[kind] // 2 :: EVERY[kind]]
    assert len(chosen) >= 2
    for case in chosen:
        with room() as folder:
            outcome = tried(pickle.loads(pickle.dumps(case)), folder)  # as the bench hands it on
        assert outcome.verdict == "recovered", f"{case.name}: {outcome.message}"


def test_each_kind_is_here_and_there_are_more_than_ten_thousand_different_faults(faults: list[Case]) -> None:
    assert {case.kind for case in faults} == EVERY.keys() - places.left_out().keys()
    assert len({case.key for case in faults}) >= 10_000


def test_a_case_that_goes_wrong_is_told_by_what_it_has_done(tmp_path: Path) -> None:
    def leaves_a_file_open(folder: Path) -> int:
        opened.append(os.open(folder, os.O_RDONLY))
        return 1

    opened: list[int] = []
    outcome = tried(Case("a kind", "a name", "a key", leaves_a_file_open), tmp_path)
    os.close(opened[0])
    assert (outcome.verdict, outcome.message) == ("wrong", "1 descriptors were left open")
