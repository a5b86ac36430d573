"""A choice of the faults of `make torture`, of each source, each followed by a recovery that is verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from torture import clocks, crashes, damage, network, objects, places, returned
from torture.case import Case, tried
from torture.disks import room

SOURCES: dict[str, tuple[Callable[[], Iterator[Case]], int]] = {
    "power failures": (crashes.cases, 91),
    "errors that are returned": (returned.cases, 171),
    "disks on a network": (network.cases, 37),
    "places that go bad": (places.cases, 53),
    "clocks": (clocks.cases, 9),
    "damage": (damage.cases, 71),
    "object stores": (objects.cases, 53),
}
"""Each source, and that only each n-th fault of it is done here."""


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_lost_or_wrong_or_hangs(source: str) -> None:
    cases, every = SOURCES[source]
    done = 0
    for case in islice(cases(), source.count("e"), None, every):
        with room() as folder:
            outcome = tried(case, folder)
        assert outcome.verdict == "recovered", f"{case.kind}, {case.name}: {outcome.message}"
        done += 1
    assert done >= 5


def test_there_are_more_than_ten_thousand_different_faults() -> None:
    keys = [case.key for cases, _ in SOURCES.values() for case in cases()]
    assert len(set(keys)) == len(keys)
    assert len(keys) >= 10_000


def test_a_case_that_goes_wrong_is_told_by_what_it_has_done(tmp_path: Path) -> None:
    def leaves_a_file_open(folder: Path) -> int:
        opened.append(os.open(folder, os.O_RDONLY))
        return 1

    opened: list[int] = []
    outcome = tried(Case("a kind", "a name", "a key", leaves_a_file_open), tmp_path)
    os.close(opened[0])
    assert (outcome.verdict, outcome.message) == ("wrong", "1 descriptors were left open")
