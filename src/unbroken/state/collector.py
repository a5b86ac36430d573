"""Python's garbage collector, kept quiet while many objects are made and no cycles."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Generator[None]:
    """Pause the collector: a walk makes many objects and no cycles, and collections double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
