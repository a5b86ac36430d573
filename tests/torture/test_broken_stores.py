"""The bench finds what is wrong with stores that are broken on purpose, and nothing wrong with the one we have."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.broken import STORES, SYSTEMS
from torture.case import tried
from torture.crashes import cases, recorded
from torture.disks import room
from unbroken.store.local import LocalStore
from unbroken.testing.recording import Event, Recording

EVENTS = 260
"""Of the recording, the first saves: where nothing is ever settled, the disks of a whole run are too many."""
MOST = 150
"""Disks that are looked at: a bench that needs more to find these would find nothing."""


def found(events: list[Event]) -> str:
    """Return what is found first, "" if nothing is."""
    drawn = [*cases(events[:EVENTS])]
    random.Random(1).shuffle(drawn)
    for case in drawn[:MOST]:
        with room() as folder:
            outcome = tried(case, folder)
        if outcome.verdict in ("lost", "wrong"):
            return outcome.message
    return ""


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_that_leaves_out_a_barrier_is_caught(name: str) -> None:
    system: Callable[[Path], Recording] = SYSTEMS[name]
    assert found(recorded(system))


@pytest.mark.parametrize("name", STORES)
def test_a_store_that_writes_in_the_wrong_order_is_caught(name: str) -> None:
    store: Callable[..., LocalStore] = STORES[name]
    assert found(recorded(store=store))
