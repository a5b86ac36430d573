"""Memory without a name: found again by its descriptor, and not in children."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np

from tests.engine.children import holders_of_memory, in_child
from unbroken.state.shared import SharedMemory, read_shared


def mapped() -> int:
    """Return how many mappings of such memory this process has, those that other tests have left to the collector too."""
    return Path("/proc/self/maps").read_text().count("/memfd:unbroken-staging")


def test_what_is_written_is_read_through_the_descriptor() -> None:
    memory = SharedMemory()
    region = memory.resize(10_000)
    region[:] = np.arange(10_000) % 251
    assert np.array_equal(read_shared(memory.descriptor), region)
    memory.close()


def test_places_are_told_inside_only() -> None:
    memory = SharedMemory()
    region = memory.resize(4096)
    assert memory.offset_of(region[64:128]) == 64
    assert memory.offset_of(region) == 0
    assert memory.offset_of(np.zeros(64, np.uint8)) is None
    assert memory.offset_of(region[5:5]) is None
    memory.close()
    assert memory.offset_of(region[64:128]) is None


def test_it_is_gone_when_the_last_view_is() -> None:
    gc.collect()
    before = mapped()
    memory = SharedMemory()
    region = memory.resize(4096)
    view = region[10:20]
    del region
    memory.resize(8192)
    assert mapped() - before == 2
    view[:] = 1
    del view
    assert mapped() - before == 1
    memory.close()
    assert mapped() - before == 0


def test_a_forked_child_has_neither_mapping_nor_descriptor() -> None:
    memory = SharedMemory()
    region = memory.resize(4096)
    region[:] = 7

    def look() -> None:
        assert os.getpid() not in holders_of_memory()

    assert os.getpid() in holders_of_memory()
    assert in_child(look) == 0
    assert (region == 7).all()
    memory.close()
